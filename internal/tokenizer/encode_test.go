package tokenizer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func gopherJSON(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := FromJSON(readFile(t, "..", "..", "testdata", "gopher", "tokenizer.json"), readFile(t, "..", "..", "testdata", "gopher", "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestGoldenPrompts compares ids with those of transformers, to which a BOS was added.
func TestGoldenPrompts(t *testing.T) {
	var golden struct {
		Cases []struct {
			Prompt    string  `json:"prompt"`
			PromptIDs []int32 `json:"prompt_ids"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(readFile(t, "..", "..", "testdata", "gopher", "golden.json"), &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Cases) == 0 {
		t.Fatal("no cases")
	}
	fromGGUF, fromJSON := gopherGGUF(t), gopherJSON(t)
	if !fromGGUF.AddBOS() || fromJSON.AddBOS() {
		t.Errorf("AddBOS is %v from GGUF and %v from tokenizer.json, want true and false", fromGGUF.AddBOS(), fromJSON.AddBOS())
	}
	for _, c := range golden.Cases {
		if diff := cmp.Diff(c.PromptIDs, encode(t, fromGGUF, c.Prompt, EncodeOptions{AddSpecial: true})); diff != "" {
			t.Errorf("%q from GGUF (-want +got):\n%s", c.Prompt, diff)
		}
		if diff := cmp.Diff(c.PromptIDs[1:], encode(t, fromJSON, c.Prompt, EncodeOptions{AddSpecial: true})); diff != "" {
			t.Errorf("%q from tokenizer.json (-want +got):\n%s", c.Prompt, diff)
		}
	}
}

func TestSourcesAgree(t *testing.T) {
	a, b := gopherGGUF(t), gopherJSON(t)
	for name, text := range map[string]string{"heldout": heldout(t), "corpus": corpus(t)} {
		for _, o := range []EncodeOptions{{}, {ParseSpecial: true}} {
			if diff := cmp.Diff(encode(t, a, text, o), encode(t, b, text, o)); diff != "" {
				t.Errorf("%s, %+v (-GGUF +tokenizer.json):\n%s", name, o, diff)
			}
		}
	}
	if a.Size() != b.Size() {
		t.Fatalf("vocabulary sizes differ: %d and %d", a.Size(), b.Size())
	}
	for id := range int32(a.Size()) {
		x, okX := a.Token(id)
		y, okY := b.Token(id)
		if x != y || okX != okY || a.Special(id) != b.Special(id) {
			t.Errorf("token %d is %q from GGUF and %q from tokenizer.json", id, x, y)
		}
		if back, ok := a.ID(x); !ok || back != id {
			t.Errorf("ID(%q) is %d, %v, want %d", x, back, ok, id)
		}
	}
	if diff := cmp.Diff(a.StopIDs(), b.StopIDs()); diff != "" {
		t.Errorf("StopIDs (-GGUF +tokenizer.json):\n%s", diff)
	}
}

func TestParseSpecial(t *testing.T) {
	tok := gopherGGUF(t)
	const text = "a<|eot_id|>b<|eot_id"
	ids := encode(t, tok, text, EncodeOptions{ParseSpecial: true})
	count := 0
	for _, id := range ids {
		if tok.Special(id) {
			count++
		}
	}
	if count != 1 || tok.Decode(ids) != "ab<|eot_id" {
		t.Errorf("with ParseSpecial: %d special tokens, text %q", count, tok.Decode(ids))
	}
	ids = encode(t, tok, text, EncodeOptions{})
	for _, id := range ids {
		if tok.Special(id) {
			t.Errorf("without ParseSpecial: token %d is special", id)
		}
	}
	if tok.Decode(ids) != text {
		t.Errorf("without ParseSpecial: text %q", tok.Decode(ids))
	}
}

// TestPlain checks that no special token has a byte of a plain range, and that the tokens are otherwise
// those of the text.
func TestPlain(t *testing.T) {
	tok := gopherGGUF(t)
	const name = "<|eot_id|>"
	text := "a" + name + "b" + name + name + "c"
	eot, _ := tok.ID(name)
	for _, c := range []struct {
		plain [][2]int
		want  []string // the texts between special tokens
	}{
		{nil, []string{"a", "b", "", "c"}},
		{[][2]int{{0, 1}}, []string{"a", "b", "", "c"}},
		{[][2]int{{1, 2}}, []string{"a" + name + "b", "", "c"}},
		{[][2]int{{10, 11}}, []string{"a" + name + "b", "", "c"}},
		{[][2]int{{11, 12}, {12, 13}}, []string{"a", "b" + name, "c"}},
		{[][2]int{{2, 3}, {13, 14}, {22, 23}}, []string{text}},
		{[][2]int{{0, len(text)}}, []string{text}},
	} {
		var want []int32
		for i, part := range c.want {
			if i > 0 {
				want = append(want, eot)
			}
			want = append(want, encode(t, tok, part, EncodeOptions{})...)
		}
		if got := encode(t, tok, text, EncodeOptions{ParseSpecial: true, Plain: c.plain}); !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", c.plain, got, want)
		}
	}
}

func nasty() []string {
	return []string{
		"", " ", "  ", "\n", "\r\n", "\x00", "\x00\x01\x02\x7f\x80", "\xff", "\xff\xfe\xfd", "\xc0\xaf", "\xed\xa0\x80",
		"\xe4\xb8", "a\xe4\xb8b", "\xf0\x9f\x98", "\xf0\x9f\x98\x80\x80", "\xf4\x90\x80\x80", "ok\xffok", "é", "é", "👨‍👩‍👧‍👦", "\ufeff", "\ufffd",
		strings.Repeat("\xff", 300), strings.Repeat("ab", 300), strings.Repeat(" ", 1000),
	}
}

func TestRoundTrip(t *testing.T) {
	meta := gopherMeta(t)
	texts := append(nasty(), corpus(t), heldout(t))
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		b := make([]byte, rng.IntN(200))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		texts = append(texts, string(b))
	}
	for _, pre := range []string{"default", "gpt-2", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "tekken", "smollm"} {
		tok, err := FromGGUF(meta.with("tokenizer.ggml.pre", pre))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range texts {
			ids := encode(t, tok, s, EncodeOptions{AddSpecial: true})
			if got := tok.Decode(ids); got != s {
				t.Errorf("%s: %.100q decodes to %.100q", pre, s, got)
			}
			checkStream(t, tok, ids)
		}
	}
}

// checkStream decodes ids with a Decoder and compares the result with Decode. Each part must
// be valid UTF-8, and the concatenation, which checkStream returns, must equal the decoded
// text with its invalid bytes replaced.
func checkStream(t testing.TB, tok *Tokenizer, ids []int32) string {
	t.Helper()
	d := tok.NewDecoder()
	var b strings.Builder
	for _, id := range ids {
		part, err := d.Next(id)
		if err != nil {
			t.Fatal(err)
		}
		if !utf8.ValidString(part) {
			t.Fatalf("Next(%d) gives %q", id, part)
		}
		b.WriteString(part)
	}
	b.WriteString(d.Flush())
	if rest := d.Flush(); rest != "" {
		t.Fatalf("a second Flush returns %q", rest)
	}
	whole := tok.Decode(ids)
	want := strings.ReplaceAll(strings.ToValidUTF8(whole, "\ufffd"), "\ufffd", "")
	if got := strings.ReplaceAll(b.String(), "\ufffd", ""); got != want {
		t.Fatalf("streamed %.100q, want %.100q", got, want)
	}
	if utf8.ValidString(whole) && b.String() != whole {
		t.Fatalf("streamed %.100q, want %.100q", b.String(), whole)
	}
	return b.String()
}

func TestDecoder(t *testing.T) {
	tok := gopherGGUF(t)
	tests := []struct {
		bytes string // one token per byte
		parts []string
		flush string
	}{
		{"aé", []string{"a", "", "é"}, ""},
		{"\xf0\x9f\x98\x80", []string{"", "", "", "😀"}, ""},
		{"\xf0\x9f\x98", []string{"", "", ""}, "\ufffd"},
		{"\xf0\x9f\x98a", []string{"", "", "", "\ufffda"}, ""},
		{"\xf0\x9f\xf0\x9f", []string{"", "", "\ufffd", ""}, "\ufffd"},
		{"\xff\x80b", []string{"\ufffd", "\ufffd", "b"}, ""},
		{"\xe0\x80", []string{"", "\ufffd\ufffd"}, ""}, // after E0 only A0 to BF are valid
		{"\xed\xa0\x80", []string{"", "\ufffd\ufffd", "\ufffd"}, ""},
		{"\xc3", []string{""}, "\ufffd"},
	}
	for _, tt := range tests {
		d := tok.NewDecoder()
		var parts []string
		for i := range len(tt.bytes) {
			if i == 1 { // a special token in the middle of a character has no effect
				if part, err := d.Next(0); part != "" || err != nil {
					t.Errorf("%q: Next of a special token returns %q, %v", tt.bytes, part, err)
				}
			}
			part, err := d.Next(tok.model.(*byteBPE).bytes[tt.bytes[i]])
			if err != nil {
				t.Fatal(err)
			}
			parts = append(parts, part)
		}
		if diff := cmp.Diff(tt.parts, parts); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.bytes, diff)
		}
		if flush := d.Flush(); flush != tt.flush {
			t.Errorf("%q: Flush returns %q, want %q", tt.bytes, flush, tt.flush)
		}
	}
	d := tok.NewDecoder()
	for _, id := range []int32{-1, int32(tok.Size())} {
		if _, err := d.Next(id); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("token id %d is outside", id)) {
			t.Errorf("Next(%d): error %v", id, err)
		}
	}
}

// naiveMerge is byte-pair encoding by its definition.
func naiveMerge(m *merges, ids []int32) []int32 {
	for {
		best, at := rule{}, 0
		for i := 1; i < len(ids); i++ {
			if r := m.find(ids[i-1], ids[i]); r.rank() < best.rank() {
				best, at = r, i
			}
		}
		if best.order == 0 {
			return ids
		}
		ids = append(append(append([]int32{}, ids[:at-1]...), best.result), ids[at+1:]...)
	}
}

func TestMergeAgainstDefinition(t *testing.T) {
	tok := gopherGGUF(t)
	text := heldout(t)
	rng := rand.New(rand.NewPCG(5, 6))
	m := merger{merges: tok.model.(*byteBPE).merges}
	for i := range 600 {
		n := 1 + rng.IntN(40)
		if i%3 == 0 {
			n = 1 + rng.IntN(400)
		}
		start := rng.IntN(len(text) - n)
		word := strings.ReplaceAll(text[start:start+n], "\n", "")
		var ids []int32
		for i := range len(word) {
			ids = append(ids, tok.model.(*byteBPE).bytes[word[i]])
		}
		want := naiveMerge(tok.model.(*byteBPE).merges, ids)
		short := m.mergeShort(append([]int32(nil), ids...))
		long := m.mergeLong(append([]int32(nil), ids...))
		if !cmp.Equal(want, short) && len(want) > 0 {
			t.Fatalf("%q: mergeShort returns %v, want %v", word, short, want)
		}
		if !cmp.Equal(want, long) && len(want) > 0 {
			t.Fatalf("%q: mergeLong returns %v, want %v", word, long, want)
		}
	}
}

// TestLongWord encodes words of 1 MB. A quadratic merge would take hours.
func TestLongWord(t *testing.T) {
	tok := gopherGGUF(t)
	source := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' {
			return r
		}
		return -1
	}, heldout(t))
	for _, unit := range []string{"a", "return", source} {
		word := strings.Repeat(unit, 1+1<<20/len(unit))
		start := time.Now()
		ids := encode(t, tok, word, EncodeOptions{})
		if d := time.Since(start); d > time.Minute {
			t.Errorf("%.10q repeated: took %v", unit, d)
		}
		if tok.Decode(ids) != word {
			t.Errorf("%.10q repeated does not decode to the same text", unit)
		}
	}
}

func TestConcurrentEncode(t *testing.T) {
	tok := gopherGGUF(t)
	text := heldout(t)[:40000] + corpus(t)
	want := encode(t, tok, text, EncodeOptions{})
	var wg sync.WaitGroup
	fresh := gopherGGUF(t) // its cache is empty
	for range 8 {
		wg.Go(func() {
			ids, err := fresh.Encode(text, EncodeOptions{})
			if err != nil || !cmp.Equal(ids, want) {
				t.Errorf("a concurrent Encode differs (error %v)", err)
			}
		})
	}
	wg.Wait()
}

func FuzzEncode(f *testing.F) {
	for _, s := range nasty() {
		f.Add(s, true)
	}
	f.Add("it's <|eot_id|> 123", false)
	a, b := gopherGGUF(f), gopherJSON(f)
	f.Fuzz(func(t *testing.T, s string, parse bool) {
		o := EncodeOptions{ParseSpecial: parse}
		ids := encode(t, a, s, o)
		if !cmp.Equal(ids, encode(t, b, s, o)) {
			t.Fatal("GGUF and tokenizer.json differ")
		}
		if got := a.Decode(ids); !parse && got != s {
			t.Fatalf("%q decodes to %q", s, got)
		}
		checkStream(t, a, ids)
	})
}

func BenchmarkEncode(b *testing.B) {
	for _, bench := range []struct {
		name, text string
		cold       bool
	}{
		{"heldout", heldout(b), false},
		{"heldout without cache", heldout(b), true},
		{"corpus", strings.Repeat(corpus(b), 30), false},
	} {
		b.Run(bench.name, func(b *testing.B) {
			tok := gopherGGUF(b)
			b.SetBytes(int64(len(bench.text)))
			b.ReportAllocs()
			for b.Loop() {
				if bench.cold {
					tok.cache = newWordCache()
				}
				encode(b, tok, bench.text, EncodeOptions{})
			}
		})
	}
}

func BenchmarkDecoder(b *testing.B) {
	tok := gopherGGUF(b)
	ids := encode(b, tok, heldout(b), EncodeOptions{})
	b.ReportAllocs()
	for b.Loop() {
		d := tok.NewDecoder()
		for _, id := range ids {
			if _, err := d.Next(id); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkFromJSON(b *testing.B) {
	data := readFile(b, "..", "..", "testdata", "gopher", "tokenizer.json")
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := FromJSON(data, nil); err != nil {
			b.Fatal(err)
		}
	}
}
