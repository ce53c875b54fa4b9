package e2e_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// denseFamilies have features that Llama lacks: fused tensors, LongRoPE, norms after blocks,
// layers without RoPE, factors of the residual stream, and feed-forward networks without a
// gate.
var denseFamilies = []string{"phi3_long", "olmo2", "smollm3", "granite_bias", "starcoder2"}

// TestDenseSameBits checks that chain length, fusion, threads and chunk size do not change any
// bit of the results, and that the layout of the weights changes them little.
func TestDenseSameBits(t *testing.T) {
	for _, name := range denseFamilies {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", "variants", name)
			g := readGolden(t, filepath.Join(path, "golden.json"))
			c := g.Cases[len(g.Cases)-1]
			const n = 40
			run := func(o pianola.Options, chain int) ([]float32, []int32) {
				o.Device, o.Table.Context = "cpu", roomy(t, path)
				return greedy(t, open(t, path, o), chain, c.PromptIDs, n)
			}
			wantLogits, want := run(pianola.Options{}, 1)
			for _, o := range []pianola.Options{{}, {Table: pianola.TableOptions{NoFuse: true}}, {Threads: otherThreads}, {Table: pianola.TableOptions{NoRepack: true}}} {
				if logits, got := run(o, 64); !slices.Equal(logits, wantLogits) || !slices.Equal(got, want) {
					t.Errorf("%+v: the results differ", o)
				}
			}
		})
	}
}

// TestDenseOptions runs the families with attention sinks, with an int8 KV cache, with drafts,
// with the logits of all rows and with hidden states.
func TestDenseOptions(t *testing.T) {
	for _, name := range denseFamilies {
		for _, o := range []pianola.Options{
			{Table: pianola.TableOptions{KVSinks: 4, KVWindow: 30}}, {Table: pianola.TableOptions{KV: "q8_0"}}, {Table: pianola.TableOptions{Draft: 3}}, {Table: pianola.TableOptions{AllLogits: true, Hidden: true}},
		} {
			path := filepath.Join("testdata", "variants", name)
			if o.Device, o.Table.Context = "cpu", 128; o.Table.KVSinks > 0 {
				o.Table.Context = 1024
			}
			m := open(t, path, o)
			s, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true})
			if err != nil {
				t.Fatal(err)
			}
			ids := []int32{7, 8, 9, 7, 8, 9, 7, 8}
			var got []int32
			for tok, err := range s.GenerateIDs(context.Background(), ids, pianola.GenerateOptions{MaxTokens: 40, Speculate: o.Table.Draft > 0}) {
				if err != nil {
					t.Fatalf("%s, %+v: %v", name, o, err)
				}
				got = append(got, tok.ID)
			}
			if len(got) != 40 {
				t.Errorf("%s, %+v: %d tokens", name, o, len(got))
			}
			if o.Table.Draft > 0 { // drafts must not change the tokens
				_, want := greedy(t, open(t, path, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 128}}), 1, ids, 40)
				if !slices.Equal(got, want) {
					t.Errorf("%s: with drafts %v, without %v", name, got, want)
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestLongRoPEContext checks that LongRoPE's frequencies depend on the context that a model is
// opened with.
func TestLongRoPEContext(t *testing.T) {
	const path = "testdata/variants/phi3_short"
	h, err := pianola.OpenHeader(testmodels.Path(t, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	table := func(context int) string {
		var b strings.Builder
		for _, chip := range []string{"cpu", "m4-pro", "h200"} {
			c, err := h.Compile(chip, pianola.TableOptions{Context: context})
			if err != nil {
				t.Fatal(err)
			}
			b.Write(c.Const)
		}
		return b.String()
	}
	if table(256) != table(100) || table(257) != table(2048) || table(256) == table(257) {
		t.Error("the frequencies must change exactly where the context exceeds the original one")
	}
	if short, err := h.Compile("cpu", pianola.TableOptions{}); err != nil || short.Header.Context != 256 {
		t.Errorf("the default is %+v, %v", short.Header, err)
	}
}
