package e2e_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/pianola-engine/pianola"
)

func dot(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

func TestEmbed(t *testing.T) {
	ctx := context.Background()
	m := open(t, gopher, pianola.Options{Table: pianola.TableOptions{Hidden: true}})
	s := newSession(t, m, pianola.SessionOptions{})
	texts := []string{"func main() {", "func main() {\n\treturn", "x"}
	for _, p := range []pianola.Pooling{pianola.PoolMean, pianola.PoolLast, ""} {
		plain, err := s.Embed(ctx, texts, pianola.EmbedOptions{Pooling: p})
		if err != nil {
			t.Fatal(err)
		}
		unit, err := newSession(t, m, pianola.SessionOptions{NoReuse: true}).Embed(ctx, texts, pianola.EmbedOptions{Pooling: p, Normalize: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(plain) != 3 || len(plain[0]) != m.Config().Width {
			t.Fatalf("%d vectors of %d", len(plain), len(plain[0]))
		}
		for i := range plain {
			if n := dot(unit[i], unit[i]); math.Abs(n-1) > 1e-5 {
				t.Errorf("%q: a normalised vector has length %v", p, math.Sqrt(n))
			}
			if cos := dot(plain[i], unit[i]) / math.Sqrt(dot(plain[i], plain[i])); math.Abs(cos-1) > 1e-5 {
				t.Errorf("%q: normalised vector %d has another direction: %v", p, i, cos)
			}
		}
		if cos := dot(unit[0], unit[1]); cos > 0.9999 {
			t.Errorf("%q: the vectors of two texts have the cosine %v", p, cos)
		}
	}

	// Compute the expected vectors, the mean and the last hidden state, from the states of each
	// position.
	tok, err := m.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	all := mustEncode(t, tok, texts[1])
	mean, last := make([]float64, m.Config().Width), make([]float32, m.Config().Width)
	for row, err := range newSession(t, m, pianola.SessionOptions{}).Hidden(ctx, all, 0) {
		if err != nil {
			t.Fatal(err)
		}
		for j, v := range row.State {
			mean[j] += float64(v) / float64(len(all))
		}
		copy(last, row.State)
	}
	for p, want := range map[pianola.Pooling]func(j int) float32{
		pianola.PoolMean: func(j int) float32 { return float32(mean[j]) },
		pianola.PoolLast: func(j int) float32 { return last[j] },
	} {
		v, err := s.Embed(ctx, texts[1:2], pianola.EmbedOptions{Pooling: p})
		if err != nil {
			t.Fatal(err)
		}
		for j := range v[0] {
			if math.Abs(float64(v[0][j]-want(j))) > 1e-5 {
				t.Fatalf("%s: element %d is %v, want %v", p, j, v[0][j], want(j))
			}
		}
	}
	if st := s.Counters(); st.Reused == 0 {
		t.Error("texts with a common beginning reuse no positions")
	}
	for name, c := range map[string]struct {
		texts []string
		o     pianola.EmbedOptions
	}{
		"an unknown pooling": {texts, pianola.EmbedOptions{Pooling: "max"}},
		"a long text":        {[]string{"x", string(make([]byte, 100_000))}, pianola.EmbedOptions{}},
	} {
		if v, err := s.Embed(ctx, c.texts, c.o); err == nil {
			t.Errorf("%s: %d vectors", name, len(v))
		}
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Embed(cancelled, texts, pianola.EmbedOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := newSession(t, open(t, gopher, pianola.Options{}), pianola.SessionOptions{}).Embed(ctx, texts, pianola.EmbedOptions{}); !errors.Is(err, pianola.ErrNoHiddenProgram) {
		t.Errorf("without the program: %v", err)
	}
}

func TestLogits(t *testing.T) {
	ctx := context.Background()
	m := open(t, gopher, pianola.Options{Table: pianola.TableOptions{AllLogits: true}})
	s := newSession(t, m, pianola.SessionOptions{})
	ids := []int32{5, 6, 7, 8, 9, 10, 11, 12}
	want := make([]float32, m.Config().Vocab)
	rows := 0
	for row, err := range s.Logits(ctx, ids, 3) {
		if err != nil {
			t.Fatal(err)
		}
		if row.Position != 3+rows || row.Token != ids[row.Position] || len(row.Logits) != len(want) {
			t.Errorf("row %d: position %d, token %d, %d logits", rows, row.Position, row.Token, len(row.Logits))
		}
		rows++
		if row.Position != 5 {
			continue
		}
		other := newSession(t, m, pianola.SessionOptions{})
		if _, _, err := other.Prompt(ctx, ids[:6]); err != nil {
			t.Fatal(err)
		}
		if err := other.NextLogits(want); err != nil {
			t.Fatal(err)
		}
		for i, v := range row.Logits {
			if v != want[i] {
				t.Fatalf("logit %d is %v, want the logit of a prompt that ends there, %v", i, v, want[i])
			}
		}
	}
	if rows != 5 || s.Len() != 8 {
		t.Errorf("%d rows, %d positions", rows, s.Len())
	}
	s = newSession(t, m, pianola.SessionOptions{})
	for range s.Logits(ctx, ids, 0) {
		break
	}
	if s.Len() != 0 {
		t.Errorf("%d positions after stopping early", s.Len())
	}
	for name, c := range map[string]struct {
		ids  []int32
		from int
		want error
	}{"no ids": {nil, 0, pianola.ErrEmptyPrompt}, "a row past the last": {ids, 8, nil}, "an invalid id": {[]int32{-1}, 0, nil}} {
		var failed error
		for _, err := range s.Logits(ctx, c.ids, c.from) {
			failed = err
		}
		if failed == nil || c.want != nil && !errors.Is(failed, c.want) {
			t.Errorf("%s: %v", name, failed)
		}
	}
	for range s.Logits(ctx, ids, 0) {
		for _, err := range s.Logits(ctx, ids, 0) {
			if !errors.Is(err, pianola.ErrBusy) {
				t.Errorf("two calls at once: %v", err)
			}
		}
		break
	}
}

// TestClassify compares scores with those computed from the logits of every row.
func TestClassify(t *testing.T) {
	ctx := context.Background()
	m := open(t, gopher, pianola.Options{Table: pianola.TableOptions{AllLogits: true, Context: 256}})
	tok, err := m.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(t, m, pianola.SessionOptions{})
	prompts := []string{"func main() {\n\tfor i := ", "func main() {\n\treturn", ""}
	labels := []string{"range", "0; i < n", "xyzzy", "\n"}
	scores, err := s.Classify(ctx, prompts, labels)
	if err != nil {
		t.Fatal(err)
	}
	greedy := 0
	for i, p := range prompts {
		alone := mustEncode(t, tok, p)
		for j, l := range labels {
			ids := mustEncode(t, tok, p+l)
			n := 0
			for n < len(alone) && ids[n] == alone[n] {
				n++
			}
			want := pianola.LabelScore{Tokens: len(ids) - n, Greedy: true}
			for row, err := range newSession(t, m, pianola.SessionOptions{}).Logits(ctx, ids, 0) {
				if err != nil {
					t.Fatal(err)
				}
				if row.Position < n-1 || row.Position == len(ids)-1 {
					continue
				}
				next, sum, best := ids[row.Position+1], 0.0, 0
				for k, v := range row.Logits {
					sum += math.Exp(float64(v))
					if v > row.Logits[best] {
						best = k
					}
				}
				want.LogLikelihood += float64(row.Logits[next]) - math.Log(sum)
				want.Greedy = want.Greedy && int32(best) == next
			}
			got := scores[i][j]
			if math.Abs(got.LogLikelihood-want.LogLikelihood) > 1e-9*math.Abs(want.LogLikelihood)+1e-9 || got.Tokens != want.Tokens || got.Greedy != want.Greedy {
				t.Errorf("%q, %q: %+v, want %+v", p, l, got, want)
			}
			if got.Greedy {
				greedy++
			}
		}
	}
	if st := s.Counters(); st.Reused == 0 {
		t.Error("labels do not share the prompt's positions")
	}
	if scores[0][1].LogLikelihood <= scores[0][2].LogLikelihood {
		t.Errorf("%q is more likely than %q: %+v", labels[2], labels[1], scores[0])
	}
	if _, err := s.Classify(ctx, []string{"x"}, []string{""}); !errors.Is(err, pianola.ErrEmptyPrompt) {
		t.Errorf("an empty label: %v", err)
	}
	if _, err := newSession(t, open(t, gopher, pianola.Options{}), pianola.SessionOptions{}).Classify(ctx, prompts, labels); !errors.Is(err, pianola.ErrNoLogitsProgram) {
		t.Errorf("without the program: %v", err)
	}
}

func mustEncode(t testing.TB, tok *pianola.Tokenizer, text string) []int32 {
	t.Helper()
	ids, err := tok.Encode(text, pianola.EncodeOptions{AddSpecial: true})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}
