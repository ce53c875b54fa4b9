package arch

import (
	"cmp"
	"fmt"
	"slices"
)

// experts adds the experts of a sparse layer as stacked tensors, in the first of the family's
// GGUF forms.
func (v *conversion) experts(layer int) error {
	c := v.Config
	if !c.Layer[layer].Sparse {
		return nil
	}
	if v.form.Experts == nil {
		return fmt.Errorf("arch: GGUF files of %s have no experts", v.form.Architectures[0])
	}
	to := v.form.Experts.Forms[0]
	for part, names := range [...]struct{ weight, bias string }{
		ExpertGate: {to.Gate, to.GateBias}, ExpertUp: {to.Up, to.UpBias}, ExpertDown: {to.Down, to.DownBias},
	} {
		rows, columns := uint64(c.Experts.FF), uint64(c.Width)
		if ExpertPart(part) == ExpertDown {
			rows, columns = columns, rows
		}
		count := uint64(c.Experts.Count)
		weight := Converted{Name: to.name(names.weight, layer, 0), Shape: []uint64{count, rows, columns}}
		bias := Converted{Name: to.name(names.bias, layer, 0), Shape: []uint64{count, rows}}
		if weight.Name == "" || c.Experts.Bias && bias.Name == "" {
			return fmt.Errorf("arch: GGUF files of %s have no name for the experts' tensors of layer %d", v.form.Architectures[0], layer)
		}
		for e := range count {
			t := c.Expert(ExpertPart(part), layer, int(e))
			r := ConvertedRows{Tensor: t.Name, Rows: rows, Columns: columns, First: uint64(t.First), Step: uint64(t.Step)}
			at := e
			if t.Each {
				at = 0
			}
			b := ConvertedRows{Tensor: t.Bias, Rows: rows, Columns: 1, First: uint64(t.First) + at*uint64(t.Stack), Step: uint64(t.Step)}
			if t.Transposed {
				r.Stack, r.Matrix = uint64(t.Stack), at
			} else {
				r.First += at * uint64(t.Stack)
			}
			weight.Parts = append(weight.Parts, r)
			if t.Bias != "" {
				bias.Parts = append(bias.Parts, b)
			}
		}
		v.Tensors = append(v.Tensors, weight)
		if len(bias.Parts) > 0 {
			v.Tensors = append(v.Tensors, bias)
		}
	}
	return nil
}

// routerSettings adds the keys about the choice of experts, and the places of sparse layers.
func (v *conversion) routerSettings() {
	c, r := v.Config, v.form.Experts
	e := &c.Experts
	add := func(key string, value int) {
		if key != "" {
			v.set(key, uint32(value))
		}
	}
	if r.ScoringKey != "" {
		score := scoreSoftmax
		if e.Sigmoid {
			score = scoreSigmoid
		}
		add(r.ScoringKey, slices.Index(scoreNumbers, score))
	}
	if r.Scale != "" {
		v.set(r.Scale, cmp.Or(e.Scale, 1))
	}
	if e.Groups > 0 {
		add(r.Groups, e.Groups)
		add(r.TopGroups, e.TopGroups)
	}
	add(r.SharedFF, e.SharedFF)
	if e.SharedFF%e.FF == 0 {
		add(r.Shared, e.SharedFF/e.FF)
	}
	first := slices.IndexFunc(c.Layer, func(l Layer) bool { return l.Sparse })
	add(r.First, first)
	if next := slices.IndexFunc(c.Layer[first+1:], func(l Layer) bool { return l.Sparse }); next >= 0 {
		add(r.Step, next+1)
	} else {
		add(r.Step, 1)
	}
}

// expertSettings adds the keys of a model with experts.
func (v *conversion) expertSettings() {
	e, r := &v.Config.Experts, v.form.Experts
	if e.Count == 0 || r == nil {
		return
	}
	v.set(r.Count[0], uint32(e.Count))
	v.set(r.Used, uint32(e.Used))
	if r.FF != "" {
		v.set(r.FF, uint32(e.FF))
	}
	if r.Norm != "" {
		v.set(r.Norm, !e.OverAll)
	}
	v.routerSettings()
}
