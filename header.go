package pianola

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/tokenizer"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// Header is what a model's files say of it, without its weights.
type Header struct {
	dir *weights.Directory
	cfg *arch.Config
}

// OpenHeader reads a model's metadata and tensor directory and checks that the
// tensors are those that its architecture needs. architectures adds
// descriptors to the built-in ones; it may be nil.
func OpenHeader(path string, architectures fs.FS) (*Header, error) {
	dir, err := weights.OpenDirectory(path)
	if err != nil {
		return nil, err
	}
	set := arch.Builtin()
	if architectures != nil {
		if set, err = set.With(architectures); err != nil {
			return nil, err
		}
	}
	cfg, err := set.Read(dir)
	if err != nil {
		return nil, err
	}
	if bad := dir.Unsupported(); len(bad) > 0 {
		return nil, bad[0]
	}
	if err := cfg.Check(dir); err != nil {
		return nil, err
	}
	return &Header{dir, cfg}, nil
}

// Config returns the model's architecture.
func (h *Header) Config() *arch.Config { return h.cfg }

// Directory returns the tensor directory.
func (h *Header) Directory() *weights.Directory { return h.dir }

// Tokenizer reads the model's tokenizer.
func (h *Header) Tokenizer() (*tokenizer.Tokenizer, error) { return LoadTokenizer(h.dir) }

// StopIDs returns the token ids that end a generation.
func (h *Header) StopIDs() []int32 {
	tok, err := LoadTokenizer(h.dir)
	if err != nil {
		tok = nil
	}
	return stopIDs(h.cfg, tok)
}

// CompileOptions say what a table is compiled for.
type CompileOptions struct {
	Chip      string // "" is "cpu"; see chip.Names
	Context   int    // positions; 0: the smaller of 4096 and the model's, or LongRoPE's short one
	NoFuse    bool
	NoRepack  bool
	AllLogits bool
	Hidden    bool
	LogProbs  bool
	Sampler   string // the order of the sampler's stages, see Options
	Draft     int    // tokens of a draft, see Options
	KV        string // what the KV cache has: "f16" or "", "q8_0"

	KVSinks, KVWindow int // see Options
}

// Compile returns the model's table for a chip, which need not be here. It
// reads no weights.
func (h *Header) Compile(o CompileOptions) (*table.Table, error) {
	return compile(h.cfg, h.dir, o)
}

// DumpAfter compiles as far as a pass and writes what it leaves as text.
func (h *Header) DumpAfter(o CompileOptions, pass string, w io.Writer) error {
	in, err := compilerInput(h.cfg, h.dir, o)
	if err != nil {
		return err
	}
	return compiler.DumpAfter(in, pass, w)
}

func compilerInput(cfg *arch.Config, dir *weights.Directory, o CompileOptions) (compiler.Input, error) {
	if o.Chip == "" {
		o.Chip = "cpu"
	}
	c, err := chip.Lookup(o.Chip)
	if err != nil {
		return compiler.Input{}, err
	}
	return inputFor(cfg, dir, c, o), nil
}

// inputFor is the compiler's input for a chip that o does not name.
func inputFor(cfg *arch.Config, dir *weights.Directory, c *chip.Chip, o CompileOptions) compiler.Input {
	return compiler.Input{
		Config: cfg, Tensors: dir, Chip: c,
		Options: compiler.Options{
			Context: o.Context, NoFuse: o.NoFuse, NoRepack: o.NoRepack, AllLogits: o.AllLogits, Hidden: o.Hidden, LogProbs: o.LogProbs,
			Sampler: o.Sampler, Draft: o.Draft, KV: o.KV, KVSinks: o.KVSinks, KVWindow: o.KVWindow,
		},
	}
}

func compile(cfg *arch.Config, dir *weights.Directory, o CompileOptions) (*table.Table, error) {
	in, err := compilerInput(cfg, dir, o)
	if err != nil {
		return nil, err
	}
	return compiler.Compile(in)
}

// RollError says why a roll is refused.
type RollError struct{ What string }

// Error implements error.
func (e *RollError) Error() string { return "pianola: the roll is refused: " + e.What }

// loadRoll decodes a roll and checks that it is of the model and the chip.
func loadRoll(o Options, cfg *arch.Config, dir *weights.Directory, c *chip.Chip) (*table.Table, error) {
	t, err := table.Decode(o.Roll)
	if err != nil {
		return nil, err
	}
	if t.Header.ModelFP != compiler.Fingerprint(cfg, dir) {
		return nil, &RollError{fmt.Sprintf("it was compiled from a model %q (%s) with other tensors or another configuration", t.Header.Model, t.Header.Arch)}
	}
	if !o.AnyChip && t.Header.ChipFP != c.Fingerprint() {
		return nil, &RollError{fmt.Sprintf("it was compiled for chip %s, or for other data of it, and this is chip %s", t.Header.Chip, c.Name)}
	}
	if o.Context != 0 && o.Context != int(t.Header.Context) {
		return nil, &RollError{fmt.Sprintf("it was compiled for a context of %d, not %d", t.Header.Context, o.Context)}
	}
	if o.AllLogits && t.Header.LogitsRows == 0 {
		return nil, &RollError{"it was compiled without the program for the logits of every row"}
	}
	if _, _, ok := t.Program(table.ProgramHidden); o.Hidden && !ok {
		return nil, &RollError{"it was compiled without the program for the hidden states of every row"}
	}
	if _, _, ok := t.Program(table.ProgramRanked); o.LogProbs && !ok {
		return nil, &RollError{"it was compiled without the programs for log-probabilities"}
	}
	draft := 0
	if p, _, ok := t.Program(table.ProgramVerify); ok {
		draft = int(p.MaxRows) - 1
	}
	if o.Draft != 0 && o.Draft != draft {
		return nil, &RollError{fmt.Sprintf("it was compiled for drafts of %d tokens, not %d", draft, o.Draft)}
	}
	return t, nil
}

// maxTokenizerFile bounds a tokenizer's file, of which the largest known have
// 35 MB.
const maxTokenizerFile = 256 << 20

// LoadTokenizer reads a model's tokenizer, from GGUF metadata, from
// tokenizer.json or from SentencePiece's tokenizer.model, whether or not its
// architecture is one that Open knows.
func LoadTokenizer(dir *weights.Directory) (*tokenizer.Tokenizer, error) {
	if dir.Format() == weights.GGUF {
		return tokenizer.FromGGUF(dir)
	}
	root := dir.Path()
	if st, err := os.Stat(root); err == nil && !st.IsDir() {
		root = filepath.Dir(root)
	}
	config, err := readBounded(filepath.Join(root, "tokenizer_config.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	file, err := readBounded(filepath.Join(root, "tokenizer.json"))
	if err == nil {
		return tokenizer.FromJSON(file, config)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if model, err := readBounded(filepath.Join(root, "tokenizer.model")); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return nil, err
			}
			return tokenizer.FromSentencePiece(model, config)
		}
	}
	return nil, err
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	n, err := b.ReadFrom(io.LimitReader(f, maxTokenizerFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if n > maxTokenizerFile {
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxTokenizerFile)
	}
	return b.Bytes(), nil
}
