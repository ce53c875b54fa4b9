package e2e_test

import (
	"context"
	"errors"
	"math"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// tapsOf generates with taps. It returns the activations by program and label, and the tokens.
func tapsOf(t *testing.T, s *pianola.Session, taps pianola.Taps, prompt []int32, n int) (map[string][]pianola.Activation, []int32) {
	t.Helper()
	shown := map[string][]pianola.Activation{}
	taps.Show = func(a pianola.Activation) error {
		a.Values = slices.Clone(a.Values)
		if len(a.Values) != a.Shape[0]*a.Shape[1] {
			t.Errorf("%s: %d values of %v", a.Label, len(a.Values), a.Shape)
		}
		key := a.Program + " " + a.Label + " " + a.Name
		shown[key] = append(shown[key], a)
		return nil
	}
	if err := s.SetTaps(&taps); err != nil {
		t.Fatal(err)
	}
	return shown, ids(t, s, prompt, pianola.GenerateOptions{MaxTokens: n})
}

// TestTaps taps all activations and attention weights of a prompt and of decoded tokens.
// Multiplying V by the weights must give the results of the attention commands, the logits
// must equal the session's, and taps must not change the tokens.
func TestTaps(t *testing.T) {
	for _, c := range []struct {
		path, layer         string
		heads, kvHeads, dim int
		window              int
		prompt              int
		logits              string
	}{
		{gopher, "layer.2", 4, 2, 64, 0, 5, "out.logits y"},
		{"testdata/tiny/mistral", "layer.1", 0, 0, 0, 16, 40, "out.logits y"}, // sizes of config.json
		{"testdata/variants/gemma2_caps", "layer.1", 0, 0, 0, 0, 20, "out.soft_cap x"},
	} {
		logitsLabel, _, _ := strings.Cut(c.logits, " ")
		m := open(t, c.path, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 128}})
		if cfg := m.Config(); c.heads == 0 {
			c.heads, c.kvHeads, c.dim = cfg.Heads, cfg.KVHeads, cfg.HeadDim
		}
		prompt := make([]int32, c.prompt)
		for i := range prompt {
			prompt[i] = int32(3 + i*7%400)
		}
		plain := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
		want := ids(t, plain, prompt, pianola.GenerateOptions{MaxTokens: 4})
		s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true, Chain: 3})
		shown, got := tapsOf(t, s, pianola.Taps{Activations: []string{c.layer + ".*", logitsLabel}, Attention: []string{c.layer + ".attn.attention"}}, prompt, 4)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v with taps, %v without", c.path, got, want)
		}

		logits := make([]float32, m.Config().Vocab)
		if err := s.NextLogits(logits); err != nil {
			t.Fatal(err)
		}
		of := shown["decode "+c.logits]
		if len(of) != 3 || !slices.Equal(of[2].Values, logits) || of[2].Position != c.prompt+2 {
			t.Errorf("%s: Show received %d logits, the last at position %d", c.path, len(of), of[len(of)-1].Position)
		}
		if of := shown["head "+c.logits]; len(of) != 1 || of[0].Position != c.prompt-1 || of[0].Shape != [2]int{1, len(logits)} {
			t.Errorf("%s: Show received %d logits of the prompt", c.path, len(of))
		}

		// v holds V of all positions, as in the cache.
		var v [][]float32
		for _, program := range []string{"prefill", "decode"} {
			for _, a := range shown[program+" "+c.layer+".attn.qkv y"] {
				for r := range a.Shape[0] {
					row := slices.Clone(a.Values[r*a.Shape[1]:][:a.Shape[1]][(c.heads+c.kvHeads)*c.dim:])
					for i, x := range row {
						row[i] = dtype.F16ToF32(dtype.F32ToF16(x))
					}
					v = append(v, row)
				}
			}
		}
		if len(v) != c.prompt+3 {
			t.Fatalf("%s: V of %d positions", c.path, len(v))
		}
		for _, program := range []string{"prefill", "decode"} {
			weights := shown[program+" "+c.layer+".attn.attention "+pianola.WeightsName]
			var out [][]float32
			for _, a := range shown[program+" "+c.layer+".attn.attention out"] {
				out = slices.AppendSeq(out, slices.Chunk(a.Values, a.Shape[1]))
			}
			if len(weights) != len(out) || len(out) == 0 {
				t.Fatalf("%s: weights of %d rows, %d rows of results", c.path, len(weights), len(out))
			}
			for i, a := range weights {
				if a.Shape != [2]int{c.heads, a.Position + 1} {
					t.Fatalf("%s: weights %v at %d", c.path, a.Shape, a.Position)
				}
				for h := range c.heads {
					w := a.Values[h*a.Shape[1]:][:a.Shape[1]]
					if hidden := max(0, len(w)-c.window); c.window > 0 && slices.ContainsFunc(w[:hidden], func(x float32) bool { return x != 0 }) {
						t.Errorf("%s: position %d attends to more than its window", c.path, a.Position)
					}
					for j := range c.dim {
						sum := 0.0
						for p, x := range w {
							sum += float64(x) * float64(v[p][h/(c.heads/c.kvHeads)*c.dim+j])
						}
						if got := float64(out[i][h*c.dim+j]); math.Abs(sum-got) > 1e-3*max(1, math.Abs(got)) {
							t.Fatalf("%s %s: position %d, head %d, element %d: the weights give %v, the command gives %v", c.path, program, a.Position, h, j, sum, got)
						}
					}
				}
			}
		}

		if err := s.SetTaps(nil); err != nil {
			t.Fatal(err)
		}
		before := len(shown["decode "+c.logits])
		ids(t, s, []int32{5}, pianola.GenerateOptions{MaxTokens: 3})
		if len(shown["decode "+c.logits]) != before {
			t.Error("Show was called after the taps were removed")
		}
	}
}

