package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/bench"
	"github.com/pianola-engine/pianola/compiler"
)

type benchFlags struct {
	model    modelFlags
	o        bench.Options
	chains   []int
	json     bool
	benchfmt bool
	latency  latencyFlags
	serve    serveLoadFlags
	batch    batchFlags
}

func newBench() *cobra.Command {
	f := &benchFlags{}
	cmd := &cobra.Command{
		Use:   "bench MODEL",
		Short: "Measure prefill, decode and the cost of replaying",
		Long: `Bench runs a prompt and decodes tokens after it, once to warm up and then --runs
times, and prints the rates of prefill and decode. Each run starts with an empty
context. A chain is the tokens that one submission decodes. With --chain, -n is
rounded up to whole chains; with several lengths, bench prints the decode rate of
each.

` + latencyHelp + "\n\n" + batchHelp + "\n\n" + serveLoadHelp,
		Example: `  pianola bench testdata/gopher-q8_0.gguf
  pianola bench testdata/gopher-q8_0.gguf --latency --svg latency.svg
  pianola bench testdata/gopher-q8_0.gguf --chain 1,2,4,8,16,32,64,128 -p 0
  pianola bench testdata/gopher-q8_0.gguf --batch 1,8,32
  pianola bench testdata/gopher-q8_0.gguf --serve-load --clients 1,8,32 --parallel 32`,
		Args: exactly(1, "bench needs a MODEL"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fs := cmd.Flags()
	fs.IntVarP(&f.o.Prompt, "prompt", "p", 128, "number of tokens in the prompt")
	fs.IntVarP(&f.o.Decode, "tokens", "n", 64, "number of tokens to decode")
	fs.IntVarP(&f.o.Runs, "runs", "r", 3, "number of measured runs")
	fs.IntVarP(&f.o.Depth, "depth", "d", 0, "number of tokens in the context before the prompt")
	fs.IntSliceVar(&f.chains, "chain", nil, "number of tokens that each submission decodes; a list measures each length (default: limited by --chain-ms)")
	f.model.registerChainTime(cmd)
	f.model.registerChip(cmd)
	fs.Uint64Var(&f.o.Seed, "seed", 0, "seed of the prompt's random tokens")
	fs.BoolVar(&f.json, "json", false, "print one JSON object, or one for each chain length")
	fs.BoolVar(&f.benchfmt, "benchfmt", false, "print lines in Go's benchmark format, for benchstat")
	f.latency.register(cmd)
	f.batch.register(cmd)
	f.serve.register(cmd)
	f.model.register(cmd)
	return cmd
}

func (f *benchFlags) run(cmd *cobra.Command, path string) (err error) {
	if err := f.check(cmd); err != nil {
		return err
	}
	o, err := f.model.options(cmd)
	if err != nil {
		return err
	}
	f.o.ChainTime = f.model.chainTime()
	if f.serve.on {
		o.Parallel = f.serve.parallel
		o.Queue = max(1024, 4*f.serve.parallel)
		if o.Spill, err = f.serve.spill.options(cmd); err != nil {
			return err
		}
	}
	if f.batch.on() {
		o.Parallel = slices.Max(f.batch.rows) + 1 // see batchRun
	}
	if need := f.positions(); o.Table.Context == 0 && o.Roll == nil && need > compiler.DefaultContext {
		o.Table.Context = need
	} else if err := enough(cmd, path, &o, need); err != nil {
		return err
	}
	m, err := openModel(cmd, path, o)
	if err != nil {
		return err
	}
	defer closeAfter(&err, m)
	if f.serve.on {
		return f.serve.measure(cmd, m, f, filepath.Base(filepath.Clean(path)))
	}
	if f.batch.on() {
		return f.batch.measure(cmd, m, f, filepath.Base(filepath.Clean(path)))
	}
	return f.measure(cmd, m, filepath.Base(filepath.Clean(path)))
}

func (f *benchFlags) check(cmd *cobra.Command) error {
	for _, c := range []struct {
		name   string
		v, low int
	}{{"prompt", f.o.Prompt, 0}, {"tokens", f.o.Decode, 0}, {"runs", f.o.Runs, 1}, {"depth", f.o.Depth, 0}} {
		if err := atLeast(cmd, c.low, c.name, c.v); err != nil {
			return err
		}
	}
	for _, n := range f.chains {
		if n < 1 {
			return fmt.Errorf("--chain %d: must be at least 1", n)
		}
	}
	if cmd.Flags().Changed("chain") && len(f.chains) == 0 {
		return usage(cmd, "--chain needs a length")
	}
	if f.json && f.benchfmt {
		return usage(cmd, "--json and --benchfmt exclude each other")
	}
	if len(f.chains) > 1 && f.o.Decode == 0 {
		return fmt.Errorf("--chain: several lengths require -n of at least 1, because only decode rates are printed")
	}
	return errors.Join(f.latency.check(cmd, f), f.batch.check(cmd, f), f.serve.check(cmd, f))
}

// positions returns the number of positions that the longest run needs.
func (f *benchFlags) positions() int {
	if f.serve.on {
		return f.serve.positions(f)
	}
	o, n := f.o, 0
	for _, o.Chain = range f.lengths() {
		n = max(n, o.Positions())
	}
	if f.latency.on {
		l := f.latency.options(f)
		n = max(n, l.Positions())
	}
	if f.batch.on() {
		n = max(n, gatePrompt+1)
	}
	return n
}

// lengths returns the chain lengths to measure. 0 lets --chain-ms limit the length.
func (f *benchFlags) lengths() []int {
	if len(f.chains) == 0 {
		return []int{0}
	}
	return f.chains
}

func (f *benchFlags) measure(cmd *cobra.Command, m *pianola.Model, name string) error {
	out, lengths := cmd.OutOrStdout(), f.lengths()
	one := func(chain int) (*bench.Result, error) {
		o := f.o
		o.Chain = chain
		return bench.Run(cmd.Context(), m, name, o)
	}
	if len(lengths) > 1 && !f.json && !f.benchfmt {
		i := 0
		return bench.WriteCurve(out, func() (*bench.Result, error) {
			if i == len(lengths) {
				return nil, nil
			}
			i++
			return one(lengths[i-1])
		})
	}
	for _, n := range lengths {
		res, err := one(n)
		if err != nil {
			return err
		}
		if f.latency.on {
			if res.Latency, err = f.latency.measure(cmd, m, f); err != nil {
				return err
			}
		}
		if err := f.write(out, res); err != nil {
			return err
		}
		if f.latency.svg != "" {
			return f.latency.writeSVG(res)
		}
	}
	return nil
}

// write writes one result in the selected format.
func (f *benchFlags) write(out io.Writer, res *bench.Result) error {
	switch l := res.Latency; {
	case f.json:
		return writeJSON(out, res)
	case f.benchfmt:
		if err := res.WriteBenchfmt(out); err != nil || l == nil {
			return err
		}
		return l.WriteBenchfmt(out, res)
	default:
		if err := res.WriteText(out); err != nil || l == nil {
			return err
		}
		return l.WriteText(out)
	}
}
