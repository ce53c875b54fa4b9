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

// Header is a model's configuration and tensor directory, without its weights. Use it to inspect
// a model or to compile a table on a machine that has neither the weights nor the device.
type Header struct {
	dir *weights.Directory
	cfg *arch.Config
}

// OpenHeader reads a model's metadata and tensor directory, and checks that the tensors are those
// that its architecture needs. path is as for Open. architectures adds architecture descriptors
// to the built-in ones, as Options.Architectures does; it may be nil. The error names the file, the
// setting or the tensor that is damaged, missing or not supported.
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

// Config returns the model's architecture. It must not be changed.
func (h *Header) Config() *arch.Config { return h.cfg }

// Directory returns the model's tensor directory: the metadata, and the names, types and shapes of
// the tensors.
func (h *Header) Directory() *weights.Directory { return h.dir }

// Tokenizer reads the model's tokenizer, as LoadTokenizer does.
func (h *Header) Tokenizer() (*Tokenizer, error) { return LoadTokenizer(h.dir) }

// StopIDs returns the token ids that end a generation, in ascending order. It reads the tokenizer;
// if there is none, it returns the ids in the model's configuration.
func (h *Header) StopIDs() []int32 {
	tok, err := loadTokenizer(h.dir)
	if err != nil {
		tok = nil
	}
	return stopIDs(h.cfg, tok)
}

// Compile compiles the model's dispatch table for a chip: "cpu", "h200", "m4-pro" or another of
// chip.Names; o.Chip replaces it. It reads no weights, and this machine need not have the chip. The table's Encode
// method returns it as a roll, which Options.Roll accepts. Compile validates the table, as a device
// does when it loads one. The error names an unknown chip, an option that the model does not
// support, or a limit of the chip that the model exceeds.
func (h *Header) Compile(chipName string, o TableOptions) (*table.Table, error) {
	in, err := h.input(chipName, o)
	if err != nil {
		return nil, err
	}
	t, err := compiler.Compile(in)
	if err != nil {
		return nil, err
	}
	if faults := t.Validate(); len(faults) > 0 {
		return nil, fmt.Errorf("pianola: the compiled table is invalid: %w", faults[0])
	}
	return t, nil
}

// DumpAfter compiles up to and including a compiler pass, one of compiler.PassNames, and writes
// the intermediate representation to w as text.
func (h *Header) DumpAfter(chipName string, o TableOptions, pass string, w io.Writer) error {
	in, err := h.input(chipName, o)
	if err != nil {
		return err
	}
	return compiler.DumpAfter(in, pass, w)
}

// input returns the compiler's input for a chip by its name.
func (h *Header) input(chipName string, o TableOptions) (compiler.Input, error) {
	if err := o.check(); err != nil {
		return compiler.Input{}, err
	}
	if o.Chip != nil {
		return h.inputFor(o.Chip, o), nil
	}
	c, err := chip.Lookup(chipName)
	return h.inputFor(c, o), err
}

// inputFor returns the compiler's input for a chip.
func (h *Header) inputFor(c *chip.Chip, o TableOptions) compiler.Input {
	return compiler.Input{Config: h.cfg, Tensors: h.dir, Chip: c, Options: o.compiler()}
}

// tableFor compiles the model's table for a device, or decodes the roll.
func (h *Header) tableFor(on *target, o Options) (*table.Table, error) {
	if o.Roll != nil {
		return h.loadRoll(o, on.chip)
	}
	return compiler.Compile(h.inputFor(on.chip, o.Table))
}

// RollError reports a roll that was compiled from another model, for another chip, or with
// options that contradict Options.Table.
type RollError struct {
	Option string // the field of TableOptions that contradicts the roll, or ""
	Why    string // the reason, in words
}

// Error implements error.
func (e *RollError) Error() string { return "pianola: roll refused: " + e.Why }

// loadRoll decodes a roll and checks that model, chip and options agree with it.
func (h *Header) loadRoll(o Options, c *chip.Chip) (*table.Table, error) {
	t, err := table.Decode(o.Roll)
	if err != nil {
		return nil, err
	}
	if t.Header.ModelFP != compiler.Fingerprint(h.cfg, h.dir) {
		return nil, &RollError{Why: fmt.Sprintf("it was compiled from model %q (%s), which has other tensors or another configuration", t.Header.Model, t.Header.Arch)}
	}
	if own := o.Table.Chip; own != nil && t.Header.ChipFP != own.Fingerprint() {
		return nil, &RollError{Option: "Chip", Why: fmt.Sprintf("it was compiled with Chip %s or with other data of it, not %s", t.Header.Chip, own.Name)}
	}
	if !o.AnyChip && t.Header.ChipFP != c.Fingerprint() {
		return nil, &RollError{Why: fmt.Sprintf("it was compiled for chip %s or for other data of that chip; this device is chip %s", t.Header.Chip, c.Name)}
	}
	if err := o.Table.agreesWith(t); err != nil {
		return nil, err
	}
	return t, nil
}

