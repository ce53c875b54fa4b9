package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

func newInfo() *cobra.Command {
	asJSON, check, kv := false, false, pianola.KVF16
	var files archFiles
	cmd := &cobra.Command{
		Use:   "info MODEL",
		Short: "Describe a model: sizes, types, tokenizer, context",
		Long: `Info reads the header of a model but no weights. For a model that this program
cannot run, it prints the known part and the reason.`,
		Example: "  pianola info testdata/gopher-q8_0.gguf",
		Args:    exactly(1, "info needs a MODEL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := modelPath(cmd, args[0])
			if err != nil {
				return err
			}
			added, err := files.fs()
			if err != nil {
				return err
			}
			res, err := inspect(path, added, kv)
			if err != nil {
				return err
			}
			if check {
				if res.NotFinite, err = checkFile(cmd, path); err != nil {
					return err
				}
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), res)
			} else {
				err = res.write(cmd.OutOrStdout())
			}
			if err == nil && len(res.NotFinite) > 0 {
				err = &weights.NotFiniteError{Path: path, Tensors: res.NotFinite}
			}
			return err
		},
	}
	cmd.Flags().TextVar(&kv, "kv", pianola.KVF16, "element `TYPE` of the KV cache: f16 or q8_0")
	files.register(cmd, "", "")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().BoolVar(&check, "check-weights", false, checkUsage)
	return cmd
}

// checkFile reads the weights of a model and returns the tensors with values that are NaN or
// infinite.
func checkFile(cmd *cobra.Command, path string) ([]weights.NotFinite, error) {
	dir, err := weights.OpenDirectory(path)
	if err != nil {
		return nil, err
	}
	m, err := dir.Map()
	if err != nil {
		return nil, err
	}
	p := newProgress(cmd.ErrOrStderr(), "checking", true)
	bad, err := m.Check(cmd.Context(), 0, func(done, total uint64) { p.set("checking", done, total) })
	p.finish()
	return bad, errors.Join(err, m.Close())
}

// infoResult is the description of a model, taken from its headers.
type infoResult struct {
	Path         string        `json:"path"`
	Format       string        `json:"format"`
	Files        int           `json:"files"`
	Bytes        uint64        `json:"bytes"` // of all files
	Name         string        `json:"name"`
	Architecture string        `json:"architecture"`
	Supported    bool          `json:"supported"`
	Why          string        `json:"why,omitempty"`         // the reason if it is not supported
	Unsupported  []string      `json:"unsupported,omitempty"` // keys and tensors
	Parameters   uint64        `json:"parameters"`
	Tensors      int           `json:"tensors"`
	Types        []infoType    `json:"types"` // the type with the most bytes first
	Tokenizer    infoTokenizer `json:"tokenizer"`
	Model        *infoModel    `json:"model,omitempty"` // of a supported architecture

	NotFinite []weights.NotFinite `json:"not_finite,omitempty"` // with --check-weights
}

// infoType is the tensors of one type.
type infoType struct {
	Type       string `json:"type"`
	Known      bool   `json:"known"` // this program supports the type
	Tensors    int    `json:"tensors"`
	Parameters uint64 `json:"parameters"`
	Bytes      uint64 `json:"bytes"`
}

type infoTokenizer struct {
	Kind   string `json:"kind,omitempty"`
	Why    string `json:"why,omitempty"` // the reason if no tokenizer can be used
	Size   int    `json:"size"`
	BOS    *token `json:"bos"`
	EOS    *token `json:"eos"`
	AddBOS bool   `json:"add_bos"`
}

type token struct {
	ID   int32  `json:"id"`
	Text string `json:"text"`
}

