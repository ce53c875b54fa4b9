package tokenizer

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pianola-engine/pianola/internal/exhaustive"
)

// checkModel encodes text and checks that every id is a token. If the tokenizer is exact, the
// ids must also decode to the text.
func checkModel(t testing.TB, c *modelCase, text string, o EncodeOptions) {
	t.Helper()
	ids, err := c.tok.Encode(text, o)
	if err != nil {
		t.Fatalf("%s: %.100q: %v", c.name, text, err)
	}
	for _, id := range ids {
		if _, ok := c.tok.Token(id); !ok {
			t.Fatalf("%s: %.100q encodes to %d, which is not a token", c.name, text, id)
		}
	}
	checkStream(t, c.tok, ids)
	if c.exact && !o.ParseSpecial {
		want := strings.ReplaceAll(text, spaceMark, " ") // both decode to a space
		for _, name := range []string{"gpt2", "llama3", "o200k"} {
			if strings.HasSuffix(c.name, name) {
				want = text
			}
		}
		if got := c.tok.Decode(ids); got != want {
			t.Fatalf("%s: %.200q decodes to %.200q", c.name, text, got)
		}
	}
}

func TestModelsRoundTrip(t *testing.T) {
	texts := append(nasty(), corpus(t), heldout(t), "▁a ▁ b▁", "  a\n\n b  ", "a\u0301\u0323\xff"+strings.Repeat("\u0301", 60))
	texts = append(texts, readReference[[]string](t, "cases.json")...)
	rng := rand.New(rand.NewPCG(7, 8))
	for range 100 {
		b := make([]byte, rng.IntN(120))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		texts = append(texts, string(b))
	}
	for _, c := range modelCases(t) {
		t.Run(c.name, func(t *testing.T) {
			for _, text := range texts {
				checkModel(t, &c, text, EncodeOptions{AddSpecial: true})
				checkModel(t, &c, text, EncodeOptions{ParseSpecial: true})
			}
		})
	}
}

// TestModelsTime checks that every model, normalizer and pre-tokenizer takes roughly linear
// time. It encodes 64 KiB of each of the worst known inputs.
func TestModelsTime(t *testing.T) {
	cases := modelCases(t)
	for _, unit := range []string{"a", "ab", " ", "▁", "\n", " a", "=", "1", "\xff", "\u0301", "a\u0301", "中", "é", "\u200d", "🇩🇪", "☃", "\u1100", "[MASK]", "<s>"} {
		size := exhaustive.Pick(1<<16, 1<<12)
		text := strings.Repeat(unit, size/len(unit))
		for _, c := range cases {
			start := time.Now()
			if _, err := c.tok.Encode(text, EncodeOptions{ParseSpecial: true}); err != nil {
				t.Errorf("%s: %q repeated: %v", c.name, unit, err)
			}
			if d := time.Since(start); d > 10*time.Second {
				t.Errorf("%s: %q repeated took %v", c.name, unit, d)
			}
		}
	}
}

// TestWordCutterChangesNothing compares encodings with and without the word cutter.
func TestWordCutterChangesNothing(t *testing.T) {
	compared := 0
	for _, c := range modelCases(t) {
		if n := len(c.tok.stages); n > 0 {
			if _, ok := c.tok.stages[n-1].cut.(*wordCutter); ok {
				whole := *c.tok
				whole.stages, whole.cache = whole.stages[:n-1], nil
				for _, text := range []string{corpus(t), heldout(t), strings.Join(nasty(), "\n "), "\n\n\n▁▁\n▁a\n▁"} {
					if !cmp.Equal(encode(t, c.tok, text, EncodeOptions{}), encode(t, &whole, text, EncodeOptions{})) {
						t.Errorf("%s: %.40q encodes differently with the word cutter", c.name, text)
					}
				}
				compared++
			}
		}
	}
	if compared < 6 {
		t.Errorf("only %d tokenizers use a word cutter", compared)
	}
}

// naivePieces implements SentencePiece's BPE directly from its definition.
func naivePieces(v *scored, text string) (out []string) {
	parts := strings.Split(text, "")
	for {
		best, at := float32(0), -1
		for i := 1; i < len(parts); i++ {
			id, ok := v.ids[parts[i-1]+parts[i]]
			if ok && v.merges(int(id)) && (at < 0 || v.scores[id] > best) {
				best, at = v.scores[id], i
			}
		}
		if at < 0 {
			return parts
		}
		parts = append(append(parts[:at-1:at-1], parts[at-1]+parts[at]), parts[at+1:]...)
	}
}

