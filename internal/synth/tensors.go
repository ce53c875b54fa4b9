package synth

import (
	"fmt"
	"math"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/quantize"
)

// Tensor is a tensor of a synthetic model.
type Tensor struct {
	Name  string
	Type  dtype.Type
	Shape []uint64 // row-major, outermost first: [experts, rows, columns], [rows, columns] or [columns]

	content content
}

// content selects the distribution of a tensor's elements.
type content uint8

const (
	matrix          content = iota // normal with mean 0
	attentionOutput                // smaller deviation, because it adds to the residual
	ffnOutput                      // smaller deviation, because it adds to the residual
	firstFFNOutput                 // larger deviation, because it produces most of the residual
	embedding                      // also the output matrix
	scaledEmbedding                // an embedding in a model that scales it
	bias                           // same deviation as an embedding
	norm                           // normal with mean 1
	ropeFreqs                      // computed, not random
	decayRate                      // of a gated delta layer; negative, around -1
	decayShift                     // added to the gates of the decay; negative, so that states last
)

// Tensors returns the tensors of a shape in the order of the file, which follows llama.cpp's
// converter. For an unknown mix the error is a [*quantize.MixError].
func Tensors(s Shape, quant string) ([]Tensor, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	m, err := quantize.FindMix(quant)
	if err != nil {
		return nil, err
	}
	var l lister
	has := architectures[s.Arch]
	hidden, ffn, headDim := uint64(s.Hidden), uint64(s.FFN), uint64(s.HeadDim)
	q, kv := uint64(s.Heads)*headDim, uint64(s.KVHeads)*headDim
	vocab := uint64(s.Vocab)

	if s.Rope != nil {
		l.vector("rope_freqs.weight", headDim/2, ropeFreqs)
	}
	embedded := embedding
	if has.scaledEmbedding {
		embedded = scaledEmbedding
	}
	if !s.Tied {
		l.matrix("output.weight", vocab, hidden, embedding)
	}
	l.matrix("token_embd.weight", vocab, hidden, embedded)
	for layer := range s.Layers {
		blk := fmt.Sprintf("blk.%d.", layer)
		down := ffnOutput
		if layer == 0 {
			down = firstFFNOutput
		}
		l.vector(blk+"attn_norm.weight", hidden, norm)
		if s.Delta.has(layer) {
			l.delta(blk, hidden, s.Delta)
		}
		if e := s.Experts; e != nil {
			l.experts(blk+"ffn_down_exps.weight", e, hidden, uint64(e.FFN), down)
			l.experts(blk+"ffn_gate_exps.weight", e, uint64(e.FFN), hidden, matrix)
			l.matrix(blk+"ffn_gate_inp.weight", uint64(e.Count), hidden, matrix)
			l.experts(blk+"ffn_up_exps.weight", e, uint64(e.FFN), hidden, matrix)
		} else {
			l.matrix(blk+"ffn_down.weight", hidden, ffn, down)
			l.matrix(blk+"ffn_gate.weight", ffn, hidden, matrix)
			l.matrix(blk+"ffn_up.weight", ffn, hidden, matrix)
		}
		if has.postNorms {
			l.vector(blk+"post_attention_norm.weight", hidden, norm)
			l.vector(blk+"post_ffw_norm.weight", hidden, norm)
		}
		if s.Delta != nil {
			l.vector(blk+"post_attention_norm.weight", hidden, norm)
		} else {
			l.vector(blk+"ffn_norm.weight", hidden, norm)
		}
		if s.Delta.has(layer) {
			continue
		}
		l.projection(blk+"attn_k", kv, hidden, headDim, has)
		l.matrix(blk+"attn_output.weight", hidden, q, attentionOutput)
		queries := q
		if has.gatedQ {
			queries *= 2
		}
		l.projection(blk+"attn_q", queries, hidden, headDim, has)
		l.projection(blk+"attn_v", kv, hidden, 0, has)
	}
	l.vector("output_norm.weight", hidden, norm)
	list := make([]quantize.Tensor, len(l.tensors))
	for i, t := range l.tensors {
		list[i] = quantize.Tensor{Name: t.Name, Shape: t.Shape, Type: t.Type}
	}
	model := quantize.Model{Layers: int(s.Layers), QueriesPerKV: int(s.Heads / s.KVHeads)}
	for i, t := range m.Types(model, list, quantize.Options{}) {
		l.tensors[i].Type = t
	}
	return l.tensors, nil
}

// lister collects the tensors of a model.
type lister struct{ tensors []Tensor }

func (l *lister) matrix(name string, rows, columns uint64, c content) {
	l.tensors = append(l.tensors, Tensor{Name: name, Type: dtype.F32, Shape: []uint64{rows, columns}, content: c})
}

// experts lists the matrices of all experts, one tensor.
func (l *lister) experts(name string, e *Experts, rows, columns uint64, c content) {
	l.tensors = append(l.tensors, Tensor{Name: name, Type: dtype.F32, Shape: []uint64{uint64(e.Count), rows, columns}, content: c})
}

func (l *lister) vector(name string, elems uint64, c content) {
	l.tensors = append(l.tensors, Tensor{Name: name, Type: dtype.F32, Shape: []uint64{elems}, content: c})
}

// projection lists the matrix of Q, K or V, its norm unless normDim is 0, and its bias if the
// model has one.
func (l *lister) projection(name string, rows, columns, normDim uint64, has traits) {
	if has.qkNorm && normDim > 0 {
		l.vector(name+"_norm.weight", normDim, norm)
	}
	if has.attentionBias {
		l.vector(name+".bias", rows, bias)
	}
	l.matrix(name+".weight", rows, columns, matrix)
}

// size returns the bytes of a row and the number of rows. The mix only chooses types whose
// blocks divide the rows.
func (t *Tensor) size() (rowBytes, rows uint64) {
	rows = 1
	for _, n := range t.Shape[:len(t.Shape)-1] {
		rows *= n
	}
	rowBytes, _ = t.Type.Bytes(t.Shape[len(t.Shape)-1])
	return rowBytes, rows
}

// frequencies returns the factors by which RoPE's frequencies are divided, [headDim/2], as
// transformers' _compute_llama3_parameters computes them. Frequencies with long wavelengths
// are divided by the factor, those with short ones are unchanged, and the transition between
// them is smooth.
func (r *Llama3Rope) frequencies(headDim uint32, base float32) []float32 {
	factors := make([]float32, headDim/2)
	for i := range factors {
		wavelength := 2 * math.Pi * math.Pow(float64(base), float64(2*i)/float64(headDim))
		turns := r.OriginalContext / wavelength // rotations within the original context
		smooth := (turns - r.LowFreqFactor) / (r.HighFreqFactor - r.LowFreqFactor)
		smooth = min(max(smooth, 0), 1)
		factors[i] = float32(1 / ((1-smooth)/r.Factor + smooth))
	}
	return factors
}
