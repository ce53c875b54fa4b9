package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola/table"
)

func newCheck() *cobra.Command {
	var source tableSource
	cmd := &cobra.Command{
		Use:   "check FILE.roll",
		Short: "Validate a table",
		Long: `Check tests a roll, or the table compiled from a model, against the invariants
of tables: kernels, bindings, parameters, patches, uploads and barriers. It prints
one line per fault. The exit status is 1 if there is a fault.`,
		Example: `  pianola compile testdata/gopher-q8_0.gguf -o gopher.roll
  pianola check gopher.roll`,
		Args: exactly(1, "check needs a roll or a MODEL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := source.table(cmd, args[0])
			if err != nil {
				return notARoll(args[0], err)
			}
			faults := t.Validate()
			for _, f := range faults {
				fmt.Fprintln(cmd.OutOrStdout(), oneLine(f.Error()))
			}
			if len(faults) > 0 {
				return fmt.Errorf("check: %s: %d faults", args[0], len(faults))
			}
			summary, err := summarise(t)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: no faults: %s\n", oneLine(args[0]), summary)
			return nil
		},
	}
	source.register(cmd, "")
	return cmd
}

// notARoll extends err, the error of opening a file as a model, if the file is not a roll either.
func notARoll(path string, err error) error {
	st, statErr := os.Stat(path)
	if statErr != nil || !st.Mode().IsRegular() {
		return err
	}
	if _, rollErr := table.ReadFile(path); errors.Is(rollErr, table.ErrMagic) {
		return fmt.Errorf("%w, and the file is %w", err, table.ErrMagic)
	}
	return err
}
