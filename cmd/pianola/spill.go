package main

import (
	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
)

// spillFlags select where copies of KV pages are kept that the device has no room for.
type spillFlags struct {
	memory, file byteCount
	dir          string
}

func (f *spillFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.TextVar(&f.memory, "spill-memory", byteCount(0), "keep copies of KV pages that would be evicted in `BYTES`, such as 8G, of the host's memory")
	fs.StringVar(&f.dir, "spill-dir", "", "keep copies that --spill-memory has no room for in a file in `DIR`")
	fs.TextVar(&f.file, "spill-file", byteCount(0), "largest size of the file in --spill-dir in `BYTES`")
}

// options returns the options of the library.
func (f *spillFlags) options(cmd *cobra.Command) (pianola.SpillOptions, error) {
	if (f.dir == "") != (f.file == 0) {
		return pianola.SpillOptions{}, usage(cmd, "--spill-dir and --spill-file require each other")
	}
	return pianola.SpillOptions{Memory: uint64(f.memory), Dir: f.dir, File: uint64(f.file)}, nil
}