// infoModel is the part of the description that needs a supported architecture.
type infoModel struct {
	Layers     int          `json:"layers"`
	Width      int          `json:"width"`
	FF         int          `json:"ffn"`
	Heads      int          `json:"heads"`
	KVHeads    int          `json:"kv_heads"`
	Latent     int          `json:"latent,omitempty"` // elements of a latent; 0 without latent attention
	Mixers     []string     `json:"mixers,omitempty"` // block of each layer, if some have recurrent state instead of attention
	Experts    *infoExperts `json:"experts,omitempty"`
	HeadDim    int          `json:"head_dim"`
	Vocab      int          `json:"vocab"`
	Context    int          `json:"context"`
	Eps        float32      `json:"eps"`
	Activation string       `json:"activation"`
	TiedHead   bool         `json:"tied_head"`
	QKNorm     bool         `json:"qk_norm"`
	Biases     []string     `json:"biases"`
	RopeLayout string       `json:"rope_layout"`
	Ropes      []infoRope   `json:"ropes"`
	Windows    []int        `json:"windows"`             // window of each layer; 0 means all positions
	KVBytes    uint64       `json:"kv_bytes"`            // bytes per position, all layers, with the element type of --kv
	StopIDs    []token      `json:"stop_ids"`            // with their text if the tokenizer has one
	Commands   int          `json:"commands"`            // commands per token on the CPU
	TableWhy   string       `json:"table_why,omitempty"` // the reason if no table can be compiled
}

type infoRope struct {
	Kind string  `json:"kind"`
	Base float64 `json:"base"`
	Dim  int     `json:"dim"`
}

// inspect reads a model's headers. An unknown architecture is not an error; a malformed file is.
func inspect(path string, added fs.FS, kv pianola.KVType) (*infoResult, error) {
	dir, err := weights.OpenDirectory(path)
	if err != nil {
		return nil, err
	}
	res := &infoResult{Path: path, Format: dir.Kind(), Files: len(dir.Files()), Tensors: len(dir.Tensors()), Types: []infoType{}}
	for _, f := range dir.Files() {
		res.Bytes += f.Size
	}
	res.addTypes(dir)
	tok, tokErr := pianola.LoadTokenizer(dir)
	text := func(id int32) token {
		t := token{ID: id}
		if tok != nil {
			t.Text, _ = tok.Token(id)
		}
		return t
	}
	res.Tokenizer.Kind = tokenizerKind(dir)
	if tokErr != nil {
		tok = nil
		res.Tokenizer.Why = oneLine(tokErr.Error())
	} else {
		res.Tokenizer.Size, res.Tokenizer.AddBOS = tok.Size(), tok.AddBOS()
		if id, ok := tok.BOS(); ok {
			t := text(id)
			res.Tokenizer.BOS = &t
		}
		if id, ok := tok.EOS(); ok {
			t := text(id)
			res.Tokenizer.EOS = &t
		}
	}
	h, err := pianola.OpenHeader(path, added)
	for _, err := range dir.Unsupported() {
		res.Unsupported = append(res.Unsupported, oneLine(err.Error()))
	}
	for _, t := range dir.Tensors() {
		if !t.Type.Valid() && !strings.HasPrefix(t.TypeName, "U") {
			res.Unsupported = append(res.Unsupported, fmt.Sprintf("tensor %s: type %s", oneLine(t.Name), oneLine(t.TypeName)))
		}
	}
	var noArch *arch.UnsupportedError
	var noFormat *weights.UnsupportedError
	var noValue *arch.UnsupportedValueError
	switch {
	case errors.As(err, &noArch), errors.As(err, &noValue), errors.As(err, &noFormat):
		res.Why = oneLine(err.Error())
		res.Architecture, res.Name = metaString(dir, "general.architecture", "model_type"), metaString(dir, "general.name", "_name_or_path")
		return res, nil
	case err != nil:
		return nil, err
	}
	c := h.Config()
	res.Supported, res.Architecture, res.Name = true, c.Arch, c.Name
	res.Model = describe(c, kv)
	for _, id := range h.StopIDs() {
		res.Model.StopIDs = append(res.Model.StopIDs, text(id))
	}
	if t, err := h.Compile("cpu", pianola.TableOptions{KV: kv}); err != nil {
		res.Model.TableWhy = oneLine(err.Error())
	} else if p, _, ok := t.Program(table.ProgramDecode); ok {
		res.Model.Commands = int(p.Count)
	}
	return res, nil
}

