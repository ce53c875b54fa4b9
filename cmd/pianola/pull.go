package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
)

func newPull() *cobra.Command {
	var revision string
	cmd := &cobra.Command{
		Use:   "pull ID",
		Short: "Download a model from the Hugging Face Hub",
		Long: `Pull downloads a model into the cache that Hugging Face's tools share, or brings it up to
date, and prints its local path. ID is org/name[:QUANT][@revision]; QUANT is a quantization
such as Q4_K_M or a file name. Every other command accepts an ID in place of MODEL, too,
and uses the cache without the network if it has the model. docs/HUB.md describes the
environment variables: HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE.`,
		Example: "  pianola pull ggml-org/gemma-3-1b-it-GGUF:Q4_K_M",
		Args:    exactly(1, "pull needs an ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := args[0]
			if cmd.Flags().Changed("revision") {
				if strings.Contains(id, "@") {
					return usage(cmd, "--revision and %s exclude each other", id)
				}
				id += "@" + revision
			}
			o, done := hubOptions(cmd)
			path, err := pianola.Pull(cmd.Context(), id, o)
			if done(); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), path)
			return err
		},
	}
	cmd.Flags().StringVar(&revision, "revision", "", "`BRANCH`, tag or commit (default: main)")
	return cmd
}

// hubOptions returns the options for the hub, which show a progress bar. done removes the bar.
func hubOptions(cmd *cobra.Command) (o pianola.HubOptions, done func()) {
	p := newProgress(cmd.ErrOrStderr(), "downloading", true)
	events := func(e pianola.Event) {
		if e.Note != "" {
			p.note(e.Note)
		}
		p.set(string(e.Stage), e.Done, e.Total)
	}
	return pianola.HubOptions{Events: events}, p.finish
}

// modelPath returns the local path of a MODEL on the command line. It downloads a model of the hub
// that is not in the cache.
func modelPath(cmd *cobra.Command, model string) (string, error) {
	o, done := hubOptions(cmd)
	defer done()
	return pianola.Resolve(cmd.Context(), model, o)
}
