// Package synth writes GGUF files with the shapes of published models and random weights. This
// project and llama.cpp can load them. They have the sizes, types and memory traffic of the
// real models and need no download.
//
// The package knows how llama.cpp names and orders tensors and which types it mixes. It must
// not know how a model is run.
package synth

import (
	"fmt"
	"slices"
)

// Shape holds the dimensions of a published model, from its config.json. [Shapes] and
// [FindShape] return shapes; callers may change their sizes.
type Shape struct {
	Name  string // as given on the command line, such as "qwen3-0.6b"
	Title string // general.name, such as "Qwen3 0.6B"
	Size  string // general.size_label, such as "0.6B"
	Arch  string // GGUF architecture, such as "qwen3"

	Layers   uint32
	Hidden   uint32 // width of the residual stream
	FFN      uint32 // width inside the feed-forward network
	Heads    uint32
	KVHeads  uint32
	HeadDim  uint32
	Vocab    uint32 // rows of the embedding
	Context  uint32 // tokens
	Window   uint32 // attention window of sliding layers in tokens; 0 means none
	Tied     bool   // the output matrix is the embedding
	RopeBase float32
	SWABase  float32 // RoPE base of sliding layers; 0 means RopeBase
	Epsilon  float32 // epsilon of RMS norms
	Rope     *Llama3Rope
	Delta    *Delta   // nil if all layers have attention
	Experts  *Experts // nil if all layers have a dense feed-forward network

	vocabulary *vocabulary
}

// Llama3Rope holds the parameters of Llama 3's frequency scaling (rope_type "llama3").
type Llama3Rope struct {
	Factor, LowFreqFactor, HighFreqFactor float64
	OriginalContext                       float64 // tokens
}

// Experts holds the dimensions of a model whose layers have experts instead of a dense feed-forward network.
type Experts struct {
	Count uint32 // experts of a layer
	Used  uint32 // experts that a token chooses
	FFN   uint32 // width inside an expert
}

// check returns an error if the sizes are inconsistent. A shape without experts is valid.
func (e *Experts) check(s *Shape) error {
	if e != nil && (e.Used == 0 || e.Used > e.Count || e.FFN == 0) {
		return fmt.Errorf("synth: shape %s: the experts %+v are inconsistent", s.Name, *e)
	}
	return nil
}

const maxLayers = 1024

// check returns an error for a shape that cannot be a model: its name is not one of Shapes, or
// its sizes were changed to inconsistent values.
func (s *Shape) check() error {
	_, known := architectures[s.Arch]
	switch {
	case !known || s.vocabulary == nil:
		return fmt.Errorf("synth: shape %q of architecture %q is not one of Shapes", s.Name, s.Arch)
	case s.Layers == 0 || s.Hidden == 0 || s.FFN == 0 || s.Vocab == 0:
		return fmt.Errorf("synth: shape %s: %d layers, width %d, feed-forward %d, vocabulary %d: none may be zero",
			s.Name, s.Layers, s.Hidden, s.FFN, s.Vocab)
	case s.Layers > maxLayers:
		return fmt.Errorf("synth: shape %s: %d layers are more than %d", s.Name, s.Layers, maxLayers)
	case s.KVHeads == 0 || s.Heads == 0 || s.Heads%s.KVHeads != 0 || s.HeadDim == 0 || s.HeadDim%2 != 0:
		return fmt.Errorf("synth: shape %s: %d heads and %d KV heads of %d elements are inconsistent",
			s.Name, s.Heads, s.KVHeads, s.HeadDim)
	}
	if err := s.Experts.check(s); err != nil {
		return err
	}
	return s.Delta.check(s)
}

// Shapes returns every shape, smallest first.
func Shapes() []Shape { return slices.Clone(shapes) }

// FindShape returns the shape with the given name.
func FindShape(name string) (Shape, bool) {
	for _, s := range shapes {
		if s.Name == name {
			return s, true
		}
	}
	return Shape{}, false
}