// addTypes counts tensors by type.
func (r *infoResult) addTypes(dir *weights.Directory) {
	for _, t := range dir.Tensors() {
		i := slices.IndexFunc(r.Types, func(x infoType) bool { return x.Type == t.TypeName })
		if i < 0 {
			i = len(r.Types)
			r.Types = append(r.Types, infoType{Type: t.TypeName, Known: t.Type.Valid()})
		}
		n := uint64(1)
		for _, d := range t.Shape {
			n *= d
		}
		x := &r.Types[i]
		x.Tensors, x.Parameters, x.Bytes = x.Tensors+1, x.Parameters+n, x.Bytes+t.Size
		r.Parameters += n
	}
	slices.SortStableFunc(r.Types, func(a, b infoType) int {
		switch {
		case a.Bytes > b.Bytes:
			return -1
		case a.Bytes < b.Bytes:
			return 1
		}
		return 0
	})
}

// tokenizerKind returns the kind of tokenizer that a model's metadata names.
func tokenizerKind(dir *weights.Directory) string {
	if dir.Format() != weights.GGUF {
		return "tokenizer.json"
	}
	return strings.Trim(metaString(dir, "tokenizer.ggml.model")+" "+metaString(dir, "tokenizer.ggml.pre"), " ")
}

// metaString returns the value of the first key that exists and has a string value.
func metaString(dir *weights.Directory, keys ...string) string {
	for _, key := range keys {
		if v, ok := dir.Meta(key); ok {
			if s, ok := v.(string); ok {
				return s
			}
		}
	}
	return ""
}

func describe(c *arch.Config, kv pianola.KVType) *infoModel {
	kind, _ := decl.KVKind(string(kv))
	m := &infoModel{
		Layers: c.Layers, Width: c.Width, FF: c.FF, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
		Vocab: c.Vocab, Context: c.Context, Eps: c.Eps, Activation: c.Activation.String(),
		TiedHead: c.TiedHead, QKNorm: c.QKNorm, RopeLayout: c.RopeLayout.String(),
		KVBytes: kvBytes(c, kind),
		Biases:  []string{}, StopIDs: []token{}, Experts: describeExperts(c),
	}
	if c.Latent.KVRank > 0 {
		m.Latent, m.KVBytes = c.Latent.KVRank, m.KVBytes/2
	}
	for i := range c.Layer {
		if c.Recurrent() {
			m.Mixers = append(m.Mixers, c.Layer[i].Mixer.String())
		}
	}
	for _, r := range []arch.Role{arch.Q, arch.K, arch.V, arch.O, arch.Gate, arch.Up, arch.Down} {
		if c.Bias.Has(r) {
			m.Biases = append(m.Biases, r.String())
		}
	}
	for _, r := range c.Ropes {
		m.Ropes = append(m.Ropes, infoRope{r.Kind, r.Base, r.Dim})
	}
	for _, l := range c.Layer {
		m.Windows = append(m.Windows, l.Window)
	}
	return m
}

// kvBytes returns the bytes that a position takes in the caches of K and V, of which some layers have
// none.
func kvBytes(c *arch.Config, kind uint32) (n uint64) {
	for i, l := range c.Layer {
		if l.Attends() && l.KVBack == 0 {
			n += 2 * uint64(c.KVHeadsAt(i)) * decl.KVRowBytes(kind, c.HeadDimAt(i))
		}
	}
	return n
}

// mostUnsupported is the largest number of unsupported items that the text output lists.
const mostUnsupported = 8

func (r *infoResult) write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t%s\n", name, oneLine(fmt.Sprintf(format, args...)))
	}
	row("file", "%s, %s, %s in %d", r.Path, r.Format, byteSize(r.Bytes), r.Files)
	if r.Name != "" {
		row("name", "%s", r.Name)
	}
	if r.Supported {
		row("architecture", "%s", r.Architecture)
	} else {
		row("architecture", "%s (not supported: %s)", r.Architecture, r.Why)
	}
	for i, what := range r.Unsupported {
		if i == mostUnsupported {
			row("not supported", "and %d more", len(r.Unsupported)-i)
			break
		}
		row("not supported", "%s", what)
	}
	for _, t := range r.NotFinite {
		row("not finite", "tensor %s (%s): %d from element %d on", t.Tensor, t.Type, t.Count, t.First)
	}
	row("parameters", "%s, %d tensors", count(r.Parameters), r.Tensors)
	if r.Model != nil {
		r.Model.rows(row)
	}
	r.Tokenizer.row(row)
	fmt.Fprintln(tw, "\ntype\ttensors\tparameters\tbytes\tshare")
	total := uint64(0)
	for _, t := range r.Types {
		total += t.Bytes
	}
	for _, t := range r.Types {
		name := oneLine(t.Type)
		if !t.Known {
			name += " (not supported)"
		}
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%.1f %%\n", name, t.Tensors, t.Parameters, t.Bytes, 100*float64(t.Bytes)/float64(max(total, 1)))
	}
	return tw.Flush()
}

