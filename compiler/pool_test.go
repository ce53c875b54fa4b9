package compiler

import (
	"bytes"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/table"
)

// TestPooled compiles pooled tables of every family for every kind of device. Validate checks that all
// programs have the same arithmetic, and that the page tables are within the step block.
func TestPooled(t *testing.T) {
	paths, hybrids := tiny(t), []string{"lfm2", "qwen3_5_one", "falcon_h1"}
	for _, name := range hybrids {
		paths = append(paths, testmodels.Path(t, filepath.Join("..", "testdata", "variants", name)))
	}
	for _, path := range paths {
		if strings.HasSuffix(path, ".gguf") {
			continue // the other file format gives the same graph
		}
		for _, c := range []string{"cpu", "h200", "m4-pro"} {
			for _, o := range []Options{{Sequences: 1}, {Sequences: 40, Pages: 100, LogProbs: true, AllLogits: true}, {Sequences: 3, NoFuse: true, Sampler: SamplerNone}, {Sequences: 9, KVSinks: 4, KVWindow: 60}} {
				o.Context = 130
				tab := mustCompile(t, input(t, path, c, o))
				if faults := tab.Validate(); len(faults) > 0 {
					t.Fatalf("%s, %s, %+v: %v", path, c, o, faults[0])
				}
				l, ok := sequence.Of(tab.Header.Options, 130)
				if !ok || l.Sequences != o.Sequences || l.Table != 3 || o.Pages != 0 && l.Pages != o.Pages || (l.States > 0) != slices.Contains(hybrids, filepath.Base(path)) || l.States > l.Pages {
					t.Errorf("%s, %s, %+v: layout %+v", path, c, o, l)
				}
				got, err := OptionsOf(tab)
				if o.Batching, o.Pages = true, l.Pages; err != nil || got != o {
					t.Errorf("%s, %s: options %+v, %v, want %+v", path, c, got, err, o)
				}
			}
		}
	}
	for _, c := range []struct {
		name, chip string
		context    int
	}{{"gemma2", "cpu", 0}, {"qwen3", "h200", 1024}, {"qwen3", "m4-pro", 0}} { // clusters divide the segments of 1,024 positions
		in := input(t, testmodels.Path(t, filepath.Join("..", "testdata", "tiny", c.name)), c.chip, Options{Context: c.context, Sequences: 8, Pages: 100, LogProbs: true})
		in.Config.Context = max(in.Config.Context, c.context)
		tab := mustCompile(t, in)
		var b bytes.Buffer
		if err := tab.Dump(&b, table.DumpOptions{}); err != nil {
			t.Fatal(err)
		}
		// The slots and one program show what is particular of pooled tables.
		head, _, _ := bytes.Cut(b.Bytes(), []byte("uploads:"))
		_, batch, _ := bytes.Cut(b.Bytes(), []byte("program batch_ranked"))
		batch, _, _ = bytes.Cut(batch, []byte("\n\n"))
		compareGolden(t, filepath.Join("testdata", c.name+"-"+c.chip+"-sequences.txt"), slices.Concat(head, batch, []byte("\n")))
	}
}

// TestPooledRefused checks the options that a pooled table cannot have.
func TestPooledRefused(t *testing.T) {
	path := testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "llama"))
	for _, o := range []Options{{Sequences: 2, Draft: 2}, {Pages: 4}, {Sequences: -1}, {Sequences: 1 << 20}, {Sequences: 2, Pages: -3}} {
		_, err := Compile(input(t, path, "cpu", o))
		var e *poolError
		if !errors.As(err, &e) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestPooledFaults checks that Validate refuses pooled tables whose commands leave the step block, or whose
// sequences differ from the table's.
func TestPooledFaults(t *testing.T) {
	llama := testmodels.Path(t, filepath.Join("..", "testdata", "tiny", "llama"))
	hybrid := testmodels.Path(t, filepath.Join("..", "testdata", "variants", "qwen3_5_one"))
	for name, c := range map[string]struct {
		change func(tab *table.Table, c *table.Cmd, k *decl.Kernel)
		want   string
	}{
		"delta_rule: states": {func(_ *table.Table, c *table.Cmd, k *decl.Kernel) { setParam(c, k, "saved", 23) }, "23 saved states"},
		"delta_rule: ring":   {func(_ *table.Table, c *table.Cmd, k *decl.Kernel) { setParam(c, k, "live", 2) }, "live == 0"},
		"delta_rule: each":   {func(_ *table.Table, c *table.Cmd, k *decl.Kernel) { setParam(c, k, "each", 1) }, "each == 0"},
		"delta_rule: tables": {func(_ *table.Table, c *table.Cmd, k *decl.Kernel) { setParam(c, k, "tables", 1<<20) }, "its page tables"},
		"causal_conv: table": {func(_ *table.Table, c *table.Cmd, k *decl.Kernel) { setParam(c, k, "table", 2) }, "table*64 >= context"},
		"causal_conv: no states": {func(tab *table.Table, c *table.Cmd, k *decl.Kernel) {
			tab.Header.Options = regexp.MustCompile(` states=\d+`).ReplaceAllString(tab.Header.Options, "")
		}, "saved states"},
		"causal_conv: own": {func(tab *table.Table, c *table.Cmd, k *decl.Kernel) {
			i, _ := k.Spec("sequences")
			tab.Specs[c.Spec].Values[i] = decl.SequencesOwn
		}, "does not hold"},
		"tables": {func(_ *table.Table, c *table.Cmd, k *decl.Kernel) { setParam(c, k, "tables", 1<<20) }, "its page tables"},
		"rows":   {func(_ *table.Table, c *table.Cmd, k *decl.Kernel) { setParam(c, k, "tables", 64) }, "its page tables"},
		"pool":   {func(_ *table.Table, c *table.Cmd, k *decl.Kernel) { setParam(c, k, "pool", 7) }, "7 sequences"},
		"cap":    {func(_ *table.Table, c *table.Cmd, k *decl.Kernel) { setParam(c, k, "cap", 64) }, "its cache has 64 rows"},
		"own": {func(tab *table.Table, c *table.Cmd, k *decl.Kernel) {
			i, _ := k.Spec("sequences")
			tab.Specs[c.Spec].Values[i] = decl.SequencesOwn
		}, "works on sequences of kind 0"},
		"many": {func(tab *table.Table, c *table.Cmd, k *decl.Kernel) {
			i, _ := k.Spec("sequences")
			tab.Specs[c.Spec].Values[i] = decl.SequencesMany
		}, ""},
	} {
		path, kernel := llama, "attn"
		if of, _, ok := strings.Cut(name, ":"); ok {
			path, kernel = hybrid, of
		}
		tab := mustCompile(t, input(t, path, "cpu", Options{Sequences: 8, Context: 130}))
		for i := range tab.Cmds {
			k, _ := decl.Lookup(tab.Cmds[i].Kernel)
			if k.Name == kernel {
				c.change(tab, &tab.Cmds[i], k)
				break
			}
		}
		var all []string
		for _, f := range tab.Validate() {
			all = append(all, f.Error())
		}
		if len(all) == 0 || !strings.Contains(strings.Join(all, "\n"), c.want) {
			t.Errorf("%s: faults %v, want %q", name, all, c.want)
		}
	}
}

// setParam sets a parameter of a command.
func setParam(c *table.Cmd, k *decl.Kernel, name string, v uint32) {
	off, _, _ := k.Param(name)
	for i := range 4 {
		c.Param[off+i] = byte(v >> (8 * i))
	}
}
