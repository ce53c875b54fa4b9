package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/table"
)

type compileFlags struct {
	source tableSource
	out    string
	pass   string
	list   bool
}

func newCompile() *cobra.Command {
	f := &compileFlags{}
	cmd := &cobra.Command{
		Use:   "compile MODEL -o FILE.roll",
		Short: "Compile a model's dispatch table to a roll file",
		Long: `Compile compiles a model's dispatch table and writes it as a roll file. The chip
may be another than this machine's, also one that a file describes. Compile reads the
model's header but no weights.`,
		Example: `  pianola compile testdata/gopher-q8_0.gguf -o gopher.roll
  pianola compile testdata/gopher-q8_0.gguf --chip m4-pro --dump-after fuse-qkv`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.list {
				return exactly(0, "--list-passes takes no MODEL")(cmd, args)
			}
			return exactly(1, "compile needs a MODEL")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.list {
				fmt.Fprintln(cmd.OutOrStdout(), strings.Join(compiler.PassNames(), "\n"))
				return nil
			}
			return f.run(cmd, args[0])
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.out, "output", "o", "", "write the roll to `FILE`")
	fs.StringVar(&f.pass, "dump-after", "", "print the intermediate representation after compiler pass `PASS`; see --list-passes")
	fs.BoolVar(&f.list, "list-passes", false, "print the names of the compiler passes in order")
	f.source.register(cmd, "")
	return cmd
}

func (f *compileFlags) run(cmd *cobra.Command, path string) error {
	if f.out == "" && f.pass == "" {
		return usage(cmd, "compile needs -o or --dump-after")
	}
	o, err := f.source.options(cmd)
	if err != nil {
		return err
	}
	h, err := f.source.header(cmd, path)
	if err != nil {
		return err
	}
	if f.pass != "" {
		if err := h.DumpAfter(f.source.chip, o, f.pass, cmd.OutOrStdout()); err != nil {
			return err
		}
	}
	if f.out == "" {
		return nil
	}
	start := time.Now()
	t, err := h.Compile(f.source.chip, o)
	if err != nil {
		return err
	}
	took := time.Since(start)
	if err := t.WriteFile(f.out); err != nil {
		return err
	}
	summary, err := summarise(t)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s, compiled for %s in %s ms\n",
		oneLine(f.out), summary, t.Header.Chip, figure(milliseconds(took)))
	return nil
}

// summarise returns one line with a table's sizes.
func summarise(t *table.Table) (string, error) {
	programs := make([]string, len(t.Programs))
	for i, p := range t.Programs {
		programs[i] = fmt.Sprintf("%s %d", oneLine(p.Name), p.Count)
	}
	var weights uint64
	for _, s := range t.Slots {
		if s.Kind == table.SlotWeight {
			weights += s.Size
		}
	}
	roll, err := t.Encode()
	if err != nil {
		return "", errors.Join(errors.New("the table cannot be encoded"), err)
	}
	return fmt.Sprintf("%d commands (%s), %d slots, context %d, weights %s, roll %s",
		len(t.Cmds), strings.Join(programs, ", "), len(t.Slots), t.Header.Context,
		byteSize(weights), byteSize(uint64(len(roll)))), nil
}
