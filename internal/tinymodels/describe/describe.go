// Package describe lists the tensors of small models of the tests that have only a config.json. Their
// names and shapes come from the families' descriptors.
package describe

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/tinymodels"
)

// configSource presents a config.json to package arch as a model whose tensors are not known yet.
type configSource struct {
	config map[string]any
	shapes map[string][]uint64
}

func (s configSource) Kind() string { return "safetensors" }

func (s configSource) Meta(key string) (any, bool) {
	v, ok := s.config[key]
	return v, ok
}

func (s configSource) Shape(name string) ([]uint64, bool) {
	shape, ok := s.shapes[name]
	return shape, ok
}

// Tensors returns the tensors of a model that has only a config.json, and the size of its
// vocabulary.
func Tensors(config []byte) ([]tinymodels.Tensor, int, error) {
	dec := json.NewDecoder(strings.NewReader(string(config)))
	dec.UseNumber()
	s := configSource{shapes: map[string][]uint64{}}
	if err := dec.Decode(&s.config); err != nil {
		return nil, 0, err
	}
	c, err := arch.Builtin().Read(s)
	if err != nil {
		return nil, 0, err
	}
	types := map[any]string{nil: "F16", "float16": "F16", "bfloat16": "BF16", "float32": "F32"}
	typ, ok := types[s.config["dtype"]]
	if !ok {
		return nil, 0, fmt.Errorf("dtype %v is not one of float16, bfloat16, float32", s.config["dtype"])
	}
	l := tensorList{config: c, typ: typ, shapes: s.shapes}
	for r := arch.Embed; r.String() != "role?"; r++ {
		places := c.Layers
		switch {
		case r == arch.AltUpProj || r == arch.AltUpUnembed:
			places = max(c.AltUp.Copies-1, 0)
		case r < arch.AttnNorm:
			places = 1
		}
		for layer := range places {
			l.role(r, layer)
		}
	}
	for layer := range c.Layers {
		l.experts(layer)
	}
	if len(l.tensors) == 0 {
		return nil, 0, errors.New("the model has no tensors")
	}
	return l.tensors, c.Vocab, c.Check(s)
}

// tensorList collects tensors.
type tensorList struct {
	config  *arch.Config
	typ     string
	tensors []tinymodels.Tensor
	shapes  map[string][]uint64
}

// add adds a tensor unless its name is "" or it has been added.
func (l *tensorList) add(name string, shape []uint64, mean, std float64) {
	if _, there := l.shapes[name]; there || name == "" {
		return
	}
	l.shapes[name] = shape
	l.tensors = append(l.tensors, tinymodels.Tensor{Name: name, DType: l.typ, Shape: shape, Mean: mean, Std: std})
}

// deviation is the standard deviation of norms' weights and of biases.
const deviation = 0.15

// role adds the weight and the bias of a role.
func (l *tensorList) role(r arch.Role, layer int) {
	c := l.config
	// The files of Gemma 3n have K and V of layers that share those of another one, too.
	unused := c.AltUp.Copies > 0 && (r == arch.K || r == arch.V || r == arch.KNorm)
	if !c.Has(r, layer) && !unused {
		return
	}
	shape := c.WantShape(r, layer)
	if len(shape) == 2 {
		_, _, shape[0] = c.Rows(r, layer)
	}
	mean, std := 0.0, deviation
	switch {
	case r == arch.DeltaRate || r == arch.DeltaShift:
		mean, std = -1, 0.7
	case r == arch.MambaRate:
		mean, std = 0.5, 0.7
	case r == arch.MambaShift:
		mean, std = -1, 1
	case r == arch.DeltaNorm || r == arch.LayerScale || r == arch.ExpertScale || r == arch.MambaSkip || r == arch.AltUpScale:
		mean = 1
	case r == arch.AltUpRouter: // its input is divided by the width
		std = min(round(1.5*math.Sqrt(float64(c.Width))), 4)
	case r == arch.AltUpPredict || r == arch.AltUpCorrect:
		std = 0.2
	case r == arch.Conv:
		shape, std = []uint64{shape[0], 1, shape[1]}, 0.6
	case r == arch.Embed:
		std = 1
		if c.TiedHead {
			std = round(1.5 / math.Sqrt(float64(c.Width)))
		}
	case len(shape) > 1 && r != arch.QNorm && r != arch.KNorm:
		std = matrix(shape[len(shape)-1])
	case strings.HasSuffix(r.String(), "norm") && !c.NormPlusOne:
		mean = 1
	}
	if c.AltUp.Copies > 0 {
		// With many layers, larger weights would turn rounding errors into other results.
		switch r {
		case arch.AttnPostNorm, arch.FFNPostNorm, arch.LaurelNorm, arch.InputPostNorm:
			mean, std = 0.25, 0.05
		case arch.QNorm, arch.KNorm:
			mean = 0.6
		}
	}
	l.add(c.Tensor(r, layer), shape, mean, std)
	if c.Bias.Has(r) || strings.HasSuffix(r.String(), "norm") {
		l.add(c.BiasTensor(r, layer), shape[:1], 0, deviation)
	}
}

// experts adds the matrices of a layer's experts.
func (l *tensorList) experts(layer int) {
	if !l.config.Layer[layer].Sparse {
		return
	}
	for part := arch.ExpertGate; part <= arch.ExpertDown; part++ {
		for e := range l.config.Experts.Count {
			t := l.config.Expert(part, layer, e)
			l.add(t.Name, t.Shape, 0, matrix(t.Shape[len(t.Shape)-1]))
		}
	}
}

// matrix returns the standard deviation of a matrix with so many columns.
func matrix(columns uint64) float64 { return round(min(0.6, 1.5/math.Sqrt(float64(columns)))) }

func round(x float64) float64 { return math.Round(x*1000) / 1000 }
