package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola/table"
)

type dumpFlags struct {
	source tableSource
	rng    string
	grep   string
	json   bool
}

func newDump() *cobra.Command {
	f := &dumpFlags{}
	cmd := &cobra.Command{
		Use:   "dump MODEL|FILE.roll",
		Short: "Print a table as text",
		Long: `Dump prints the slots of a table, then one line for each command: index, label,
kernel, bindings, parameters, grid, threadgroup, patch; | marks a barrier.`,
		Example: `  pianola dump testdata/gopher-q8_0.gguf --grep attn
  pianola dump testdata/gopher-q8_0.gguf --chip m4-pro --range 0:16`,
		Args: exactly(1, "dump needs a MODEL or a roll"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.rng, "range", "", "print only commands `A:B`, from A to B - 1")
	fs.StringVar(&f.grep, "grep", "", "print only commands whose line contains `TEXT`")
	fs.BoolVar(&f.json, "json", false, "print one JSON object")
	f.source.register(cmd, "")
	return cmd
}

func (f *dumpFlags) run(cmd *cobra.Command, path string) error {
	first, last, err := f.commands(cmd)
	if err != nil {
		return err
	}
	t, err := f.source.table(cmd, path)
	if err != nil {
		return err
	}
	o := table.DumpOptions{Grep: f.grep}
	if f.rng != "" {
		if first >= len(t.Cmds) {
			return fmt.Errorf("--range %s: the table has %d commands", f.rng, len(t.Cmds))
		}
		o.First, o.Last = first, min(last, len(t.Cmds))
	}
	if f.json {
		return t.DumpJSON(cmd.OutOrStdout(), o)
	}
	return t.Dump(cmd.OutOrStdout(), o)
}

// commands parses --range: A:B, A:, :B or A alone.
func (f *dumpFlags) commands(cmd *cobra.Command) (first, last int, err error) {
	if !cmd.Flags().Changed("range") {
		return 0, 0, nil
	}
	from, to, both := strings.Cut(f.rng, ":")
	first, last = 0, table.MaxCmds
	if from != "" || !both {
		if first, err = strconv.Atoi(from); err != nil {
			return 0, 0, usage(cmd, "--range %q is not A:B", f.rng)
		}
	}
	switch {
	case !both:
		last = first + 1
	case to != "":
		if last, err = strconv.Atoi(to); err != nil {
			return 0, 0, usage(cmd, "--range %q is not A:B", f.rng)
		}
	}
	if first < 0 || last <= first {
		return 0, 0, fmt.Errorf("--range %s: the range contains no commands", f.rng)
	}
	return first, last, nil
}
