package convert

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/weights"
)

// leftOut lists parts of tensor names. The GGUF file of a text model omits tensors with such
// names: computed tensors and those of other modalities.
var leftOut = []string{".rotary_emb.inv_freq", "vision_tower.", "multi_modal_projector.", "visual.", "audio_tower."}

// readHF reads the model of a Hugging Face directory.
func (m *Model) readHF(dir *weights.Directory) error {
	v, err := arch.Builtin().Convert(dir)
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, t := range v.Tensors {
		if t.Values != nil {
			m.Tensors = append(m.Tensors, Tensor{Name: t.Name, Shape: t.Shape, Type: dtype.F32, values: t.Values})
			continue
		}
		for _, r := range t.Parts {
			used[r.Tensor] = true
		}
		if err := m.add(dir, t.Name, t.Shape, t.Parts); err != nil {
			return err
		}
		last := &m.Tensors[len(m.Tensors)-1]
		last.plusOne, last.minusExp = t.PlusOne, t.MinusExp
	}
	behind := predictors(dir, v.Config.Layers)
	for _, t := range dir.Tensors() {
		if slices.ContainsFunc(behind, func(prefix string) bool { return strings.Contains(t.Name, prefix) }) {
			continue
		}
		tied := v.Config.TiedHead && strings.HasSuffix(t.Name, "lm_head.weight")
		if !used[t.Name] && !tied && !slices.ContainsFunc(leftOut, func(part string) bool { return strings.Contains(t.Name, part) }) {
			return fmt.Errorf("convert: %s: tensor %s has no counterpart in the GGUF format of %s", m.path, t.Name, v.Config.Arch)
		}
	}
	for i, s := range v.Settings {
		m.Metadata = append(m.Metadata, gguf.KV{Key: s.Key, Value: s.Value})
		if i == 1 { // general.name follows general.architecture and general.type
			m.Metadata = append(m.Metadata, gguf.KV{Key: "general.name", Value: m.name()})
		}
	}
	entries, err := vocabulary(dir, v.Config)
	if err != nil {
		return err
	}
	m.Metadata = append(m.Metadata, entries...)
	return m.verify(v.Config)
}

// maxPredictors bounds the number of layers behind a model's own.
const maxPredictors = 16

// predictors returns parts of the names of tensors of layers behind the model's own, which predict
// further tokens.
func predictors(dir *weights.Directory, layers int) (parts []string) {
	v, _ := dir.Meta("num_nextn_predict_layers")
	n, _ := v.(json.Number)
	count, _ := n.Int64()
	for i := range min(max(int(count), 0), maxPredictors) {
		parts = append(parts, fmt.Sprintf("model.layers.%d.", layers+i))
	}
	return parts
}

// name returns the model's name, which is the name of its directory or of its repository.
func (m *Model) name() string {
	path, err := filepath.Abs(m.path)
	if err != nil {
		path = m.path
	}
	if strings.HasSuffix(path, ".json") || strings.HasSuffix(path, ".safetensors") {
		path = filepath.Dir(path)
	}
	if snapshots := filepath.Dir(path); filepath.Base(snapshots) == "snapshots" { // of the hub's cache
		if _, name, ok := strings.Cut(strings.TrimPrefix(filepath.Base(filepath.Dir(snapshots)), "models--"), "--"); ok {
			return strings.ToValidUTF8(name, "?")
		}
	}
	return strings.ToValidUTF8(filepath.Base(path), "?")
}

// verify checks that the family's GGUF form can express all properties of the model. It reads
// the model back as the resulting GGUF file and compares the configurations.
func (m *Model) verify(c *arch.Config) error {
	src := asGGUF{m, map[string]*Tensor{}}
	for i := range m.Tensors {
		src.tensors[m.Tensors[i].Name] = &m.Tensors[i]
	}
	back, err := arch.Builtin().Read(src)
	if err == nil {
		err = back.Check(src)
	}
	if err == nil {
		err = c.Same(back, func(name string) []float32 {
			if t, ok := src.tensors[name]; ok {
				return t.values
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("convert: %s: the GGUF form of %s cannot express this model: %w", m.path, c.Arch, err)
	}
	return nil
}

// asGGUF presents a model to package arch as if it were read from a GGUF file.
type asGGUF struct {
	*Model
	tensors map[string]*Tensor
}

func (asGGUF) Kind() string { return weights.GGUF.String() }

func (m asGGUF) Shape(name string) ([]uint64, bool) {
	t, ok := m.tensors[name]
	if !ok {
		return nil, false
	}
	return t.Shape, true
}
