package synth

import (
	"github.com/pianola-engine/pianola/internal/gguf"
	"github.com/pianola-engine/pianola/internal/quantize"
)

// metadata returns the metadata entries of a model, in the order of llama.cpp's converter.
func metadata(s Shape, m *quantize.Mix) ([]gguf.KV, error) {
	has := architectures[s.Arch]
	entries := []gguf.KV{
		{Key: "general.architecture", Value: s.Arch},
		{Key: "general.type", Value: "model"},
		{Key: "general.name", Value: s.Title + " (random weights)"},
		{Key: "general.size_label", Value: s.Size},
	}
	add := func(key string, value any) { entries = append(entries, gguf.KV{Key: s.Arch + "." + key, Value: value}) }
	add("block_count", s.Layers)
	add("context_length", s.Context)
	add("embedding_length", s.Hidden)
	add("feed_forward_length", s.FFN)
	add("attention.head_count", s.Heads)
	add("attention.head_count_kv", s.KVHeads)
	add("rope.freq_base", s.RopeBase)
	if s.SWABase != 0 {
		add("rope.freq_base_swa", s.SWABase)
	}
	add("attention.layer_norm_rms_epsilon", s.Epsilon)
	if has.keyLength {
		add("attention.key_length", s.HeadDim)
		add("attention.value_length", s.HeadDim)
	}
	if s.Window != 0 {
		add("attention.sliding_window", s.Window)
	}
	if has.llamaKeys {
		add("vocab_size", s.Vocab)
		add("rope.dimension_count", s.HeadDim)
	}
	if e := s.Experts; e != nil {
		add("expert_count", e.Count)
		add("expert_used_count", e.Used)
		add("expert_feed_forward_length", e.FFN)
	}
	s.Delta.metadata(add)
	entries = append(entries,
		gguf.KV{Key: "general.file_type", Value: m.FileType},
		gguf.KV{Key: "general.quantization_version", Value: uint32(quantize.Version)})
	vocabulary, err := s.vocabulary.metadata(s.Vocab)
	return append(entries, vocabulary...), err
}
