// Package packed creates models with packed weights for tests, in the layouts of MLX and of
// published FP8 models. It packs the weights bit by bit from the layouts' descriptions and
// shares no code with the packages that read them. It also creates models with latent attention and with
// recurrent state.
package packed

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/testmodels"
)

// Tensor is a tensor of a safetensors file.
type Tensor struct {
	Type  string // such as "F32"
	Shape []int
	Data  []byte
}

// Floats is a matrix or a vector of float32.
type Floats struct {
	Shape  []int
	Values []float32
}

// Model is a Hugging Face directory in memory.
type Model struct {
	Config  map[string]any
	Tensors map[string]Tensor
}

// Read reads config.json and model.safetensors of a folder that [testmodels.Find] returns. The
// tensors must be float16 or float32; Read converts them to float32.
func Read(dir string) (config map[string]any, tensors map[string]Floats, err error) {
	dir, err = testmodels.Find(dir)
	if err != nil {
		return nil, nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	b, err2 := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if err := errors.Join(err, err2); err != nil {
		return nil, nil, err
	}
	n := binary.LittleEndian.Uint64(b)
	var header map[string]struct {
		Type    string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b[8:][:n], &raw); err != nil {
		return nil, nil, err
	}
	delete(raw, "__metadata__")
	text, _ = json.Marshal(raw)
	if err := json.Unmarshal(text, &header); err != nil {
		return nil, nil, err
	}
	tensors = map[string]Floats{}
	for name, h := range header {
		data := b[8+int(n)+h.Offsets[0] : 8+int(n)+h.Offsets[1]]
		f := Floats{Shape: h.Shape}
		switch h.Type {
		case "F32":
			for ; len(data) > 0; data = data[4:] {
				f.Values = append(f.Values, math.Float32frombits(binary.LittleEndian.Uint32(data)))
			}
		case "F16":
			for ; len(data) > 0; data = data[2:] {
				f.Values = append(f.Values, float32(half(binary.LittleEndian.Uint16(data))))
			}
		default:
			return nil, nil, fmt.Errorf("%s: type %s", name, h.Type)
		}
		tensors[name] = f
	}
	return config, tensors, nil
}

// Cut removes all layers except the first, and all vocabulary rows except the first vocab.
func Cut(config map[string]any, tensors map[string]Floats, vocab int) {
	config["num_hidden_layers"], config["vocab_size"] = 1, vocab
	for name, f := range tensors {
		switch {
		case strings.Contains(name, ".layers.") && !strings.Contains(name, ".layers.0."):
			delete(tensors, name)
		case strings.HasPrefix(name, "model.embed_tokens") || strings.HasPrefix(name, "lm_head"):
			tensors[name] = Floats{[]int{vocab, f.Shape[1]}, f.Values[:vocab*f.Shape[1]]}
		}
	}
}

// half returns the value of a finite float16.
func half(h uint16) float64 {
	e, m := int(h>>10&31), float64(h&1023)
	v := math.Ldexp(m, -24)
	if e > 0 {
		v = math.Ldexp(1024+m, e-25)
	}
	if h>>15 != 0 {
		return -v
	}
	return v
}

// Write writes the model to a directory.
func (m *Model) Write(dir string) error {
	config, err := json.Marshal(m.Config)
	if err != nil {
		return err
	}
	header := map[string]any{}
	var data []byte
	for _, name := range slices.Sorted(maps.Keys(m.Tensors)) {
		t := m.Tensors[name]
		shape := t.Shape
		if shape == nil {
			shape = []int{}
		}
		header[name] = map[string]any{"dtype": t.Type, "shape": shape, "data_offsets": [2]int{len(data), len(data) + len(t.Data)}}
		data = append(data, t.Data...)
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	file = append(append(file, text...), data...)
	return errors.Join(os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644), os.WriteFile(filepath.Join(dir, "model.safetensors"), file, 0o644))
}

// F32 returns a tensor of float32.
func F32(f Floats) Tensor {
	t := Tensor{Type: "F32", Shape: f.Shape}
	for _, v := range f.Values {
		t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(v))
	}
	return t
}

