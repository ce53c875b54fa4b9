package tokenizer

import "math"

// A preTokenizer holds the settings for one value of tokenizer.ggml.pre in a GGUF file.
type preTokenizer struct {
	stages       []stage
	addBOS       bool
	ignoreMerges bool // a word that is a token becomes that token without merging
}

// isolating returns stages that cut text around the matches of each pattern, one pattern
// after the other.
func isolating(patterns ...pattern) []stage {
	var stages []stage
	for _, p := range patterns {
		stages = append(stages, stage{cut: isolated{p}})
	}
	return stages
}

// knownPattern returns the hand-written scanner for a regular expression of a
// tokenizer.json, if there is one.
//
// The expressions are compared as strings. They come from published tokenizers; several of
// them are equivalent.
func knownPattern(t *classTable, expr string) (pattern, bool) {
	switch expr {
	case `\s+$`:
		return lineEndPattern{}, true

	case `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
		`'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`:
		return gpt2Pattern{t}, true

	// cl100k_base as tiktoken writes it (its possessive quantifiers have no effect here), as Llama
	// 3 writes it, and without (?i:).
	case `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`,
		`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
		`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:
		return cl100kPattern{t, foldCase, letter, 3}, true
	case `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:
		return cl100kPattern{t, anyCase, letter, 3}, true

	// Qwen 2, 2.5 and 3.
	case `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
		`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`:
		return cl100kPattern{t, foldCase, letter, 1}, true
	case `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:
		return cl100kPattern{t, anyCase, letter, 1}, true

	// Qwen 3.5.
	case `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:
		return cl100kPattern{t, foldCase, letter | mark, 1}, true

	// o200k_base: gpt-oss, Llama 4.
	case `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`:
		return o200kPattern{t, foldCase, 3}, true

	// Kimi K2.
	case `[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:
		return kimiPattern{o200kPattern{t, foldCase, 3}}, true

	// Tekken: Mistral NeMo and later.
	case `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`:
		return o200kPattern{t, noContractions, 1}, true

	case `\p{N}`:
		return runPattern{classes: t, set: number, limit: 1}, true
	case `\p{N}{1,3}`:
		return runPattern{classes: t, set: number, limit: 3}, true
	case `\p{N}+`:
		return runPattern{classes: t, set: number, limit: math.MaxInt}, true
	}
	return nil, false
}

// ggufPreTokenizer returns the pre-tokenizer for a value of tokenizer.ggml.pre. The names and
// settings follow llama.cpp's llama-vocab.cpp. The patterns are the original ones, even where
// llama.cpp approximates them.
func ggufPreTokenizer(t *classTable, name string) (p preTokenizer, ok bool) {
	gpt2 := gpt2Pattern{t}
	switch name {
	case "", "default":
		// This is llama.cpp's fallback for an unknown pattern; it differs from GPT-2's pattern.
		return preTokenizer{stages: isolating(
			runPattern{classes: t, set: punct, ascii: "$+<=>^~|", limit: math.MaxInt},
			gpt2,
			runPattern{classes: t, set: number, limit: math.MaxInt},
			triplePattern{},
		)}, true
	case "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4",
		"gigachat", "a.x-4.0", "mellum", "modern-bert":
		return preTokenizer{stages: isolating(gpt2)}, true
	case "starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2":
		digit := runPattern{classes: t, set: number, limit: 1}
		return preTokenizer{stages: isolating(digit, gpt2)}, true
	case "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano":
		return preTokenizer{
			stages:       isolating(cl100kPattern{t, foldCase, letter, 3}),
			addBOS:       true,
			ignoreMerges: true,
		}, true
	case "dbrx", "smaug-bpe", "chatglm-bpe", "glm4":
		return preTokenizer{stages: isolating(cl100kPattern{t, foldCase, letter, 3})}, true
	case "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2":
		return preTokenizer{stages: isolating(cl100kPattern{t, foldCase, letter, 1})}, true
	case "bailingmoe", "bailingmoe2", "llada-moe":
		return preTokenizer{stages: isolating(cl100kPattern{t, foldCase, letter, 1})}, true
	case "falcon":
		marks := runPattern{classes: t, set: punct, ascii: asciiPunctuation, limit: math.MaxInt}
		return preTokenizer{stages: isolating(marks, gpt2, triplePattern{})}, true
	case "qwen35":
		return preTokenizer{stages: isolating(cl100kPattern{t, foldCase, letter | mark, 1})}, true
	case "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2":
		return preTokenizer{stages: isolating(o200kPattern{t, foldCase, 3})}, true
	case "kimi-k2":
		return preTokenizer{stages: isolating(kimiPattern{o200kPattern{t, foldCase, 3}})}, true
	case "tekken":
		return preTokenizer{
			stages:       isolating(o200kPattern{t, noContractions, 1}),
			addBOS:       true,
			ignoreMerges: true,
		}, true
	}
	if stages, ok := ggufExpressions(t, name); ok {
		return preTokenizer{stages: stages, ignoreMerges: name == "minicpm5"}, true
	}
	return preTokenizer{}, false
}

// deepseekWord matches words of letters that have two cases, in the tokenizers of DeepSeek V1 and V2.
const deepseekWord = `\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+`

// ggufExpressions returns the stages of the pre-tokenizers that use package regexp.
func ggufExpressions(t *classTable, name string) ([]stage, bool) {
	const (
		notBloom  = ` ?[^(\s|.,!?…。，、।۔،)]+`
		numbers   = `\p{N}{1,3}`
		digit     = `\p{N}`
		deepseek3 = `[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_` + "`" + `{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		seed      = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+`
		minicpm5  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	)
	var exprs []string
	switch name {
	case "bloom", "poro-chat", "gpt3-finnish":
		exprs = []string{notBloom}
	case "viking":
		exprs = []string{notBloom, digit}
	case "deepseek-coder":
		exprs = []string{`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, `[一-龥ࠀ-一가-퟿]+`, digit}
	case "deepseek-llm":
		exprs = []string{`[\r\n]`, deepseekWord, `\s?[!-/:-~！-／：-～‘-‟　-。]+`, `\s+$`, `[一-龥ࠀ-一가-퟿]+`, `\p{N}+`}
	case "deepseek-v3", "hunyuan-dense", "joyai-llm":
		exprs = []string{numbers, `[一-龥぀-ゟ゠-ヿ]+`, deepseek3}
	case "seed-coder":
		exprs = []string{seed}
	case "minicpm5":
		exprs = []string{numbers, minicpm5}
	default:
		return nil, false
	}
	var patterns []pattern
	for _, expr := range exprs {
		p, ok := knownPattern(t, expr)
		if !ok {
			re, err := newRegexPattern(expr)
			if err != nil {
				return nil, false
			}
			p = re
		}
		patterns = append(patterns, p)
	}
	return isolating(patterns...), true
}
