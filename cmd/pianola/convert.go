package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola/internal/convert"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/quantize"
	"github.com/pianola-engine/pianola/internal/replacefile"
)

// writeFlags holds the flags of the commands that write a model.
type writeFlags struct {
	typ, out string
	threads  int
}

func (f *writeFlags) register(cmd *cobra.Command, typ, usage string) {
	fs := cmd.Flags()
	fs.StringVar(&f.typ, "type", typ, usage)
	fs.StringVarP(&f.out, "output", "o", "", "write the model to `FILE`")
	fs.IntVarP(&f.threads, "threads", "t", 0, "number of threads; 0 uses one per processor")
}

func (f *writeFlags) check(cmd *cobra.Command) error {
	if f.out == "" {
		return usage(cmd, "%s needs -o", cmd.Name())
	}
	return atLeast(cmd, 0, "threads", f.threads)
}

// write writes the model, shows the progress, and prints a summary. After an error there is no
// output file.
func (f *writeFlags) write(cmd *cobra.Command, m *convert.Model, types []dtype.Type, fileType uint32, what string) error {
	if m.Reads(f.out) {
		return fmt.Errorf("%s: the output %s is also the input", cmd.Name(), f.out)
	}
	size, err := m.Size(types)
	if err != nil {
		return err
	}
	start := time.Now()
	p := newProgress(cmd.ErrOrStderr(), "writing", true)
	defer p.finish()
	err = replacefile.Write(f.out, 0o644, func(w io.Writer) error {
		return m.Write(cmd.Context(), w, types, convert.WriteOptions{
			FileType: fileType, Threads: f.threads,
			Progress: func(done, total uint64) { p.set("writing", done, total) },
		})
	})
	if err != nil {
		return err
	}
	p.finish()
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s, %s, %.1f s\n", oneLine(f.out), what, byteSize(size), time.Since(start).Seconds())
	return err
}

// plainTypes are the types that convert can write.
var plainTypes = []string{"F32", "F16", "BF16"}

func newConvert() *cobra.Command {
	f := &writeFlags{}
	cmd := &cobra.Command{
		Use:   "convert DIR -o FILE.gguf",
		Short: "Write a Hugging Face directory as a GGUF file",
		Long: `Convert writes a model as a GGUF file that llama.cpp can read: tensors under their
GGUF names, settings and tokenizer. Matrices keep their type unless --type selects
another; norms and biases become F32. A setting or a tensor that GGUF cannot
express for the model's family is an error.`,
		Example: `  pianola convert testdata/gopher -o gopher.gguf
  pianola convert testdata/gopher --type BF16 -o gopher-bf16.gguf`,
		Args: exactly(1, "convert needs a DIR"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.convert(cmd, args[0]) },
	}
	f.register(cmd, "", "`TYPE` of the matrices: "+strings.Join(plainTypes, ", ")+" (default: the type in which each is stored)")
	return cmd
}

func (f *writeFlags) convert(cmd *cobra.Command, path string) (err error) {
	if err := f.check(cmd); err != nil {
		return err
	}
	mix, err := quantize.FindMix(f.typ)
	if f.typ != "" && (err != nil || mix.Base.Quantized()) {
		return usage(cmd, "--type %s: must be one of %s; use pianola quantize for other types", f.typ, strings.Join(plainTypes, ", "))
	}
	if path, err = modelPath(cmd, path); err != nil {
		return err
	}
	m, err := convert.Open(path)
	if err != nil {
		return err
	}
	defer closeAfter(&err, m)
	if !m.Converted() {
		return fmt.Errorf("convert: %s: already a GGUF file; pianola quantize changes its types", path)
	}
	types, what := m.Stored(), "types as stored"
	fileType := m.FileType(types)
	if mix != nil {
		if types, err = m.Types(mix, quantize.Options{}, false); err != nil {
			return err
		}
		fileType, what = mix.FileType, mix.Name
	}
	return f.write(cmd, m, types, fileType, what)
}