func (m *infoModel) rows(row func(name, format string, args ...any)) {
	row("layers", "%d, width %d, ffn %d, %s", m.Layers, m.Width, m.FF, m.Activation)
	extra := ""
	if m.Latent > 0 {
		extra = fmt.Sprintf(", a latent of %d", m.Latent)
	}
	if m.QKNorm {
		extra += ", QK norm"
	}
	if len(m.Biases) > 0 {
		extra += ", biases " + strings.Join(m.Biases, " ")
	}
	if m.Experts != nil {
		row("experts", "%s", m.Experts)
	}
	row("attention", "%d heads of %d, %d KV heads%s", m.Heads, m.HeadDim, m.KVHeads, extra)
	kinds := map[string]int{}
	for _, name := range m.Mixers {
		kinds[name]++
	}
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		row("mixers", "%d layers of %s", kinds[name], name)
	}
	row("windows", "%s", windows(m.Windows))
	for _, r := range m.Ropes {
		row("rope", "%s, base %g, %d elements of a head, %s", r.Kind, r.Base, r.Dim, m.RopeLayout)
	}
	row("context", "%d, KV cache %s a position", m.Context, byteSize(m.KVBytes))
	head := "own matrix"
	if m.TiedHead {
		head = "tied to the embedding"
	}
	row("vocabulary", "%d, output %s", m.Vocab, head)
	stops := make([]string, len(m.StopIDs))
	for i, t := range m.StopIDs {
		stops[i] = t.String()
	}
	row("stop ids", "%s", orNone(strings.Join(stops, ", ")))
	if m.TableWhy != "" {
		row("table", "none: %s", m.TableWhy)
	} else {
		row("table", "%d commands a token on the CPU", m.Commands)
	}
}

func (t *infoTokenizer) row(row func(name, format string, args ...any)) {
	if t.Why != "" {
		row("tokenizer", "none usable: %s", t.Why)
		return
	}
	s := fmt.Sprintf("%s, %d tokens", t.Kind, t.Size)
	if t.BOS != nil {
		s += ", BOS " + t.BOS.String()
		if t.AddBOS {
			s += " added"
		} else {
			s += " not added"
		}
	}
	if t.EOS != nil {
		s += ", EOS " + t.EOS.String()
	}
	row("tokenizer", "%s", s)
}

func (t token) String() string {
	if t.Text == "" {
		return fmt.Sprint(t.ID)
	}
	return fmt.Sprintf("%d %s", t.ID, t.Text)
}

// windows returns a text with the number of layers for each attention window.
func windows(list []int) string {
	var sizes, counts []int
	for _, w := range list {
		i := slices.Index(sizes, w)
		if i < 0 {
			i = len(sizes)
			sizes, counts = append(sizes, w), append(counts, 0)
		}
		counts[i]++
	}
	var parts []string
	for i, w := range sizes {
		sees := "all positions"
		if w > 0 {
			sees = fmt.Sprintf("%d positions", w)
		}
		parts = append(parts, fmt.Sprintf("%d layers attend to %s", counts[i], sees))
	}
	return strings.Join(parts, ", ")
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// count returns a number to three digits, such as "7.34 M".
func count(n uint64) string {
	switch x := float64(n); {
	case x >= 1e9:
		return figure(x/1e9) + " G"
	case x >= 1e6:
		return figure(x/1e6) + " M"
	case x >= 1e3:
		return figure(x/1e3) + " K"
	}
	return fmt.Sprint(n)
}