// Setting describes MLX's packing of a matrix.
type Setting struct {
	Bits, Group int
	Scale       string // "F16", "BF16" or "F32"
	Mode        string // "" means affine; or "mxfp4"
}

// New returns two models with the same configuration: one for packed weights, and one for the
// same weights in float32.
func New(config map[string]any) (packed, plain *Model) {
	return &Model{maps.Clone(config), map[string]Tensor{}}, &Model{maps.Clone(config), map[string]Tensor{}}
}

// MLX packs the matrices of the model in a directory with the setting all. Modules in named
// have their own settings. If vocab is not 0, MLX first reduces the model with [Cut].
func MLX(dir string, vocab int, all Setting, named map[string]Setting) (packed, plain *Model, err error) {
	config, tensors, err := Read(dir)
	if err != nil {
		return nil, nil, err
	}
	if vocab != 0 {
		Cut(config, tensors, vocab)
	}
	packed, plain = New(config)
	object := func(s Setting) map[string]any {
		o := map[string]any{"group_size": s.Group, "bits": s.Bits}
		if s.Mode != "" {
			o["mode"] = s.Mode
		}
		return o
	}
	quantization := object(all)
	for name, s := range named {
		quantization[name] = object(s)
	}
	packed.Config["quantization"], packed.Config["quantization_config"] = quantization, quantization
	for name, f := range tensors {
		if len(f.Shape) != 2 {
			packed.Tensors[name], plain.Tensors[name] = F32(f), F32(f)
			continue
		}
		module := strings.TrimSuffix(name, ".weight")
		s, ok := named[module]
		if !ok {
			s = all
		}
		if s.Mode == "mxfp4" {
			packed.mxfp4(module, f)
		} else {
			packed.affine(module, f, s)
		}
		plain.Tensors[name] = F32(f)
	}
	return packed, plain, nil
}

