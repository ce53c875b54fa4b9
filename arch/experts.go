package arch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxExperts bounds the experts of a layer.
const maxExperts = 1 << 10

// Experts says what the sparse layers of a model have in place of one
// feed-forward block: a router chooses some of many for each position.
type Experts struct {
	Count int // of a layer; 0: the model has none
	Used  int // chosen for a position
	FF    int // feed-forward width of each
	// OverAll says that the weights are the chosen ones' probabilities among all
	// experts; otherwise the softmax is over the chosen alone.
	OverAll bool
	Bias    bool // gate, up and down of each add one

	form *expertForm // with the source's prefix
}

// ExpertPart is one of the matrices that an expert has.
type ExpertPart uint8

// The parts, with their shapes.
const (
	ExpertGate ExpertPart = iota // [ff, width]
	ExpertUp                     // [ff, width]
	ExpertDown                   // [width, ff]
)

// ExpertTensor says where the rows of one expert's matrix are.
type ExpertTensor struct {
	Name  string
	Shape []uint64 // that the tensor must have
	Bias  string   // [experts, rows] or, with a tensor for each expert, [rows]; "" without

	Each       bool // each expert has a tensor of its own
	Transposed bool // it is [columns, rows]
	// Row i of the matrix is row First + i*Step of the Stack rows that the tensor
	// has for an expert.
	First, Step, Stack int
}

// expertRule says how a file form has experts: the keys of its metadata, and
// the forms in which their tensors may be.
type expertRule struct {
	Count  []string     `json:"count"`        // the first that is there
	Used   string       `json:"used"`         //
	FF     string       `json:"ff"`           // "", or absent from the file: the width that dense layers have
	Norm   string       `json:"norm"`         // a flag: the weights of the chosen add up to 1; "": they do
	Step   string       `json:"step"`         // every so manieth layer is sparse; "": all are
	Dense  string       `json:"dense_layers"` // a list of layers that are not
	Refuse []string     `json:"refuse"`       // with experts only
	Forms  []expertForm `json:"forms"`        // the first that is there
}

// expertForm is one way in which tensors have experts. Names are whole, with %d
// for the layer and, with a tensor for each expert, %e for that.
type expertForm struct {
	Gate   string `json:"gate"`
	Up     string `json:"up"`
	GateUp string `json:"gate_up"` // instead of both
	Down   string `json:"down"`
	// Router is the role's name, as among the tensors, if it is another here.
	Router string `json:"router"`

	GateBias   string `json:"gate_bias"`
	UpBias     string `json:"up_bias"`
	GateUpBias string `json:"gate_up_bias"`
	DownBias   string `json:"down_bias"`

	Interleaved bool `json:"interleaved"` // rows of gate and up take turns; otherwise gate's come first
	Transposed  bool `json:"transposed"`
}

const expertVerb = "%e"

func (r *expertRule) validate() error {
	if len(r.Count) == 0 || r.Used == "" || len(r.Forms) == 0 {
		return errors.New("count, used or forms is missing")
	}
	for i := range r.Forms {
		if err := r.Forms[i].validate(); err != nil {
			return fmt.Errorf("forms: %d: %w", i, err)
		}
	}
	return nil
}

func (f *expertForm) validate() error {
	joined := f.GateUp != ""
	if f.Transposed && joined && !f.Interleaved {
		return errors.New("rows of a transposed gate_up take turns")
	}
	if f.Down == "" || joined == (f.Gate != "") || joined == (f.Up != "") {
		return errors.New("needs down, and either gate and up or gate_up")
	}
	if f.Router != "" && (strings.Count(f.Router, layerVerb) != 1 || strings.Count(f.Router, "%") != 1) {
		return fmt.Errorf("router: %q does not have %s once", f.Router, layerVerb)
	}
	for _, name := range f.all() {
		if *name == "" {
			continue
		}
		each := strings.Count(*name, expertVerb)
		if strings.Count(*name, layerVerb) != 1 || strings.Count(*name, "%") != 1+each || (each == 1) != strings.Contains(f.Down, expertVerb) {
			return fmt.Errorf("%q does not have %s once, and %s as the others have it", *name, layerVerb, expertVerb)
		}
	}
	return nil
}

func (f *expertForm) all() []*string {
	return []*string{&f.Gate, &f.Up, &f.GateUp, &f.Down, &f.GateBias, &f.UpBias, &f.GateUpBias, &f.DownBias}
}

// first returns the form's first name, for a look whether it is there.
func (f *expertForm) first() string {
	if f.GateUp != "" {
		return f.GateUp
	}
	return f.Gate
}

