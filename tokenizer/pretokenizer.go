package tokenizer

import "math"

// A preTokenizer is a list of splitters, each of which cuts the pieces of the
// one before it, with what its name implies when a GGUF file says no more.
type preTokenizer struct {
	stages       []splitter
	addBOS       bool
	ignoreMerges bool // a word that is a token is taken whole, merges or not
}

// patternSplitter returns the splitter for a regular expression of a
// tokenizer.json, and whether it covers any text without gaps.
//
// The expressions are compared as strings. They are what published tokenizers
// contain; several spell the same thing differently.
func patternSplitter(t *classTable, pattern string) (s splitter, total, ok bool) {
	switch pattern {
	case `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
		`'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`:
		return gpt2Splitter{t}, true, true

	// cl100k_base as tiktoken has it (possessive, which changes nothing here), as
	// Llama 3 has it, and without (?i:).
	case `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`,
		`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
		`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:
		return cl100kSplitter{t, foldCase, letter, 3}, true, true
	case `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:
		return cl100kSplitter{t, anyCase, letter, 3}, true, true

	// Qwen 2, 2.5 and 3.
	case `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
		`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`:
		return cl100kSplitter{t, foldCase, letter, 1}, true, true
	case `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:
		return cl100kSplitter{t, anyCase, letter, 1}, true, true

	// Qwen 3.5.
	case `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:
		return cl100kSplitter{t, foldCase, letter | mark, 1}, true, true

	// o200k_base: gpt-oss, Llama 4.
	case `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`:
		return o200kSplitter{t, foldCase, 3}, true, true

	// Tekken: Mistral NeMo and later.
	case `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`:
		return o200kSplitter{t, noContractions, 1}, true, true

	case `\p{N}`:
		return runSplitter{classes: t, set: number, limit: 1}, false, true
	case `\p{N}{1,3}`:
		return runSplitter{classes: t, set: number, limit: 3}, false, true
	case `\p{N}+`:
		return runSplitter{classes: t, set: number, limit: math.MaxInt}, false, true
	}
	return nil, false, false
}

// ggufPreTokenizer returns what a tokenizer.ggml.pre stands for. The names and
// what they imply are those of llama.cpp's llama-vocab.cpp; the patterns are the
// original ones where llama.cpp approximates them.
func ggufPreTokenizer(t *classTable, name string) (p preTokenizer, ok bool) {
	gpt2 := gpt2Splitter{t}
	switch name {
	case "", "default":
		// llama.cpp's stand-in for an unknown pattern; it is not GPT-2's.
		return preTokenizer{stages: []splitter{
			runSplitter{classes: t, set: punct, ascii: "$+<=>^~|", limit: math.MaxInt},
			gpt2,
			runSplitter{classes: t, set: number, limit: math.MaxInt},
			tripleSplitter{},
		}}, true
	case "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4",
		"gigachat", "a.x-4.0", "mellum", "modern-bert":
		return preTokenizer{stages: []splitter{gpt2}}, true
	case "starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b":
		digit := runSplitter{classes: t, set: number, limit: 1}
		return preTokenizer{stages: []splitter{digit, gpt2}}, true
	case "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2":
		return preTokenizer{
			stages:       []splitter{cl100kSplitter{t, foldCase, letter, 3}},
			addBOS:       true,
			ignoreMerges: true,
		}, true
	case "dbrx", "smaug-bpe", "chatglm-bpe", "glm4":
		return preTokenizer{stages: []splitter{cl100kSplitter{t, foldCase, letter, 3}}}, true
	case "qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2":
		return preTokenizer{stages: []splitter{cl100kSplitter{t, foldCase, letter, 1}}}, true
	case "qwen35":
		return preTokenizer{stages: []splitter{cl100kSplitter{t, foldCase, letter | mark, 1}}}, true
	case "gpt-4o", "llama4", "kanana2", "minimax-m2":
		return preTokenizer{stages: []splitter{o200kSplitter{t, foldCase, 3}}}, true
	case "tekken":
		return preTokenizer{
			stages:       []splitter{o200kSplitter{t, noContractions, 1}},
			addBOS:       true,
			ignoreMerges: true,
		}, true
	}
	return preTokenizer{}, false
}
