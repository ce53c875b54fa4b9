// Package tokenizer turns text into token ids and back, for byte-level BPE,
// SentencePiece's BPE and unigram, and WordPiece, read from a Hugging Face
// tokenizer.json, from SentencePiece's tokenizer.model or from GGUF metadata.
//
// It knows text, vocabularies and merges. It must not know file containers
// (GGUF metadata reaches it through [Meta]), models, tensors or devices.
//
// # Encoding
//
// Text passes through the stages that the tokenizer's file names: added tokens
// are cut out, the rest is normalised and cut into words by the pre-tokenizer, and
// the model cuts each word into tokens.
//
//	model       how a word becomes tokens
//	byteBPE     its bytes are merged, by rank
//	charBPE     its characters are merged, by rank or by score; what has no token
//	            becomes tokens of bytes, or the unknown token
//	unigram     the tokens with the largest sum of scores (Viterbi)
//	wordPiece   the longest token, then the longest of the rest
//
// The patterns of published pre-tokenizers have scanners written by hand. Others
// are run by package regexp, in linear time; one that it cannot say is an
// [*UnsupportedError], never an expression that a file could make backtrack.
//
// A byte that is not part of valid UTF-8 counts as one character that is neither
// letter, number nor space, and reaches the vocabulary as it is. So with a token
// for every byte Decode(Encode(s)) is s, byte for byte, unless the tokenizer's file
// asks for something that loses text: normal forms, lower case, spaces that are
// added or squeezed, a mark that stands for a space, or added tokens that swallow
// the spaces around them.
//
// Special tokens come of text only where [EncodeOptions] ask for them to be parsed.
//
// A [*Tokenizer] may be used by any number of goroutines at once.
package tokenizer
