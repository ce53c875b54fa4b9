package synth

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/gguf"
)

func find(t *testing.T, entries []gguf.KV, key string) any {
	t.Helper()
	for _, e := range entries {
		if e.Key == key {
			return e.Value
		}
	}
	t.Fatalf("the metadata lacks the key %s", key)
	return nil
}

// TestGopherVocabulary checks that the shape gopher has the tokens and merges of the real
// model.
func TestGopherVocabulary(t *testing.T) {
	text, err := os.ReadFile("../../testdata/gopher/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	var tokenizer struct {
		Model struct {
			Vocab  map[string]int
			Merges [][2]string
		}
	}
	if err := json.Unmarshal(text, &tokenizer); err != nil {
		t.Fatal(err)
	}
	s, _ := FindShape("gopher")
	entries, err := s.vocabulary.metadata(s.Vocab)
	if err != nil {
		t.Fatal(err)
	}
	merges := find(t, entries, "tokenizer.ggml.merges").([]string)
	if len(merges) != len(tokenizer.Model.Merges) {
		t.Fatalf("%d merges, want %d", len(merges), len(tokenizer.Model.Merges))
	}
	for i, m := range tokenizer.Model.Merges {
		if merges[i] != m[0]+" "+m[1] {
			t.Fatalf("merge %d is %q, want %q", i, merges[i], m)
		}
	}
	tokens := find(t, entries, "tokenizer.ggml.tokens").([]string)
	for id, token := range tokens {
		if want, ok := tokenizer.Model.Vocab[token]; !ok || want != id {
			t.Fatalf("token %d is %q, which is %d (%v)", id, token, want, ok)
		}
	}
}

func TestVocabularies(t *testing.T) {
	for _, s := range Shapes() {
		entries, err := s.vocabulary.metadata(s.Vocab)
		if err != nil {
			t.Fatal(err)
		}
		tokens := find(t, entries, "tokenizer.ggml.tokens").([]string)
		types := find(t, entries, "tokenizer.ggml.token_type").([]int32)
		if len(tokens) != int(s.Vocab) || len(types) != int(s.Vocab) {
			t.Errorf("%s: %d tokens and %d token types, want %d", s.Name, len(tokens), len(types), s.Vocab)
		}
		ids := map[string]int{}
		for id, token := range tokens {
			if other, ok := ids[token]; ok {
				t.Fatalf("%s: %q has the ids %d and %d", s.Name, token, other, id)
			}
			ids[token] = id
		}
		for _, m := range find(t, entries, "tokenizer.ggml.merges").([]string) {
			left, right, ok := strings.Cut(m, " ")
			for _, token := range []string{left, right, left + right} {
				if id, known := ids[token]; !ok || !known || types[id] != tokenNormal {
					t.Fatalf("%s: merge %q: %q is not a token", s.Name, m, token)
				}
			}
		}
		for _, special := range s.vocabulary.specials {
			if ids[special.text] != int(special.id) || types[special.id] != tokenControl {
				t.Errorf("%s: %s is token %d of type %d", s.Name, special.text, ids[special.text], types[special.id])
			}
		}
		for _, e := range s.vocabulary.ids {
			if id, ok := e.Value.(uint32); ok && types[id] != tokenControl {
				t.Errorf("%s: %s is %q", s.Name, e.Key, tokens[id])
			}
		}
		if unused := slices.Contains(types, tokenUnused); unused != (s.Name != "gopher") {
			t.Errorf("%s: padding: %v", s.Name, unused)
		}
	}
	if _, err := gopherVocabulary.metadata(4095); err == nil {
		t.Error("a vocabulary of 4095 tokens accepts 4096 tokens")
	}
	if _, err := qwenVocabulary.metadata(4096); err == nil {
		t.Error("a vocabulary of 4096 tokens accepts the id 151643")
	}
}
