// Package tokenizer turns text into token ids and back for byte-level BPE
// vocabularies, read from a Hugging Face tokenizer.json or from GGUF metadata.
//
// It knows text, vocabularies and merges. It must not know file containers
// (GGUF metadata reaches it through [Meta]), models, tensors or devices.
//
// # Encoding
//
// Text passes through the stages that the tokenizer's file names: added tokens
// are cut out, the rest is normalised (NFC or not at all), split into words by
// the pre-tokenizer, and each word's bytes are merged by rank. The splitters
// are hand-written scanners for a fixed list of patterns; a pattern outside the
// list is an [*UnsupportedError], never a regular expression that a file could
// make backtrack.
//
// The scanners work on bytes: a byte that is not part of valid UTF-8 counts as
// one character that is neither letter, number nor space, and reaches the
// vocabulary as it is. So Decode(Encode(s)) is s, byte for byte, unless the
// tokenizer's file asks for something that loses text: NFC, a prefix space, or
// added tokens that swallow the spaces around them.
//
// A [*Tokenizer] may be used by any number of goroutines at once.
package tokenizer
