package main

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/table"
)

// tableSource says how to come by a table: from a model by compiling it, or
// from a roll.
type tableSource struct {
	chip      string
	context   int
	noFuse    bool
	allLogits bool
	hidden    bool
	logProbs  bool
	sampler   string
	draft     int
	kv        string
	sinks     int
	window    int
	suffix    string // of the flags' names, where a command has two sources
}

// register adds the flags for compiling to a command.
func (s *tableSource) register(cmd *cobra.Command, suffix string) {
	s.suffix = suffix
	of := ""
	if suffix != "" {
		of = strings.ToUpper(suffix[1:]) + ": "
	}
	fs := cmd.Flags()
	fs.StringVar(&s.chip, "chip"+suffix, "cpu", of+"chip to compile for, such as m4-pro")
	fs.IntVar(&s.context, "ctx"+suffix, 0, of+"positions of context (default: the smaller of 4096 and the model's)")
	fs.BoolVar(&s.noFuse, "no-fuse"+suffix, false, of+"one command for each operation")
	fs.BoolVar(&s.hidden, "hidden"+suffix, false, of+"add the program that keeps the last hidden state of every row")
	fs.StringVar(&s.kv, "kv"+suffix, "", of+kvUsage)
	fs.IntVar(&s.window, "kv-window"+suffix, 0, of+windowUsage)
	fs.IntVar(&s.sinks, "kv-sinks"+suffix, 0, of+sinksUsage)
	fs.BoolVar(&s.allLogits, "all-logits"+suffix, false, of+"add the program for the logits of every row")
	fs.BoolVar(&s.logProbs, "logprobs"+suffix, false, of+"add the programs that leave log-probabilities")
	fs.StringVar(&s.sampler, "sampler-order"+suffix, "", of+"stages of sampling: "+samplerOrders)
	fs.IntVar(&s.draft, "draft"+suffix, 0, of+"add the program that verifies drafts of `N` tokens")
}

func (s *tableSource) options() pianola.CompileOptions {
	return pianola.CompileOptions{
		Chip: s.chip, Context: s.context, NoFuse: s.noFuse, AllLogits: s.allLogits, Hidden: s.hidden, LogProbs: s.logProbs, Sampler: s.sampler, Draft: s.draft,
		KV: s.kv, KVSinks: s.sinks, KVWindow: s.window,
	}
}

func (s *tableSource) check(cmd *cobra.Command) error {
	return errors.Join(atLeast(cmd, 1, "ctx"+s.suffix, s.context), atLeast(cmd, 0, "draft"+s.suffix, s.draft))
}

// table returns the table of a model or a roll, which are told apart by their
// first bytes. It reads no weights.
func (s *tableSource) table(cmd *cobra.Command, path string) (*table.Table, error) {
	if err := s.check(cmd); err != nil {
		return nil, err
	}
	if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
		t, err := table.ReadFile(path)
		if !errors.Is(err, table.ErrMagic) {
			if err != nil {
				return nil, err
			}
			for _, name := range []string{"chip", "ctx", "no-fuse", "all-logits", "hidden", "logprobs", "sampler-order", "draft", "kv", "kv-sinks", "kv-window"} {
				if cmd.Flags().Changed(name + s.suffix) {
					return nil, usage(cmd, "--%s%s is for models, and %s is a roll, compiled already", name, s.suffix, path)
				}
			}
			return t, nil
		}
	}
	h, err := pianola.OpenHeader(path, nil)
	if err != nil {
		return nil, err
	}
	return h.Compile(s.options())
}
