package arch

import (
	"errors"
	"fmt"
	"slices"
)

// The scores of experts.
const (
	scoreSoftmax = "softmax"
	scoreSigmoid = "sigmoid"
)

// scoreNumbers are the values of expert_gating_func in GGUF files; 0 means that the file does not
// say.
var scoreNumbers = []string{1: scoreSoftmax, 2: scoreSigmoid}

// The ways to choose experts in config.json.
const (
	chooseGreedy = "greedy"
	chooseGroups = "group_limited_greedy"
	chooseNoAux  = "noaux_tc"
)

// maxGroups bounds the number of groups of experts.
const maxGroups = 32

// validateScoring checks the fields about scores.
func (r *expertRule) validateScoring() error {
	if r.Scoring != "" && r.Scoring != scoreSoftmax && r.Scoring != scoreSigmoid {
		return fmt.Errorf("scoring: %s is not %s or %s", clip(r.Scoring), scoreSoftmax, scoreSigmoid)
	}
	if (r.Groups == "") != (r.TopGroups == "") {
		return errors.New("groups and top_groups: one of them is missing")
	}
	return nil
}

// keys returns the keys that the rule reads.
func (r *expertRule) keys() []string {
	return append(slices.Clone(r.Count), r.Used, r.Flag, r.FF, r.Norm, r.Step, r.Dense, r.Layers, r.First, r.Last, r.Types,
		r.ScoringKey, r.Biased, r.Scale, r.Groups, r.TopGroups, r.Method, r.Shared, r.SharedFF)
}

// readRouter reads how experts are scored and chosen.
func (e *Experts) readRouter(f *fields, r *expertRule) {
	if e.OverAll = r.OverAll; r.Norm != "" {
		e.OverAll = !f.bool(r.Norm, false)
	}
	e.Sigmoid = f.scoring(r) == scoreSigmoid
	if e.WeighInput = r.WeighInput; e.WeighInput && e.Used != 1 {
		f.failf(r.Used, "%d experts, where their weights multiply their inputs, are not supported", e.Used)
	}
	if x := f.scale(r.Scale, 1); x != 1 {
		e.Scale = float32(x)
	}
	if r.Groups == "" {
		return
	}
	method := chooseGroups
	if r.Method != "" {
		method = f.string(r.Method, chooseNoAux)
	}
	switch method {
	case chooseGreedy:
		return
	case chooseGroups, chooseNoAux:
	default:
		f.fail(&UnsupportedValueError{Key: f.name(r.Method), Value: clip(method), Known: []string{chooseGreedy, chooseGroups, chooseNoAux}})
	}
	groups := f.opt(r.Groups, 0, maxGroups, 1)
	if groups <= 1 || f.err != nil {
		return
	}
	top := f.need(r.TopGroups, 1, groups)
	size := e.Count / groups
	switch {
	case f.err != nil:
	case e.Count%groups != 0 || e.Sigmoid && size < 2:
		f.failf(r.Groups, "%d experts do not form %d groups of equal size, at least 2", e.Count, groups)
	case top*size < e.Used:
		f.failf(r.TopGroups, "%d groups of %d experts have fewer than %d", top, size, e.Used)
	case top < groups:
		e.Groups, e.TopGroups = groups, top
	}
}

// scoring returns the score of the model's experts.
func (f *fields) scoring(r *expertRule) string {
	v, ok := f.value(r.ScoringKey)
	if r.ScoringKey == "" || !ok {
		return r.Scoring
	}
	name, isString := v.(string)
	if !isString {
		switch n := f.integer(r.ScoringKey, v, 0, 255); {
		case n == 0:
			return r.Scoring
		case n < len(scoreNumbers):
			return scoreNumbers[n]
		}
	}
	if name != scoreSoftmax && name != scoreSigmoid {
		f.fail(&UnsupportedValueError{Key: f.name(r.ScoringKey), Value: clip(v), Known: []string{scoreSoftmax, scoreSigmoid}})
	}
	return name
}

// readShared sets what follows from the tensors of sparse layers, of which layer is the first, or in
// Hugging Face directories from the descriptor.
func (c *Config) readShared(f *fields, src Source, r *expertRule, layer int) {
	e, gguf := &c.Experts, src.Kind() == kindGGUF
	has := func(role Role) bool {
		name := c.names.weight(role, layer)
		return name != "" && (!gguf || has(src, name))
	}
	e.RankBias, e.SharedGated = has(RouterBias), has(SharedRouter)
	if r.Biased != "" {
		e.RankBias = e.RankBias && f.bool(r.Biased, true)
	}
	if !has(SharedUp) {
		return
	}
	if shape, ok := src.Shape(c.names.weight(SharedUp, layer)); gguf && ok && len(shape) == 2 && shape[0] <= maxFF {
		e.SharedFF = int(shape[0])
		return
	}
	if r.SharedFF != "" {
		e.SharedFF = f.opt(r.SharedFF, 0, maxFF, 0)
	} else if n := f.opt(r.Shared, 0, maxExperts, 0); n*e.FF <= maxFF {
		e.SharedFF = n * e.FF
	}
	e.SharedGated = e.SharedGated && e.SharedFF > 0
}

// typedLayers returns a flag for each layer that a list of types calls sparse, or nil without a list.
func (r *expertRule) typedLayers(f *fields, layers int) []bool {
	if r.Types == "" {
		return nil
	}
	list := f.list(r.Types)
	if list == nil {
		return nil
	}
	sparse := make([]bool, layers)
	if len(list) < layers {
		f.failf(r.Types, "%d entries for %d layers", len(list), layers)
		return sparse
	}
	for i := range sparse {
		switch list[i] {
		case "dense":
		case "sparse":
			sparse[i] = true
		default:
			f.fail(&UnsupportedValueError{Key: f.name(r.Types), Value: clip(list[i]), Known: []string{"dense", "sparse"}})
		}
	}
	return sparse
}

// between reports whether a layer is among those from First to Last.
func (r *expertRule) between(f *fields, layers int) func(layer int) bool {
	first, last := 0, layers-1
	if r.First != "" {
		first = f.opt(r.First, 0, maxLayers, 0)
	}
	if r.Last != "" {
		if n := f.opt(r.Last, -1, maxLayers, -1); n >= 0 {
			last = n
		}
	}
	return func(layer int) bool { return layer >= first && layer <= last }
}
