package arch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxExperts bounds the number of experts per layer.
const maxExperts = 1 << 10

// Experts describes the sparse layers of a model, which have experts instead of one feed-forward
// block. A router selects some of the experts for each position.
type Experts struct {
	Count int // experts per layer; 0 if the model has none
	Used  int // experts selected per position
	FF    int // feed-forward width of each expert
	// OverAll makes the weights the softmax over all experts; otherwise the softmax is over the
	// selected ones only.
	OverAll bool
	Bias    bool // gate, up and down of each expert add a bias

	// The score of an expert is the sigmoid of its logit, or else the softmax of all logits. The
	// experts with the highest scores are selected, or with RankBias those with the highest sums of
	// the score and a bias. The weights are scores, multiplied by Scale.
	Sigmoid  bool    `json:",omitzero"`
	RankBias bool    `json:",omitzero"`
	Scale    float32 `json:",omitzero"` // 0 means 1
	// The experts are divided into Groups, if this is not 0, and those of TopGroups groups are
	// candidates: the groups whose best expert ranks highest, or with Sigmoid, whose best two do.
	Groups    int `json:",omitzero"`
	TopGroups int `json:",omitzero"`

	// WeighInput makes the weight of an expert multiply its input, not its output. Used is then 1.
	WeighInput bool `json:",omitzero"`

	// Beside makes sparse layers have a dense block too. Each has norms of its own, and their outputs are
	// added; the router has another input than the experts.
	Beside bool `json:",omitzero"`

	SharedFF    int  `json:",omitzero"` // width of the shared expert, which every position uses; 0 if there is none
	SharedGated bool `json:",omitzero"` // the shared expert's output is multiplied by the sigmoid of a product

	form *expertForm // with the source's prefix
}

// ExpertPart is one of an expert's matrices.
type ExpertPart uint8

// The parts, with their shapes.
const (
	ExpertGate ExpertPart = iota // [ff, width]
	ExpertUp                     // [ff, width]
	ExpertDown                   // [width, ff]
)

// ExpertTensor locates the rows of one expert's matrix.
type ExpertTensor struct {
	Name  string
	Shape []uint64 // shape that the tensor must have
	Bias  string   // [experts, rows], or [rows] if each expert has a tensor of its own; "" if there is no bias

	Each       bool // each expert has a tensor of its own
	Transposed bool // the matrix is stored as [columns, rows]
	// Row i of the matrix is row First + i*Step of the Stack rows that the tensor holds per
	// expert.
	First, Step, Stack int
}

// expertRule describes the experts in a file form: their metadata keys, and the layouts of their
// tensors.
type expertRule struct {
	Count []string `json:"count"` // keys; the first one present counts
	Used  string   `json:"used"`  //
	Flag  string   `json:"flag"`  // key of a flag without which the model has no experts; "" means none
	FF    string   `json:"ff"`    // if it is "", or the file lacks the key, the width of the dense layers applies
	Norm  string   `json:"norm"`  // key of a flag that the weights of the selected experts add up to 1; if it is "", OverAll applies
	// OverAll applies if Norm is "": the weights are the softmax over all experts.
	OverAll bool   `json:"over_all"`
	Step    string `json:"step"`         // key of the interval between sparse layers; if it is "", all layers are sparse
	Dense   string `json:"dense_layers"` // key of a list of layers that are not sparse
	Layers  string `json:"layers"`       // key of a list of the sparse layers, which replaces Step
	First   string `json:"first"`        // key of the number of the first sparse layer
	Last    string `json:"last"`         // key of the number of the last sparse layer; -1 is the model's last
	Types   string `json:"types"`        // key of a list with "dense" or "sparse" for each layer, which replaces the keys above
	// Scoring is the score of experts, softmax or sigmoid, unless the value of ScoringKey selects
	// another one.
	Scoring    string `json:"scoring"`
	ScoringKey string `json:"scoring_key"`
	// Biased is the key of a flag that RouterBias exists; "" means that it does if the family has its name.
	Biased    string `json:"biased"`
	Scale     string `json:"scale"`  // key of the factor of the weights
	Groups    string `json:"groups"` // keys of the number of groups, and of those that a position chooses
	TopGroups string `json:"top_groups"`
	Method    string `json:"method"`    // key of the way to choose; with greedy there are no groups
	Shared    string `json:"shared"`    // key of the number of experts that form the shared one
	SharedFF  string `json:"shared_ff"` // key of the shared expert's width
	// WeighInput makes weights multiply the inputs of experts.
	WeighInput bool         `json:"weigh_input"`
	Refuse     []string     `json:"refuse"` // keys refused if the model has experts
	Forms      []expertForm `json:"forms"`  // the first one present counts
}

