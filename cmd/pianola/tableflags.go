package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
)

// tableFlags are the flags that select what is compiled into a table.
type tableFlags struct {
	pianola.TableOptions
	suffix string // suffix of the flags' names, for commands with two tables
}

// tableFlagNames are the flags that cannot be combined with --roll: a roll is compiled already.
var tableFlagNames = []string{"no-fuse", "no-repack", "exact", "batching", "sampler-order", "kv", "kv-window", "kv-sinks"}

// register adds the flags of every command that compiles a table. Their help texts begin with of.
func (f *tableFlags) register(cmd *cobra.Command, suffix, of string) {
	f.suffix = suffix
	fs := cmd.Flags()
	fs.IntVar(&f.Context, "ctx"+suffix, 0, of+"number of `POSITIONS` of context (default: the model's, at most 4096)")
	fs.BoolVar(&f.NoFuse, "no-fuse"+suffix, false, of+"compile one command per operation, without fused kernels")
	fs.BoolVar(&f.NoRepack, "no-repack"+suffix, false, of+"use the weights in the layout of the file")
	fs.BoolVar(&f.Exact, "exact"+suffix, false, of+"keep the precision of decode in prefill, where a GPU would round activations to float16")
	fs.BoolVar(&f.Batching, "batching"+suffix, false, of+"compute a row with the same bits alone and among other rows; on a GPU decoding takes longer")
	fs.TextVar(&f.KV, "kv"+suffix, pianola.KVF16, of+"element `TYPE` of the KV cache: f16 or q8_0")
	fs.IntVar(&f.KVWindow, "kv-window"+suffix, 0, of+"limit full attention to the last `POSITIONS`, and keep only those in the KV cache (default: all)")
	fs.IntVar(&f.KVSinks, "kv-sinks"+suffix, 0, of+"with --kv-window, also keep the first `POSITIONS` as attention sinks")
	fs.StringVar(&f.Sampler, "sampler-order"+suffix, "", of+"order of the sampler's `STAGES`: "+samplerOrders)
}

// registerPrograms adds the flags that select programs, for commands that only compile a table.
// Commands that run a model select the programs that they need themselves.
func (f *tableFlags) registerPrograms(cmd *cobra.Command, of string) {
	fs := cmd.Flags()
	fs.BoolVar(&f.Hidden, "hidden"+f.suffix, false, of+"add the program for the hidden states of every row")
	fs.BoolVar(&f.AllLogits, "all-logits"+f.suffix, false, of+"add the program for the logits of every row")
	fs.BoolVar(&f.LogProbs, "logprobs"+f.suffix, false, of+"add the programs for log-probabilities")
	fs.IntVar(&f.Draft, "draft"+f.suffix, 0, of+"add the program that verifies drafts of `N` tokens")
	f.registerSequences(cmd, of)
}

// registerSequences adds the flags of tables for many sequences.
func (f *tableFlags) registerSequences(cmd *cobra.Command, of string) {
	fs := cmd.Flags()
	fs.IntVar(&f.Sequences, "sequences"+f.suffix, 0, of+"decode `N` sequences in one batch, as with Options.Parallel (default: sessions take turns)")
	fs.IntVar(&f.Pages, "pages"+f.suffix, 0, of+"with --sequences"+f.suffix+", share `N` KV pages of 64 positions (default: enough for all at full context)")
}

// options returns the options that the flags select. The option of a missing flag is zero.
func (f *tableFlags) options(cmd *cobra.Command) (pianola.TableOptions, error) {
	o := f.TableOptions
	if !cmd.Flags().Changed("kv" + f.suffix) {
		o.KV = ""
	}
	for _, n := range []struct {
		name   string
		v, low int
	}{{"ctx", o.Context, 1}, {"draft", o.Draft, 0}, {"kv-window", o.KVWindow, 0}, {"kv-sinks", o.KVSinks, 0}, {"sequences", o.Sequences, 0}, {"pages", o.Pages, 0}} {
		if cmd.Flags().Lookup(n.name+f.suffix) == nil {
			continue
		}
		if err := atLeast(cmd, n.low, n.name+f.suffix, n.v); err != nil {
			return o, err
		}
	}
	return o, nil
}

// refuseRoll returns an error if one of the named flags was given. why is the end of the error.
func (f *tableFlags) refuseRoll(cmd *cobra.Command, names []string, why string) error {
	for _, name := range names {
		if cmd.Flags().Changed(name + f.suffix) {
			return usage(cmd, "%s", fmt.Sprintf("--%s%s %s", name, f.suffix, why))
		}
	}
	return nil
}

// samplerOrders are the values of --sampler-order.
const samplerOrders = "llama.cpp (default), mlx, edgerunner, none, or a list such as penalties,top_k,top_p,min_p,temperature"
