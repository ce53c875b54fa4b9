package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/table"
)

// tableSource is the source of a table: a model to compile, or a roll.
type tableSource struct {
	chip  string
	flags tableFlags
}

// register adds the flags for compiling to a command.
func (s *tableSource) register(cmd *cobra.Command, suffix string) {
	of := ""
	if suffix != "" {
		of = strings.ToUpper(suffix[1:]) + ": "
	}
	cmd.Flags().StringVar(&s.chip, "chip"+suffix, "cpu", of+"`CHIP` to compile for, such as m4-pro")
	s.flags.register(cmd, suffix, of)
	s.flags.registerPrograms(cmd, of)
}

// table returns the table of a model or a roll. The first bytes of the file distinguish them. It
// reads no weights.
func (s *tableSource) table(cmd *cobra.Command, path string) (*table.Table, error) {
	o, err := s.flags.options(cmd)
	if err != nil {
		return nil, err
	}
	if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
		t, err := table.ReadFile(path)
		if !errors.Is(err, table.ErrMagic) {
			if err != nil {
				return nil, err
			}
			names := append([]string{"chip", "ctx", "hidden", "all-logits", "logprobs", "draft"}, tableFlagNames...)
			return t, s.flags.refuseRoll(cmd, names, fmt.Sprintf("requires a model; %s is a roll, which is compiled already", path))
		}
	}
	path, err = modelPath(cmd, path)
	if err != nil {
		return nil, err
	}
	h, err := pianola.OpenHeader(path, nil)
	if err != nil {
		return nil, err
	}
	return h.Compile(s.chip, o)
}