// readExperts reads what a model has of experts. Which layers are sparse follows
// from the keys, in a GGUF file from the tensors.
func (c *Config) readExperts(f *fields, src Source, r *expertRule, in *form, prefix string) {
	if r == nil || f.err != nil {
		return
	}
	var e Experts
	for _, key := range r.Count {
		if e.Count = f.opt(key, 0, maxExperts, 0); e.Count > 0 {
			break
		}
	}
	if e.Count == 0 {
		return
	}
	f.refuse(r.Refuse)
	e.Used, e.FF = f.need(r.Used, 1, e.Count), c.FF
	if r.FF != "" {
		e.FF = f.opt(r.FF, 1, maxFF, c.FF)
	}
	if r.Norm != "" {
		e.OverAll = !f.bool(r.Norm, false)
	}
	if f.err != nil {
		return
	}
	first := -1
	for i, sparse := range c.sparseLayers(f, src, r) {
		c.Layer[i].Sparse = sparse
		if sparse && first < 0 {
			first = i
		}
	}
	if f.err != nil || first < 0 {
		return
	}
	forms := slices.Clone(r.Forms)
	for i := range forms {
		for _, name := range forms[i].all() {
			if *name != "" {
				*name = in.prefixed(*name, prefix)
			}
		}
	}
	// Without any, the first form's tensors are what is missing.
	at := max(0, slices.IndexFunc(forms, func(form expertForm) bool { return has(src, form.name(form.first(), first, 0)) }))
	e.form = &forms[at]
	if e.form.Router != "" {
		c.names[Router] = in.prefixed(e.form.Router, prefix)
	}
	e.Bias = has(src, e.form.name(e.form.DownBias, first, 0))
	c.Experts = e
	c.Bias.Router = has(src, c.names.bias(Router, first))
}

// sparseLayers returns which layers have experts.
func (c *Config) sparseLayers(f *fields, src Source, r *expertRule) []bool {
	sparse := make([]bool, c.Layers)
	if src.Kind() == kindGGUF {
		for i := range sparse {
			sparse[i] = has(src, c.names.weight(Router, i))
		}
		if !slices.Contains(sparse, true) {
			f.fail(&TensorError{Name: c.names.weight(Router, 0), Want: []uint64{uint64(f.opt(r.Count[0], 0, maxExperts, 0)), uint64(c.Width)}})
		}
		return sparse
	}
	step := 1
	if r.Step != "" {
		step = f.opt(r.Step, 1, maxLayers, 1)
	}
	for i := range sparse {
		sparse[i] = f.err == nil && (i+1)%step == 0
	}
	if r.Dense != "" {
		for _, v := range f.list(r.Dense) {
			n, ok := toInt(v)
			if !ok {
				f.failf(r.Dense, "%s is not a layer", clip(v))
				return sparse
			}
			if n >= 0 && n < int64(c.Layers) {
				sparse[n] = false
			}
		}
	}
	return sparse
}

// name returns a name of the form for a layer's expert, "" for "".
func (f *expertForm) name(stem string, layer, expert int) string {
	stem = strings.Replace(stem, layerVerb, strconv.Itoa(layer), 1)
	return strings.Replace(stem, expertVerb, strconv.Itoa(expert), 1)
}

// Expert returns where a part of an expert is, in a layer that is sparse.
func (c *Config) Expert(part ExpertPart, layer, expert int) ExpertTensor {
	f, ff, width := c.Experts.form, c.Experts.FF, c.Width
	t := ExpertTensor{Each: strings.Contains(f.Down, expertVerb), Transposed: f.Transposed, Step: 1, Stack: ff}
	stem, bias, cols := f.GateUp, f.GateUpBias, width
	switch {
	case part == ExpertDown:
		stem, bias, cols, t.Stack = f.Down, f.DownBias, ff, width
	case f.GateUp == "":
		stem, bias = f.Gate, f.GateBias
		if part == ExpertUp {
			stem, bias = f.Up, f.UpBias
		}
	default:
		t.Stack = 2 * ff
		if f.Interleaved {
			t.Step, t.First = 2, int(part)
		} else {
			t.First = int(part) * ff
		}
	}
	t.Name = f.name(stem, layer, expert)
	if c.Experts.Bias {
		t.Bias = f.name(bias, layer, expert)
	}
	rows, columns := uint64(t.Stack), uint64(cols)
	if t.Transposed {
		rows, columns = columns, rows
	}
	t.Shape = []uint64{rows, columns}
	if !t.Each {
		t.Shape = []uint64{uint64(c.Experts.Count), rows, columns}
	}
	return t
}

// checkExperts verifies a sparse layer's tensors.
func (c *Config) checkExperts(src Source, layer int) error {
	each := 1
	if c.Expert(ExpertDown, layer, 0).Each {
		each = c.Experts.Count
	}
	for e := range each {
		for part := range ExpertDown + 1 {
			t := c.Expert(part, layer, e)
			if err := checkTensor(src, t.Name, t.Shape); err != nil {
				return err
			}
			bias := []uint64{uint64(c.Experts.Count), uint64(t.Stack)}
			if t.Each {
				bias = bias[1:]
			}
			if err := checkTensor(src, t.Bias, bias); err != nil {
				return err
			}
		}
	}
	return nil
}
