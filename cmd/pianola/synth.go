package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola/internal/quantize"
	"github.com/pianola-engine/pianola/internal/synth"
)

type synthFlags struct {
	quant  string
	out    string
	seed   uint64
	layers uint32
	list   bool
}

func newSynth() *cobra.Command {
	f := &synthFlags{}
	cmd := &cobra.Command{
		Use:   "synth SHAPE --quant Q4_0 -o FILE.gguf",
		Short: "Write a model with the shape of a real one and random weights",
		Long: `Synth writes a GGUF file with the sizes, types and memory traffic of a published
model, and random weights. The same seed gives the same bytes.`,
		Example: `  pianola synth --list
  pianola synth gopher --quant Q4_0 -o gopher-random.gguf
  pianola synth gopher --layers 4 -o gopher-small.gguf`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.list {
				return exactly(0, "--list takes no SHAPE")(cmd, args)
			}
			return exactly(1, "synth needs a SHAPE")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.list {
				return listShapes(cmd)
			}
			return f.run(cmd, args[0])
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.quant, "quant", "Q4_0", "`TYPE` of the weights, such as Q4_0, Q8_0 or Q4_K_M; see --list")
	fs.StringVarP(&f.out, "output", "o", "", "write the model to `FILE`")
	fs.Uint64Var(&f.seed, "seed", 1, "seed of the random weights")
	fs.Uint32Var(&f.layers, "layers", 0, "write `N` layers (default: those of the shape)")
	fs.BoolVar(&f.list, "list", false, "list the shapes and the types, and write nothing")
	return cmd
}

func (f *synthFlags) run(cmd *cobra.Command, name string) error {
	if f.out == "" {
		return usage(cmd, "synth needs -o")
	}
	shape, ok := synth.FindShape(name)
	if !ok {
		return fmt.Errorf("synth: no shape %q; the shapes are %s", name, strings.Join(shapeNames(), ", "))
	}
	if f.layers > 0 {
		shape.Layers = f.layers
	}
	p := newProgress(cmd.ErrOrStderr(), "writing", true)
	defer p.finish()
	err := synth.WriteFile(cmd.Context(), f.out, shape, f.quant, f.seed, func(done, total uint64) { p.set("writing", done, total) })
	if err != nil {
		return err
	}
	size, err := synth.Size(shape, f.quant)
	if err != nil {
		return err
	}
	p.finish()
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s in %s, %s\n", oneLine(f.out), shape.Name, f.quant, byteSize(size))
	return nil
}

func shapeNames() []string {
	var names []string
	for _, s := range synth.Shapes() {
		names = append(names, s.Name)
	}
	return names
}

func listShapes(cmd *cobra.Command) error {
	tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "shape\tarchitecture\tlayers\twidth\tffn\theads\tkv heads\thead\tvocabulary\tcontext")
	for _, s := range synth.Shapes() {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n",
			s.Name, s.Arch, s.Layers, s.Hidden, s.FFN, s.Heads, s.KVHeads, s.HeadDim, s.Vocab, s.Context)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "\ntypes: %s\n", strings.Join(quantize.Mixes(), ", "))
	return err
}