// expertForm is one layout of the experts' tensors. Names are complete, with %d for the layer
// and, if each expert has a tensor of its own, %e for the expert.
type expertForm struct {
	Gate   string `json:"gate"`
	Up     string `json:"up"`
	GateUp string `json:"gate_up"` // replaces Gate and Up
	Down   string `json:"down"`
	// Router replaces the name of the router's role, if it differs in this layout.
	Router string `json:"router"`

	GateBias   string `json:"gate_bias"`
	UpBias     string `json:"up_bias"`
	GateUpBias string `json:"gate_up_bias"`
	DownBias   string `json:"down_bias"`

	Interleaved bool `json:"interleaved"` // rows of gate and up alternate; otherwise gate's come first
	Transposed  bool `json:"transposed"`
}

const expertVerb = "%e"

func (r *expertRule) validate() error {
	if len(r.Count) == 0 || r.Used == "" || len(r.Forms) == 0 {
		return errors.New("count, used or forms is missing")
	}
	if err := r.validateScoring(); err != nil {
		return err
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

// first returns a name of the form whose presence identifies it.
func (f *expertForm) first() string {
	if f.GateUp != "" {
		return f.GateUp
	}
	return f.Gate
}

// readExperts reads the description of the experts. The sparse layers follow from the keys, and
// in a GGUF file from the tensors.
func (c *Config) readExperts(f *fields, src Source, r *expertRule, in *form, prefix string) {
	if r == nil || f.err != nil || r.Flag != "" && !f.bool(r.Flag, false) {
		return
	}
	e := Experts{Beside: c.names[DensePostNorm] != ""}
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
	e.readRouter(f, r)
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
	// If no form is present, report the tensors of the first form as missing.
	at := max(0, slices.IndexFunc(forms, func(form expertForm) bool { return has(src, form.name(form.first(), first, 0)) }))
	e.form = &forms[at]
	if e.form.Router != "" {
		c.names[Router] = in.prefixed(e.form.Router, prefix)
	}
	e.Bias = has(src, e.form.name(e.form.DownBias, first, 0))
	c.Experts = e
	c.readShared(f, src, r, first)
	c.Bias.Router = has(src, c.names.bias(Router, first))
}

// sparseLayers returns a flag for each layer that has experts.
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
	if typed := r.typedLayers(f, c.Layers); typed != nil {
		return typed
	}
	within := r.between(f, c.Layers)
	if list := f.list(r.Layers); list != nil {
		for _, v := range list {
			if n := f.integer(r.Layers, v, 0, c.Layers-1); f.err == nil {
				sparse[n] = true
			}
		}
		return sparse
	}
	step := 1
	if r.Step != "" {
		step = f.opt(r.Step, 1, maxLayers, 1)
	}
	for i := range sparse {
		sparse[i] = f.err == nil && (i+1)%step == 0 && within(i)
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

// name returns a name of the form for a layer's expert, or "" for "".
func (f *expertForm) name(stem string, layer, expert int) string {
	stem = strings.Replace(stem, layerVerb, strconv.Itoa(layer), 1)
	return strings.Replace(stem, expertVerb, strconv.Itoa(expert), 1)
}

// Expert locates a part of an expert in a sparse layer.
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

// checkExperts checks the tensors of a sparse layer.
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
