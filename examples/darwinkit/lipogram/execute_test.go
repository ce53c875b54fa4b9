//go:build softmetal

package main

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/examples/darwinkit"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

const root = "../../.."

// start makes the software implementation of Metal execute the program's kernel.
func start(t *testing.T) {
	t.Helper()
	if err := soft.Start(root); err != nil {
		t.Fatal(err)
	}
	objects, bytes := soft.Live()
	t.Cleanup(func() {
		if o, b := soft.Live(); o != objects || b != bytes {
			t.Errorf("%d objects and %d bytes were not released", o-objects, b-bytes)
		}
		if err := soft.Violation(); err != nil {
			t.Error(err)
		}
	})
}

func TestMain(m *testing.M) {
	err := soft.Add(root, "examples/darwinkit/lipogram", soft.ProgramKernel{Name: "choose", MaxThreads: 1024, Writes: []bool{true, false, true, false}})
	if err != nil {
		panic(err)
	}
	m.Run()
}

// ids generates n tokens after a prompt.
func ids(t *testing.T, s *pianola.Session, prompt []int32, n int) (out []int32) {
	t.Helper()
	for token, err := range s.GenerateIDs(context.Background(), prompt, pianola.GenerateOptions{MaxTokens: n}) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, token.ID)
	}
	return out
}

// chosen returns the expected result of ids with a bias. The host adds the bias to the logits
// of a model on the CPU and chooses the tokens.
func chosen(t *testing.T, s *pianola.Session, prompt []int32, n int, bias []float32) (out []int32) {
	t.Helper()
	if _, _, err := s.Prompt(context.Background(), prompt); err != nil {
		t.Fatal(err)
	}
	logits := make([]float32, len(bias))
	for {
		if err := s.NextLogits(logits); err != nil {
			t.Fatal(err)
		}
		best := 0
		for i := range logits {
			if logits[i]+bias[i] > logits[best]+bias[best] {
				best = i
			}
		}
		if out = append(out, int32(best)); len(out) == n {
			return out
		}
		if err := s.SetNext(int32(best)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Chain(context.Background(), 1); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChoose generates with the kernel in both modes. Without a bias, the tokens must equal
// the plain output. With a bias against all tokens of the plain output, they must equal those
// that the host chooses from the logits of the CPU device.
func TestChoose(t *testing.T) {
	path := testmodels.Path(t, filepath.Join(root, "testdata/tiny/llama/model.gguf"))
	prompt, n := []int32{5, 6, 7}, 8
	so := pianola.SessionOptions{Chain: 1, IgnoreStops: true}
	table := pianola.TableOptions{Context: 32}
	m, err := pianola.Open(context.Background(), path, pianola.Options{Device: pianola.DeviceCPU, Table: table})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	session := func(m *pianola.Model) *pianola.Session {
		s, err := m.NewSession(so)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	plain := ids(t, session(m), prompt, n)
	none, bias := make([]float32, m.Config().Vocab), make([]float32, m.Config().Vocab)
	for _, id := range plain {
		bias[id] = never
	}
	want := chosen(t, session(m), prompt, n, bias)
	for _, id := range want {
		if slices.Contains(plain, id) {
			t.Fatalf("the host chooses %v, the plain output is %v", want, plain)
		}
	}
	for _, mode := range []pianola.Mode{"encode", "record"} {
		for what, c := range map[string]struct {
			bias []float32
			want []int32
		}{"without a bias": {none, plain}, "with a bias": {bias, want}} {
			t.Run(string(mode)+" "+what, func(t *testing.T) {
				start(t)
				o := pianola.Options{Mode: mode, Table: table, Metal: pianola.MetalOptions{NoArchive: true}}
				err := withModel(context.Background(), path, o, func(m *pianola.Model, use func(*pianola.Session, []float32) error) error {
					s, err := m.NewSession(so)
					if err != nil {
						return err
					}
					defer s.Close()
					if err := use(s, c.bias); err != nil {
						return err
					}
					got := ids(t, s, prompt, n)
					if !slices.Equal(got, c.want) {
						t.Errorf("%v, want %v", got, c.want)
					}
					// The logits slot must contain the logits with the bias.
					logits := make([]float32, len(c.bias))
					if err := s.NextLogits(logits); err != nil {
						return err
					}
					for id, b := range c.bias {
						if (logits[id] < never/2) != (b == never) {
							t.Errorf("logit %d is %g, but its bias is %g", id, logits[id], b)
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestAfter checks that passes are refused if the kernel could choose only the last of several
// tokens, or none of the tokens that the program verifies.
func TestAfter(t *testing.T) {
	for _, p := range []darwinkit.Pass{{Program: "decode", Tokens: 4}, {Program: "verify", Tokens: 1}} {
		if err := new(chooser).after(p); err == nil {
			t.Errorf("after accepts %+v", p)
		}
	}
	if err := new(chooser).after(darwinkit.Pass{Program: "prefill", Tokens: 4}); err != nil {
		t.Error(err)
	}
}

// TestRun runs the program and forbids a letter of the text that the CPU device generates. The
// text must not contain the letter.
func TestRun(t *testing.T) {
	start(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	path := filepath.Join(root, "testdata/gopher-q8_0.gguf")
	const prompt, n = "func", 3
	m, err := pianola.Open(context.Background(), path, pianola.Options{Device: pianola.DeviceCPU})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var plain, got strings.Builder
	for token, err := range s.Generate(context.Background(), prompt, pianola.GenerateOptions{MaxTokens: n}) {
		if err != nil {
			t.Fatal(err)
		}
		plain.WriteString(token.Text)
	}
	letter := strings.IndexFunc(plain.String(), func(r rune) bool { return r >= 'a' && r <= 'z' })
	if letter < 0 {
		t.Fatalf("%q has no letter", plain.String())
	}
	avoid := plain.String()[letter : letter+1]
	if err := run(context.Background(), &got, path, prompt, avoid, n); err != nil {
		t.Fatal(err)
	}
	if got.Len() == 0 || strings.Contains(strings.ToLower(got.String()), avoid) {
		t.Errorf("%q without %q is %q", plain.String(), avoid, got.String())
	}
}
