package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola/internal/convert"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/quantize"
)

type quantizeFlags struct {
	writeFlags
	embedding, output string
	pure, again, dry  bool
}

func newQuantize() *cobra.Command {
	f := &quantizeFlags{}
	cmd := &cobra.Command{
		Use:   "quantize MODEL --type Q4_K_M -o FILE.gguf",
		Short: "Write a model with quantized weights",
		Long: `Quantize writes a GGUF file or a Hugging Face directory as a GGUF file in another
type. llama.cpp can read the file too. A type such as Q4_K_M is a mix: as in
llama.cpp, matrices that affect the output more get more bits. A matrix whose row
length is not a multiple of the type's block gets the nearest type that fits.
Quantize needs a few megabytes of memory per thread, whatever the model's size.

Types: ` + strings.Join(quantize.Mixes(), ", "),
		Example: `  pianola quantize testdata/gopher --type Q4_K_M -o gopher-q4_k_m.gguf
  pianola quantize testdata/gopher --type Q2_K --token-embedding-type Q8_0 -o gopher-q2_k.gguf
  pianola quantize testdata/gopher --type Q4_K_M --dry-run`,
		Args: exactly(1, "quantize needs a MODEL"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	f.register(cmd, "Q4_K_M", "`TYPE` of the weights")
	fs := cmd.Flags()
	fs.StringVar(&f.embedding, "token-embedding-type", "", "`TYPE` of the token embedding")
	fs.StringVar(&f.output, "output-tensor-type", "", "`TYPE` of the output matrix")
	fs.BoolVar(&f.pure, "pure", false, "use one type for all matrices instead of a mix")
	fs.BoolVar(&f.again, "allow-requantize", false, "accept input that is already quantized; the result loses precision")
	fs.BoolVar(&f.dry, "dry-run", false, "print each tensor's type and write no file")
	return cmd
}

func (f *quantizeFlags) run(cmd *cobra.Command, path string) (err error) {
	if !f.dry {
		if err := f.check(cmd); err != nil {
			return err
		}
	}
	mix, err := quantize.FindMix(f.typ)
	if err != nil {
		return usage(cmd, "--type %s: must be one of %s", f.typ, strings.Join(quantize.Mixes(), ", "))
	}
	o := quantize.Options{Pure: f.pure}
	if o.Embedding, err = matrixType(cmd, "token-embedding-type", f.embedding); err != nil {
		return err
	}
	if o.Output, err = matrixType(cmd, "output-tensor-type", f.output); err != nil {
		return err
	}
	if path, err = modelPath(cmd, path); err != nil {
		return err
	}
	m, err := convert.Open(path)
	if err != nil {
		return err
	}
	defer closeAfter(&err, m)
	types, err := m.Types(mix, o, f.again)
	if err != nil {
		return fmt.Errorf("%w; --allow-requantize quantizes them again with a loss of precision", err)
	}
	if f.dry {
		return f.list(cmd, m, types)
	}
	return f.write(cmd, m, types, mix.FileType, mix.Name)
}

// matrixType returns the type called name, the value of a flag, or Invalid for "".
func matrixType(cmd *cobra.Command, flag, name string) (dtype.Type, error) {
	if name == "" {
		return dtype.Invalid, nil
	}
	t, err := dtype.Parse(name)
	if err != nil || !quantize.Can(t) {
		return dtype.Invalid, usage(cmd, "--%s %s: not a type that can be written", flag, name)
	}
	return t, nil
}

// list prints the types of the tensors and the size of the file without writing it.
func (f *quantizeFlags) list(cmd *cobra.Command, m *convert.Model, types []dtype.Type) error {
	size, err := m.Size(types)
	if err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	for i, t := range m.Tensors {
		if _, err := fmt.Fprintf(w, "%-32s %-16s %s -> %s\n", oneLine(t.Name), fmt.Sprint(t.Shape), t.Type, types[i]); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(w, "%s\n", byteSize(size))
	return err
}