// round rounds a float to the type of a scale and returns the value and its bytes.
func round(v float32, scale string) (float32, []byte) {
	switch scale {
	case "F32":
		return v, binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))
	case "BF16":
		h := uint16(math.Float32bits(v) >> 16)
		return math.Float32frombits(uint32(h) << 16), []byte{byte(h), byte(h >> 8)}
	}
	// Round toward zero: find the largest float16 that is not above the absolute value.
	sign := uint16(0)
	if v < 0 {
		sign, v = 0x8000, -v
	}
	lo, hi := uint16(0), uint16(0x7bff)
	for lo < hi {
		if mid := (lo + hi + 1) / 2; half(mid) <= float64(v) {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	lo |= sign
	return float32(half(lo)), []byte{byte(lo), byte(lo >> 8)}
}

// affine packs a matrix in MLX's affine mode and replaces its elements in f by the packed values.
func (m *Model) affine(module string, f Floats, s Setting) {
	rows, cols := f.Shape[0], f.Shape[1]
	quants := make([]byte, rows*cols*s.Bits/8)
	var scales, biases []byte
	for i := 0; i < len(f.Values); i += s.Group {
		group := f.Values[i:][:s.Group]
		lo, hi := slices.Min(group), slices.Max(group)
		scale, b := round(max((hi-lo)/float32(int(1)<<s.Bits-1), 1e-4), s.Scale)
		bias, c := round(lo, s.Scale)
		scales, biases = append(scales, b...), append(biases, c...)
		for j, v := range group {
			q := int(math.Round(float64((v - bias) / scale)))
			q = min(max(q, 0), 1<<s.Bits-1)
			group[j] = scale*float32(q) + bias
			// Element n of the matrix begins at bit n*bits.
			for k := range s.Bits {
				at := (i+j)*s.Bits + k
				quants[at/8] |= byte(q>>k&1) << (at % 8)
			}
		}
	}
	m.Tensors[module+".weight"] = Tensor{"U32", []int{rows, cols * s.Bits / 32}, quants}
	m.Tensors[module+".scales"] = Tensor{s.Scale, []int{rows, cols / s.Group}, scales}
	m.Tensors[module+".biases"] = Tensor{s.Scale, []int{rows, cols / s.Group}, biases}
}

// mxfp4 packs a matrix as E2M1 with an exponent per 32 elements.
func (m *Model) mxfp4(module string, f Floats) {
	rows, cols := f.Shape[0], f.Shape[1]
	levels := []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	quants := make([]byte, rows*cols/2)
	var scales []byte
	for i := 0; i < len(f.Values); i += 32 {
		group := f.Values[i:][:32]
		most := 1e-9
		for _, v := range group {
			most = max(most, math.Abs(float64(v)))
		}
		_, e := math.Frexp(most)
		scales = append(scales, byte(e-3+127))
		for j, v := range group {
			best := 0
			for q, l := range levels {
				if x := math.Abs(float64(v)); math.Abs(math.Ldexp(l, e-3)-x) < math.Abs(math.Ldexp(levels[best], e-3)-x) {
					best = q
				}
			}
			group[j] = float32(math.Copysign(math.Ldexp(levels[best], e-3), float64(v)))
			if v < 0 {
				best |= 8
			}
			quants[(i+j)/2] |= byte(best << (4 * ((i + j) % 2)))
		}
	}
	m.Tensors[module+".weight"] = Tensor{"U32", []int{rows, cols / 8}, quants}
	m.Tensors[module+".scales"] = Tensor{"U8", []int{rows, cols / 32}, scales}
}

// FP8 describes the scales of weights in FP8 (E4M3).
type FP8 struct {
	Rows, Cols int    // rows and columns that share a scale; 0 means all
	Name       string // "weight_scale" or "weight_scale_inv"
	Scale      string // type of the scales, such as "F32"
	Shape      func(rows, cols int) []int
	Config     map[string]any // quantization_config
}

// E4M3 packs the layers' matrices of the model in a directory. If vocab is not 0, E4M3 first
// reduces the model with [Cut].
func E4M3(dir string, vocab int, s FP8) (packed, plain *Model, err error) {
	config, tensors, err := Read(dir)
	if err != nil {
		return nil, nil, err
	}
	if vocab != 0 {
		Cut(config, tensors, vocab)
	}
	packed, plain = New(config)
	packed.Config["quantization_config"] = s.Config
	for name, f := range tensors {
		if len(f.Shape) != 2 || !strings.Contains(name, ".layers.") {
			packed.Tensors[name], plain.Tensors[name] = F32(f), F32(f)
			continue
		}
		packed.e4m3(strings.TrimSuffix(name, ".weight"), f, s)
		plain.Tensors[name] = F32(f)
	}
	return packed, plain, nil
}

func (m *Model) e4m3(module string, f Floats, s FP8) {
	rows, cols := f.Shape[0], f.Shape[1]
	height, width := s.Rows, s.Cols
	if height == 0 {
		height = rows
	}
	if width == 0 {
		width = cols
	}
	// values holds the values of the non-negative E4M3 codes in ascending order.
	var values [127]float64
	for b := range values {
		if e := b >> 3; e == 0 {
			values[b] = float64(b) / 512
		} else {
			values[b] = math.Ldexp(1+float64(b&7)/8, e-7)
		}
	}
	quants := make([]byte, rows*cols)
	var scales []byte
	for r0 := 0; r0 < rows; r0 += height {
		for c0 := 0; c0 < cols; c0 += width {
			var most float64
			each := func(do func(i int)) {
				for r := r0; r < min(r0+height, rows); r++ {
					for c := c0; c < min(c0+width, cols); c++ {
						do(r*cols + c)
					}
				}
			}
			each(func(i int) { most = max(most, math.Abs(float64(f.Values[i]))) })
			scale, b := round(float32(max(most, 1e-6)/400), s.Scale)
			scales = append(scales, b...)
			each(func(i int) {
				x := math.Abs(float64(f.Values[i])) / float64(scale)
				q, _ := slices.BinarySearch(values[:], x)
				q = min(q, 126)
				if q > 0 && x-values[q-1] < values[q]-x {
					q--
				}
				v := float32(values[q]) * scale
				quants[i] = byte(q)
				if f.Values[i] < 0 {
					quants[i], v = byte(q)|0x80, -v
				}
				f.Values[i] = v
			})
		}
	}
	m.Tensors[module+".weight"] = Tensor{"F8_E4M3", f.Shape, quants}
	m.Tensors[module+"."+s.Name] = Tensor{s.Scale, s.Shape(rows, cols), scales}
}
