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
	chip     string
	chipFile string
	arch     archFiles
	flags    tableFlags
}

// register adds the flags for compiling to a command.
func (s *tableSource) register(cmd *cobra.Command, suffix string) {
	of := ""
	if suffix != "" {
		of = strings.ToUpper(suffix[1:]) + ": "
	}
	cmd.Flags().StringVar(&s.chip, "chip"+suffix, "cpu", of+"`CHIP` to compile for, such as m4-pro")
	cmd.Flags().StringVar(&s.chipFile, "chip-file"+suffix, "", of+"compile for the chip that `FILE` describes, as the files in chip/data do")
	s.arch.register(cmd, suffix, of)
	s.flags.register(cmd, suffix, of)
	s.flags.registerPrograms(cmd, of)
}

// options returns the options that the flags select.
func (s *tableSource) options(cmd *cobra.Command) (pianola.TableOptions, error) {
	o, err := s.flags.options(cmd)
	if err != nil || s.chipFile == "" {
		return o, err
	}
	if name := "chip" + s.flags.suffix; cmd.Flags().Changed(name) {
		return o, usage(cmd, "--%s and --chip-file%s exclude each other", name, s.flags.suffix)
	}
	o.Chip, err = readChip(s.chipFile)
	return o, err
}

// header reads the header of a model.
func (s *tableSource) header(cmd *cobra.Command, path string) (*pianola.Header, error) {
	files, err := s.arch.fs()
	if err != nil {
		return nil, err
	}
	if path, err = modelPath(cmd, path); err != nil {
		return nil, err
	}
	return pianola.OpenHeader(path, files)
}

// table returns the table of a model or a roll. The first bytes of the file distinguish them. It
// reads no weights.
func (s *tableSource) table(cmd *cobra.Command, path string) (*table.Table, error) {
	o, err := s.options(cmd)
	if err != nil {
		return nil, err
	}
	if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
		t, err := table.ReadFile(path)
		if !errors.Is(err, table.ErrMagic) {
			if err != nil {
				return nil, err
			}
			names := append([]string{"chip", "chip-file", "arch-file", "ctx", "hidden", "all-logits", "logprobs", "draft"}, tableFlagNames...)
			return t, s.flags.refuseRoll(cmd, names, fmt.Sprintf("requires a model; %s is a roll, which is compiled already", path))
		}
	}
	h, err := s.header(cmd, path)
	if err != nil {
		return nil, err
	}
	return h.Compile(s.chip, o)
}
