package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola/table"
)

// Exit statuses of diff, as of diff(1).
const (
	statusDifferent  = 1
	statusIncomplete = 2
)

type diffFlags struct {
	a, b tableSource
	json bool
}

func newDiff() *cobra.Command {
	f := &diffFlags{}
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare two tables",
		Long: `Diff compares two tables, each of a model or a roll, command by command, by label.
A line begins with - for a command that only A has, + for one that only B has, ~
for a changed command and > for one whose scratch memory moved.
The exit status is 0 if the tables are equal, 1 if they differ, 2 on an error.`,
		Example: `  pianola diff testdata/gopher-q8_0.gguf testdata/gopher-q8_0.gguf --no-fuse-b
  pianola diff gopher.roll testdata/gopher-q8_0.gguf --chip-b m4-pro`,
		Args: exactly(2, "diff needs two models or rolls"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			// Exit status 1 means a difference, so a panic must end with another status.
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("internal error: %v", p)
				}
				if _, ok := err.(*statusError); err != nil && !ok {
					err = &statusError{statusIncomplete, err}
				}
			}()
			return f.run(cmd, args[0], args[1])
		},
	}
	f.a.register(cmd, "-a")
	f.b.register(cmd, "-b")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object")
	return cmd
}

func (f *diffFlags) run(cmd *cobra.Command, pathA, pathB string) error {
	a, err := f.a.table(cmd, pathA)
	if err != nil {
		return err
	}
	b, err := f.b.table(cmd, pathB)
	if err != nil {
		return err
	}
	diffs := table.Diff(a, b)
	if f.json {
		err = writeJSON(cmd.OutOrStdout(), diffResult(diffs))
	} else {
		err = table.WriteDiff(cmd.OutOrStdout(), diffs)
	}
	if err != nil {
		return err
	}
	if len(diffs) > 0 {
		return &statusError{status: statusDifferent}
	}
	return nil
}

// difference is a difference found by table.Diff, as JSON.
type difference struct {
	Where   string   `json:"where"`
	Kind    string   `json:"kind"`
	Changes []change `json:"changes"`
}

type change struct {
	Field string `json:"field"`
	A     string `json:"a"`
	B     string `json:"b"`
}

func diffResult(diffs []table.Difference) any {
	list := make([]difference, len(diffs))
	for i, d := range diffs {
		list[i] = difference{d.Where, d.Kind.String(), make([]change, len(d.What))}
		for j, c := range d.What {
			list[i].Changes[j] = change(c)
		}
	}
	return struct {
		Same        bool         `json:"same"`
		Differences []difference `json:"differences"`
	}{len(list) == 0, list}
}
