package e2e_test

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
)

// TestKeysAndValues reads K and V of a layer and the attention weights of its commands, fused and
// not, with every type of cache, with sliding windows, attention sinks and learned sink logits. The
// sums of V by the weights must be the results of the commands. Package replay tests caches that
// lose positions to a sliding window.
func TestKeysAndValues(t *testing.T) {
	for _, c := range []struct {
		path   string
		layer  int
		prompt int
		o      pianola.TableOptions
		lost   bool // the cache loses positions
	}{
		{gopher, 3, 20, pianola.TableOptions{}, false},
		{gopher, 3, 20, pianola.TableOptions{NoFuse: true, KV: pianola.KVQ8}, false},
		{"testdata/tiny/qwen3", 1, 20, pianola.TableOptions{KV: pianola.KVQ8}, false}, // QK norm
		{"testdata/tiny/mistral", 1, 40, pianola.TableOptions{}, false},
		{"testdata/tiny/llama", 1, 700, pianola.TableOptions{Context: 1024, KVSinks: 4, KVWindow: 16}, true},
		{"testdata/tiny/llama", 1, 700, pianola.TableOptions{Context: 1024, KVSinks: 4, KVWindow: 16, KV: pianola.KVQ8}, true},
		{"testdata/variants/gemma2_caps", 1, 20, pianola.TableOptions{}, false},
		{"testdata/variants/gpt_oss", 1, 20, pianola.TableOptions{}, false},
		{"testdata/variants/gpt_oss", 1, 20, pianola.TableOptions{NoFuse: true}, false},
	} {
		t.Run(fmt.Sprintf("%s/NoFuse=%v/KV=%s/KVSinks=%d", path.Base(c.path), c.o.NoFuse, c.o.KV, c.o.KVSinks), func(t *testing.T) {
			c.o.Context = max(c.o.Context, 256)
			m := open(t, c.path, pianola.Options{Device: "cpu", Table: c.o})
			s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true, Chain: 3})
			prompt := make([]int32, c.prompt)
			for i := range prompt {
				prompt[i] = int32(3 + i*7%400)
			}
			label := fmt.Sprintf("layer.%d.attn.*", c.layer)
			shown, _ := tapsOf(t, s, pianola.Taps{Activations: []string{label}, Attention: []string{label}}, prompt, 4)
			keys, err := s.Keys(c.layer)
			if err != nil {
				t.Fatal(err)
			}
			values, err := s.Values(c.layer)
			if err != nil {
				t.Fatal(err)
			}
			cfg := m.Config()
			if len(keys) != cfg.KVHeads || len(values) != cfg.KVHeads || len(values[0]) != s.Len() || s.Len() != c.prompt+3 {
				t.Fatalf("%d and %d heads, %d of %d positions", len(keys), len(values), len(values[0]), s.Len())
			}
			lost := slices.IndexFunc(values[0], func(v []float32) bool { return v == nil }) >= 0
			if lost != c.lost {
				t.Errorf("positions are lost: %v", lost)
			}
			checked := 0
			for name, all := range shown {
				if !isWeights(name) {
					continue
				}
				out := shown[name[:len(name)-len(pianola.WeightsName)]+"out"]
				var rows [][]float32
				for _, a := range out {
					rows = slices.AppendSeq(rows, slices.Chunk(a.Values, a.Shape[1]))
				}
				if len(rows) != len(all) {
					t.Fatalf("%s: weights of %d rows, %d rows of results", name, len(all), len(rows))
				}
				for i, a := range all {
					if len(rows[i]) != cfg.Heads*cfg.HeadDim { // split
						continue
					}
					checked += checkWeights(t, name, a, rows[i], values)
				}
			}
			if checked < 3 {
				t.Errorf("%d rows were checked", checked)
			}
			testKeyErrors(t, s, cfg.Layers)
		})
	}
}

func isWeights(name string) bool {
	n := len(name) - len(pianola.WeightsName)
	return n > 0 && name[n:] == pianola.WeightsName
}

// checkWeights compares the sums of V by the weights with the results of an attention command. It
// returns 0 if the cache no longer has the V of a position that the row saw.
func checkWeights(t *testing.T, name string, a pianola.Activation, out []float32, values [][][]float32) int {
	t.Helper()
	heads, dim := a.Shape[0], len(out)/a.Shape[0]
	for h := range heads {
		w, v := a.Values[h*a.Shape[1]:][:a.Shape[1]], values[h/(heads/len(values))]
		sums, total := make([]float64, dim), 0.0
		for p, x := range w {
			if x == 0 {
				continue
			}
			if v[p] == nil {
				return 0
			}
			total += float64(x)
			for j := range sums {
				sums[j] += float64(x) * float64(v[p][j])
			}
		}
		if total > 1+1e-5 {
			t.Errorf("%s: the weights of position %d add up to %v", name, a.Position, total)
		}
		for j, want := range sums {
			if got := float64(out[h*dim+j]); math.Abs(want-got) > 1e-3*max(1, math.Abs(got)) {
				t.Fatalf("%s: position %d, head %d, element %d: the weights give %v, the command gives %v", name, a.Position, h, j, want, got)
			}
		}
	}
	return 1
}

// testKeyErrors checks layers that do not exist, and closes the session.
func testKeyErrors(t *testing.T, s *pianola.Session, layers int) {
	t.Helper()
	for _, layer := range []int{-1, layers} {
		if _, err := s.Keys(layer); err == nil {
			t.Errorf("layer %d: no error", layer)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Values(0); !errors.Is(err, pianola.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