// maxTokenizerFile bounds the size of a tokenizer file. The largest known have 35 MB.
const maxTokenizerFile = 256 << 20

// LoadTokenizer reads a model's tokenizer from GGUF metadata, from tokenizer.json, or from
// SentencePiece's tokenizer.model. The model's architecture may be unknown. The error describes
// what is wrong with the tokenizer; it wraps fs.ErrNotExist if a directory has no tokenizer. If a
// model is open, Model.Tokenizer returns its tokenizer.
func LoadTokenizer(dir *weights.Directory) (*Tokenizer, error) {
	t, err := loadTokenizer(dir)
	if err != nil {
		return nil, err
	}
	return &Tokenizer{t}, nil
}

func loadTokenizer(dir *weights.Directory) (*tokenizer.Tokenizer, error) {
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

// Tokenizer converts text to token ids and back. It may be used by several goroutines at once.
type Tokenizer struct{ t *tokenizer.Tokenizer }

// EncodeOptions are the settings of Tokenizer.Encode.
type EncodeOptions struct {
	// AddSpecial adds the special tokens that the model expects around a text, such as BOS.
	AddSpecial bool
	// ParseSpecial encodes the names of special tokens in the text, such as "<|eot_id|>",
	// as these tokens. Leave it false for text that users supply.
	ParseSpecial bool
	// Plain lists ranges of bytes of the text, from a first one to before a second one, in ascending
	// order. No byte in them is part of a special token: with ParseSpecial, these are the parts of a
	// text that come from users.
	Plain [][2]int
}

// Encode returns the token ids of text, which need not be valid UTF-8. It returns an error if
// the text has more than 2^29 bytes or contains something that the vocabulary cannot express.
func (t *Tokenizer) Encode(text string, o EncodeOptions) ([]int32, error) {
	return t.t.Encode(text, tokenizer.EncodeOptions(o))
}

// Decode returns the text of ids. Special tokens and unknown ids add no text.
func (t *Tokenizer) Decode(ids []int32) string { return t.t.Decode(ids) }

// NewDecoder returns a Decoder for tokens that continue a text, such as those that Session.Chain
// returns.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{t.t.NewContinuation()} }

// Decoder converts a stream of token ids to text, one at a time. One goroutine at a time may use
// it.
type Decoder struct{ d *tokenizer.Decoder }

// Next returns the text that a token adds. The text is valid UTF-8: a character whose bytes are
// spread over several tokens is returned with the last of them. Next returns an error for an id
// that the vocabulary does not use.
func (d *Decoder) Next(id int32) (string, error) { return d.d.Next(id) }

// Flush returns U+FFFD if the tokens so far end within a character, and "" otherwise.
func (d *Decoder) Flush() string { return d.d.Flush() }

// Size returns the number of token ids. Some of them may be unused.
func (t *Tokenizer) Size() int { return t.t.Size() }

// Token returns the token of an id as the vocabulary spells it. ok is false for an unused id.
func (t *Tokenizer) Token(id int32) (token string, ok bool) { return t.t.Token(id) }

// ID returns the id of a token that is spelled as in the vocabulary.
func (t *Tokenizer) ID(token string) (id int32, ok bool) { return t.t.ID(token) }

// Special reports whether an id is a special token, such as BOS. Special tokens add no text.
func (t *Tokenizer) Special(id int32) bool { return t.t.Special(id) }

// BOS returns the id of the beginning-of-sequence token, if the model has one.
func (t *Tokenizer) BOS() (id int32, ok bool) { return t.t.BOS() }

// EOS returns the id of the end-of-sequence token, if the model has one.
func (t *Tokenizer) EOS() (id int32, ok bool) { return t.t.EOS() }

// AddBOS reports whether the model expects BOS at the beginning of a context.
func (t *Tokenizer) AddBOS() bool { return t.t.AddBOS() }