// shapes are the published configurations; gopher is the model in testdata.
var shapes = []Shape{
	{
		Name: "gopher", Title: "Gopher", Size: "7.3M", Arch: "llama",
		Layers: 8, Hidden: 256, FFN: 768, Heads: 4, KVHeads: 2, HeadDim: 64,
		Vocab: 4096, Context: 2048, Tied: true,
		RopeBase: 10_000, Epsilon: 1e-5,
		vocabulary: &gopherVocabulary,
	},
	{
		Name: "qwen2.5-0.5b", Title: "Qwen2.5 0.5B", Size: "0.5B", Arch: "qwen2",
		Layers: 24, Hidden: 896, FFN: 4864, Heads: 14, KVHeads: 2, HeadDim: 64,
		Vocab: 151_936, Context: 32_768, Tied: true,
		RopeBase: 1_000_000, Epsilon: 1e-6,
		vocabulary: &qwenVocabulary,
	},
	{
		Name: "qwen3-0.6b", Title: "Qwen3 0.6B", Size: "0.6B", Arch: "qwen3",
		Layers: 28, Hidden: 1024, FFN: 3072, Heads: 16, KVHeads: 8, HeadDim: 128,
		Vocab: 151_936, Context: 40_960, Tied: true,
		RopeBase: 1_000_000, Epsilon: 1e-6,
		vocabulary: &qwenVocabulary,
	},
	{
		Name: "qwen3.5-0.8b", Title: "Qwen3.5 0.8B", Size: "0.8B", Arch: "qwen35",
		Layers: 24, Hidden: 1024, FFN: 3584, Heads: 8, KVHeads: 2, HeadDim: 256,
		Vocab: 248_320, Context: 262_144, Tied: true,
		RopeBase: 10_000_000, Epsilon: 1e-6,
		Delta:      &Delta{Interval: 4, KeyHeads: 16, Heads: 16, KeyDim: 128, ValueDim: 128, Taps: 4, RopeDim: 64},
		vocabulary: &qwen35Vocabulary,
	},
	{
		Name: "gemma-3-1b", Title: "Gemma 3 1B", Size: "1B", Arch: "gemma3",
		Layers: 26, Hidden: 1152, FFN: 6912, Heads: 4, KVHeads: 1, HeadDim: 256,
		Vocab: 262_144, Context: 32_768, Window: 512, Tied: true,
		RopeBase: 1_000_000, SWABase: 10_000, Epsilon: 1e-6,
		vocabulary: &gemmaVocabulary,
	},
	{
		Name: "llama-3.2-1b", Title: "Llama 3.2 1B", Size: "1B", Arch: "llama",
		Layers: 16, Hidden: 2048, FFN: 8192, Heads: 32, KVHeads: 8, HeadDim: 64,
		Vocab: 128_256, Context: 131_072, Tied: true,
		RopeBase: 500_000, Epsilon: 1e-5,
		Rope:       &Llama3Rope{Factor: 32, LowFreqFactor: 1, HighFreqFactor: 4, OriginalContext: 8192},
		vocabulary: &llama3Vocabulary,
	},
	{
		Name: "qwen3-1.7b", Title: "Qwen3 1.7B", Size: "1.7B", Arch: "qwen3",
		Layers: 28, Hidden: 2048, FFN: 6144, Heads: 16, KVHeads: 8, HeadDim: 128,
		Vocab: 151_936, Context: 40_960, Tied: true,
		RopeBase: 1_000_000, Epsilon: 1e-6,
		vocabulary: &qwenVocabulary,
	},
	{
		Name: "qwen3-4b", Title: "Qwen3 4B", Size: "4B", Arch: "qwen3",
		Layers: 36, Hidden: 2560, FFN: 9728, Heads: 32, KVHeads: 8, HeadDim: 128,
		Vocab: 151_936, Context: 40_960, Tied: true,
		RopeBase: 1_000_000, Epsilon: 1e-6,
		vocabulary: &qwenVocabulary,
	},
	{
		Name: "qwen3.5-4b", Title: "Qwen3.5 4B", Size: "4B", Arch: "qwen35",
		Layers: 32, Hidden: 2560, FFN: 9216, Heads: 16, KVHeads: 4, HeadDim: 256,
		Vocab: 248_320, Context: 262_144, Tied: true,
		RopeBase: 10_000_000, Epsilon: 1e-6,
		Delta:      &Delta{Interval: 4, KeyHeads: 16, Heads: 32, KeyDim: 128, ValueDim: 128, Taps: 4, RopeDim: 64},
		vocabulary: &qwen35Vocabulary,
	},
	{
		Name: "llama-3.1-8b", Title: "Llama 3.1 8B", Size: "8B", Arch: "llama",
		Layers: 32, Hidden: 4096, FFN: 14_336, Heads: 32, KVHeads: 8, HeadDim: 128,
		Vocab: 128_256, Context: 131_072,
		RopeBase: 500_000, Epsilon: 1e-5,
		Rope:       &Llama3Rope{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalContext: 8192},
		vocabulary: &llama3Vocabulary,
	},
	{
		Name: "qwen3-30b-a3b", Title: "Qwen3 30B A3B", Size: "30B.A3B", Arch: "qwen3moe",
		Layers: 48, Hidden: 2048, FFN: 6144, Heads: 32, KVHeads: 4, HeadDim: 128,
		Vocab: 151_936, Context: 40_960,
		RopeBase: 1_000_000, Epsilon: 1e-6,
		Experts:    &Experts{Count: 128, Used: 8, FFN: 768},
		vocabulary: &qwenVocabulary,
	},
}

// traits are the differences between the files of the architectures: which additional tensors
// layers have, and which keys llama.cpp's converter writes.
type traits struct {
	attentionBias bool // bias on Q, K and V
	qkNorm        bool // RMS norm of Q and K by head
	postNorms     bool // RMS norm after attention and after the feed-forward network

	scaledEmbedding bool // the model multiplies embeddings by sqrt(hidden)

	keyLength bool // attention.key_length and value_length
	llamaKeys bool // vocab_size and rope.dimension_count
	gatedQ    bool // attn_q computes Q and a gate of the same size for each head
}

var architectures = map[string]traits{
	"llama":    {keyLength: true, llamaKeys: true},
	"qwen2":    {attentionBias: true},
	"qwen3":    {qkNorm: true, keyLength: true},
	"qwen3moe": {qkNorm: true, keyLength: true},
	"qwen35":   {qkNorm: true, keyLength: true, gatedQ: true},
	"gemma3":   {qkNorm: true, postNorms: true, scaledEmbedding: true, keyLength: true},
}
