package tokenizer

import (
	"strings"
	"testing"
)

// modelCase is one of the tokenizers that cover every model type and file format.
type modelCase struct {
	name string
	tok  *Tokenizer
	// exact reports whether decoding restores every encoded text.
	exact bool
}

func modelCases(t testing.TB) []modelCase {
	t.Helper()
	var cases []modelCase
	bases := readReference[map[string]object](t, "bases.json")
	exact := map[string]bool{"gpt2": true, "llama3": true, "llama2": true, "gemma": true, "o200k": true}
	names := map[string]bool{"unigram wide bytes": true, "t5": true, "xlmr": true, "unigram metaspace": true, "bert": true, "deepseek3": true, "mistral": true}
	for _, v := range readVariants(t) {
		if exact[v.Name] || names[v.Name] {
			cases = append(cases, modelCase{"tokenizer.json " + v.Name, v.load(t, bases), exact[v.Name]})
		}
	}
	for _, name := range []string{"llama", "gemma", "bpe_wide", "unigram", "unigram_bytes"} {
		tok, err := FromSentencePiece(reference(t, name+".model"), nil)
		if err != nil {
			t.Fatal(err)
		}
		cases = append(cases, modelCase{"tokenizer.model " + name, tok, name != "unigram"})
	}
	golden := readReference[struct{ Models map[string]llamaResult }](t, "llamacpp.json")
	for _, name := range []string{"llama", "gemma", "t5", "bert"} {
		r := golden.Models[name]
		tok, err := FromGGUF(r.meta(t))
		if err != nil {
			t.Fatal(err)
		}
		cases = append(cases, modelCase{"GGUF " + name, tok, name == "llama" || name == "gemma"})
	}
	if len(cases) != len(exact)+len(names)+9 {
		t.Fatalf("got %d tokenizers, want one per name", len(cases))
	}
	return cases
}

func BenchmarkModels(b *testing.B) {
	texts := map[string]string{"heldout": heldout(b), "corpus": strings.Repeat(corpus(b), 30)}
	for _, c := range modelCases(b) {
		for _, name := range []string{"heldout", "corpus"} {
			b.Run(strings.ReplaceAll(c.name, " ", "-")+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(len(texts[name])))
				for b.Loop() {
					c.tok.cache = newWordCache()
					encode(b, c.tok, texts[name], EncodeOptions{})
				}
			})
		}
	}
}