// TestTapErrors checks invalid taps, and taps whose Show fails. The call must end with the
// error; the session and the model must remain usable.
func TestTapErrors(t *testing.T) {
	m := open(t, gopher, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 64}})
	s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
	show := func(pianola.Activation) error { return nil }
	var e *pianola.TapError
	for _, c := range []struct {
		taps pianola.Taps
		want string
	}{
		{pianola.Taps{}, "Taps.Show is nil"},
		{pianola.Taps{Show: show, Activations: []string{"layer.[0"}}, "malformed pattern"},
		{pianola.Taps{Show: show, Activations: []string{"layer.0.*", "lunch"}}, "matches no command"},
		{pianola.Taps{Show: show, Activations: []string{"out.argmax"}}, "out.argmax: it writes no float32 results"},
		{pianola.Taps{Show: show, Attention: []string{"layer.0.ffn.*"}}, "it is not an attention command"},
	} {
		if err := s.SetTaps(&c.taps); !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if err := s.SetTaps(&pianola.Taps{Show: show, Activations: []string{"["}}); !errors.Is(err, path.ErrBadPattern) {
		t.Errorf("%v", err)
	}
	enough := errors.New("enough")
	for _, c := range []struct {
		name string
		show func(pianola.Activation) error
		want func(error) bool
	}{
		{"an error", func(pianola.Activation) error { return enough }, func(err error) bool { return errors.Is(err, enough) }},
		{"a panic", func(pianola.Activation) error { panic("lunch") }, func(err error) bool { return err != nil && strings.Contains(err.Error(), "lunch") }},
	} {
		if err := s.SetTaps(&pianola.Taps{Show: c.show, Activations: []string{"layer.3.attn.qkv"}}); err != nil {
			t.Fatal(err)
		}
		for _, prompt := range [][]int32{{1, 2, 3}, nil} {
			var err error
			for _, err = range s.GenerateIDs(context.Background(), append(prompt, 4), pianola.GenerateOptions{MaxTokens: 3}) {
			}
			if !c.want(err) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		if s.Len() != 0 {
			t.Errorf("%s: %d positions remain after a failed prompt", c.name, s.Len())
		}
	}
	if err := s.SetTaps(nil); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, s, []int32{1, 2, 3}, pianola.GenerateOptions{MaxTokens: 3}); len(got) != 3 {
		t.Errorf("afterwards: %v", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.SetTaps(&pianola.Taps{Show: show, Activations: []string{"layer.0.*"}}); !errors.Is(err, pianola.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