// TestPiecesAgainstDefinition merges with random vocabularies. Some tokens have equal scores,
// and some characters of tokens have no token of their own.
func TestPiecesAgainstDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	const letters = "abcé中"
	word := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteRune([]rune(letters)[rng.IntN(5)])
		}
		return b.String()
	}
	for range 300 {
		v := &scored{vocabulary: newVocabulary(60), scores: make([]float32, 60), unk: 0}
		if err := v.add(0, "<unk>", special); err != nil {
			t.Fatal(err)
		}
		id := int32(1)
		for range 50 {
			if token := word(1 + rng.IntN(4)); v.ids[token] == 0 {
				if err := v.add(id, token, normal); err != nil {
					t.Fatal(err)
				}
				v.scores[id] = float32(rng.IntN(6))
				id++
			}
		}
		m, err := v.model()
		if err != nil {
			t.Fatal(err)
		}
		tok := v.tokenizer(m, nil)
		for range 20 {
			text := word(1 + rng.IntN(60))
			var want []int32
			for _, p := range naivePieces(v, text) {
				id := v.ids[p]
				if n := len(want); id != 0 || n == 0 || want[n-1] != 0 { // adjacent unknown characters share unk
					want = append(want, id)
				}
			}
			if got := encode(t, tok, text, EncodeOptions{}); !cmp.Equal(got, want) {
				t.Fatalf("%q with %q %v: %v, want %v", text, v.tokens, v.scores, got, want)
			}
		}
	}
}

// TestUnigramAgainstDefinition compares the score of the result with the best score of all
// ways to cut a word.
func TestUnigramAgainstDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for range 300 {
		tokens := []string{""}
		var scores []float64
		for i := range 12 {
			n := 1 + rng.IntN(3)
			s := fmt.Sprintf("%0*b", n, rng.IntN(1<<n))
			for _, other := range tokens {
				if other == s {
					s = strings.Repeat("1", 4+i)
				}
			}
			tokens = append(tokens, s)
		}
		for range tokens {
			scores = append(scores, -float64(1+rng.IntN(100)))
		}
		m, err := newUnigram(tokens, scores, func(int) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		m.unk, m.unkScore, m.fuse = 0, -1000, false
		scores[0] = m.unkScore
		tok := &Tokenizer{model: m, raw: newMatcher(nil), normals: newMatcher(nil)}
		for range 20 {
			n := 1 + rng.IntN(11)
			text := fmt.Sprintf("%0*b", n, rng.IntN(1<<n))
			got := 0.0
			for _, id := range encode(t, tok, text, EncodeOptions{}) {
				got += scores[id]
			}
			if want := bestSum(text, tokens, scores); got != want {
				t.Fatalf("%q with %q %v: %v, want %v", text, tokens, scores, got, want)
			}
		}
	}
}

// bestSum returns the largest sum of scores of any way to cut text.
func bestSum(text string, tokens []string, scores []float64) float64 {
	if text == "" {
		return 0
	}
	best, covered := -1e9, false
	for id, token := range tokens {
		if token != "" && strings.HasPrefix(text, token) {
			covered = covered || len(token) == 1
			best = max(best, scores[id]+bestSum(text[len(token):], tokens, scores))
		}
	}
	if !covered {
		best = max(best, scores[0]+bestSum(text[1:], tokens, scores))
	}
	return best
}

// TestContinuation decodes tokens that continue a text. The space before the first of them
// must be kept.
func TestContinuation(t *testing.T) {
	for _, c := range modelCases(t) {
		if !strings.HasSuffix(c.name, "llama") && !strings.HasSuffix(c.name, "llama2") && !strings.HasSuffix(c.name, "t5") && !strings.HasSuffix(c.name, "bert") {
			continue
		}
		ids := encode(t, c.tok, "the error", EncodeOptions{})
		d, next := c.tok.NewDecoder(), c.tok.NewContinuation()
		var whole, more strings.Builder
		for _, id := range ids {
			for _, to := range []struct {
				d *Decoder
				b *strings.Builder
			}{{d, &whole}, {next, &more}} {
				part, err := to.d.Next(id)
				if err != nil {
					t.Fatal(err)
				}
				to.b.WriteString(part)
			}
		}
		if whole.String() != "the error" || more.String() != " the error" {
			t.Errorf("%s: decoded %q, and as a continuation %q", c.name, whole.String(), more.String())
		}
	}
}

// TestModelsConcurrently encodes with each tokenizer on several goroutines at once.
func TestModelsConcurrently(t *testing.T) {
	text := corpus(t) + heldout(t)[:8000]
	for _, c := range modelCases(t) {
		want := encode(t, c.tok, text, EncodeOptions{})
		c.tok.cache = newWordCache()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if ids, err := c.tok.Encode(text, EncodeOptions{}); err != nil || !cmp.Equal(ids, want) {
					t.Errorf("%s: a concurrent Encode differs (error %v)", c.name, err)
				}
			})
		}
		wg.Wait()
	}
}

func FuzzModels(f *testing.F) {
	for _, s := range nasty() {
		f.Add(s, false)
	}
	f.Add("<s>a</s> <mask> [MASK] b<|endoftext|>", true)
	cases := modelCases(f)
	f.Fuzz(func(t *testing.T, s string, parse bool) {
		for i := range cases {
			checkModel(t, &cases[i], s, EncodeOptions{ParseSpecial: parse})
		}
	})
}
