// Package tokenizer converts text to token ids and back. It implements byte-level BPE,
// SentencePiece's BPE and unigram, and WordPiece, and reads them from a Hugging Face
// tokenizer.json, from SentencePiece's tokenizer.model, or from GGUF metadata.
//
// The package knows text, vocabularies and merges. It must not import packages for file
// containers, models, tensors or devices. GGUF metadata reaches it through [Meta].
//
// # Encoding
//
// Text passes through the stages that the tokenizer's file lists. First the added tokens are
// cut out. The rest is normalised, the pre-tokenizer splits it into words, and the model
// splits each word into tokens.
//
//	model       how a word becomes tokens
//	byteBPE     merges its bytes, by rank
//	charBPE     merges its characters, by rank or by score; characters without a
//	            token become byte tokens or the unknown token
//	unigram     takes the tokens with the largest sum of scores (Viterbi)
//	wordPiece   takes the longest token, then the longest of the rest
//
// The patterns of published pre-tokenizers have hand-written scanners. Package regexp runs other
// patterns, in linear time. A pattern that it does not support is an [*UnsupportedError], so no
// file can make matching backtrack.
//
// A byte that is not part of valid UTF-8 counts as one character that is neither letter,
// number nor space, and reaches the vocabulary unchanged. So if there is a token for every
// byte, Decode(Encode(s)) equals s byte for byte. The exceptions are tokenizers with stages
// that lose text: normal forms, lower-casing, added or squeezed spaces, a mark that replaces
// spaces, or added tokens that absorb the spaces around them.
//
// Special tokens are parsed from text only if [EncodeOptions] requests it.
//
// A [*Tokenizer] may be used by any number of goroutines at once.
package tokenizer
