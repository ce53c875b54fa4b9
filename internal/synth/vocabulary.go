package synth

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/pianola-engine/pianola/internal/gguf"
)

// mergeList holds the merges of the tokenizer in testdata/gopher in order, one per line. That
// tokenizer is a byte-level BPE trained on Go source.
//
//go:embed merges.txt
var mergeList string

// Token types of tokenizer.ggml.token_type (llama_token_type).
const (
	tokenNormal  int32 = 1
	tokenControl int32 = 3
	tokenUnused  int32 = 5
)

// vocabulary describes how a model family assigns ids. Special tokens have their published
// ids; bytes, merges and padding fill the other ids in order. All families use the same
// byte-level BPE, each with its own pre-tokenizer.
type vocabulary struct {
	pre      string // the value of tokenizer.ggml.pre
	specials []special
	ids      []gguf.KV // tokenizer.ggml keys of the special tokens, and add_bos_token
}

// special is a control token and its id.
type special struct {
	id   uint32
	text string
}

var gopherVocabulary = vocabulary{
	pre: "llama-bpe",
	specials: []special{
		{0, "<|begin_of_text|>"}, {1, "<|end_of_text|>"}, {2, "<|eot_id|>"}, {3, "<|pad|>"},
	},
	ids: []gguf.KV{
		{Key: "bos_token_id", Value: uint32(0)},
		{Key: "eos_token_id", Value: uint32(1)},
		{Key: "padding_token_id", Value: uint32(3)},
	},
}

var llama3Vocabulary = vocabulary{
	pre: "llama-bpe",
	specials: []special{
		{128_000, "<|begin_of_text|>"}, {128_001, "<|end_of_text|>"},
		{128_004, "<|finetune_right_pad_id|>"},
		{128_006, "<|start_header_id|>"}, {128_007, "<|end_header_id|>"},
		{128_008, "<|eom_id|>"}, {128_009, "<|eot_id|>"}, {128_010, "<|python_tag|>"},
	},
	ids: []gguf.KV{
		{Key: "bos_token_id", Value: uint32(128_000)},
		{Key: "eos_token_id", Value: uint32(128_009)},
		{Key: "padding_token_id", Value: uint32(128_004)},
		{Key: "add_bos_token", Value: true},
	},
}

var qwenVocabulary = vocabulary{
	pre: "qwen2",
	specials: []special{
		{151_643, "<|endoftext|>"}, {151_644, "<|im_start|>"}, {151_645, "<|im_end|>"},
	},
	ids: []gguf.KV{
		{Key: "eos_token_id", Value: uint32(151_645)},
		{Key: "padding_token_id", Value: uint32(151_643)},
		{Key: "bos_token_id", Value: uint32(151_643)},
		{Key: "add_bos_token", Value: false},
	},
}

var qwen35Vocabulary = vocabulary{
	pre: "qwen35",
	specials: []special{
		{248_044, "<|endoftext|>"}, {248_045, "<|im_start|>"}, {248_046, "<|im_end|>"},
	},
	ids: []gguf.KV{
		{Key: "eos_token_id", Value: uint32(248_046)},
		{Key: "padding_token_id", Value: uint32(248_044)},
		{Key: "bos_token_id", Value: uint32(248_044)},
		{Key: "add_bos_token", Value: false},
	},
}

// gemmaVocabulary has Gemma's special tokens. Like the other families it uses the byte-level
// BPE, not Gemma's SentencePiece model.
var gemmaVocabulary = vocabulary{
	pre: "llama-bpe",
	specials: []special{
		{0, "<pad>"}, {1, "<eos>"}, {2, "<bos>"}, {3, "<unk>"}, {4, "<mask>"},
		{105, "<start_of_turn>"}, {106, "<end_of_turn>"},
	},
	ids: []gguf.KV{
		{Key: "bos_token_id", Value: uint32(2)},
		{Key: "eos_token_id", Value: uint32(1)},
		{Key: "unknown_token_id", Value: uint32(3)},
		{Key: "padding_token_id", Value: uint32(0)},
		{Key: "eot_token_id", Value: uint32(106)},
		{Key: "add_bos_token", Value: true},
	},
}

// metadata returns the tokenizer.ggml entries of a vocabulary that is padded to size tokens.
func (v *vocabulary) metadata(size uint32) ([]gguf.KV, error) {
	merges := strings.Split(strings.TrimSuffix(mergeList, "\n"), "\n")
	tokens := make([]string, size)
	types := make([]int32, size)
	for _, s := range v.specials {
		if s.id >= size || tokens[s.id] != "" {
			return nil, fmt.Errorf("synth: vocabulary of %d tokens: the id of %s, %d, is too large", size, s.text, s.id)
		}
		tokens[s.id], types[s.id] = s.text, tokenControl
	}
	ordinary := byteTokens()
	for _, m := range merges {
		ordinary = append(ordinary, strings.Replace(m, " ", "", 1))
	}
	for id := range tokens {
		switch {
		case tokens[id] != "":
		case len(ordinary) > 0:
			tokens[id], types[id] = ordinary[0], tokenNormal
			ordinary = ordinary[1:]
		default:
			tokens[id], types[id] = "<|unused_"+strconv.Itoa(id)+"|>", tokenUnused
		}
	}
	if len(ordinary) > 0 {
		return nil, fmt.Errorf("synth: vocabulary of %d tokens is too small: %d tokens do not fit", size, len(ordinary))
	}
	entries := []gguf.KV{
		{Key: "tokenizer.ggml.model", Value: "gpt2"},
		{Key: "tokenizer.ggml.pre", Value: v.pre},
		{Key: "tokenizer.ggml.tokens", Value: tokens},
		{Key: "tokenizer.ggml.token_type", Value: types},
		{Key: "tokenizer.ggml.merges", Value: merges},
	}
	for _, id := range v.ids {
		entries = append(entries, gguf.KV{Key: "tokenizer.ggml." + id.Key, Value: id.Value})
	}
	return entries, nil
}

// byteTokens returns GPT-2's character for each byte, in the order of its vocabulary.
// Printable Latin-1 characters represent themselves and come first. Characters from U+0100 on
// represent the other bytes.
func byteTokens() []string {
	var printable, others []string
	for b := range 256 {
		if '!' <= b && b <= '~' || '¡' <= b && b <= '¬' || '®' <= b {
			printable = append(printable, string(rune(b)))
		} else {
			others = append(others, string(rune(0x100+len(others))))
		}
	}
	return append(printable, others...)
}
