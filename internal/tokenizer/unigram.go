package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// unigram splits a word into the tokens with the largest sum of scores, which it finds by the
// Viterbi algorithm. Scores are logarithms of probabilities.
type unigram struct {
	trie   *trie
	scores []float64 // by id
	// single rounds every sum to float32 as SentencePiece does, so that near ties have the same
	// result.
	single bool

	unk      int32 // unknown token; noID makes an unknown character an error
	unkScore float64
	fuse     bool       // adjacent unknown characters share one unk
	bytes    [256]int32 // byte fallback in place of unk; noID for bytes without a token
}

// unkPenalty is subtracted from the lowest score to obtain the score of an unknown character.
const unkPenalty = 10

// maxUnigramToken bounds the length of a token in bytes, and so the time per character.
const maxUnigramToken = 1 << 12

// newUnigram returns a model with the tokens for which in is true.
func newUnigram(tokens []string, scores []float64, in func(id int) bool) (*unigram, error) {
	m := &unigram{trie: newTrie(2 * len(tokens)), scores: scores, unk: noID, fuse: true}
	for i := range m.bytes {
		m.bytes[i] = noID
	}
	for id, token := range tokens {
		if token == "" || !in(id) {
			continue
		}
		if len(token) > maxUnigramToken {
			return nil, fmt.Errorf("token %s is longer than %d bytes", quote(token), maxUnigramToken)
		}
		m.trie.add(token, int32(id))
	}
	return m, nil
}

// paths holds the best path to each position of a word. Its buffers are reused for the next
// word.
type paths struct{ nodes []pathNode }

type pathNode struct {
	score float64
	from  int32 // start of the last token, or -1 if no path has been found
	id    int32
}

// encode finds the best path. It writes the tokens up to each position that every path must
// pass, so that memory depends on the length of the longest token, not on the length of s.
func (m *unigram) encode(e *encoder, s string) error {
	const none = -1
	w := unigramWriter{unigram: m, e: e, s: s}
	nodes := append(e.paths.nodes[:0], pathNode{from: 0})
	base := 0 // position of nodes[0]
	for at := 0; at < len(s); {
		if here := at - base; here > 0 && here == len(nodes)-1 {
			if err := w.write(nodes, base); err != nil {
				return err
			}
			nodes = append(nodes[:0], pathNode{score: nodes[here].score})
			base = at
		}
		here := at - base
		_, char := utf8.DecodeRuneInString(s[at:])
		reach := func(length int) *pathNode {
			for len(nodes) <= here+length {
				nodes = append(nodes, pathNode{from: none})
			}
			return &nodes[here+length]
		}
		so := nodes[here].score
		covered := false
		node := int32(0)
		for i := at; i < len(s); i++ {
			if node = m.trie.child(node, s[i]); node == 0 {
				break
			}
			id := m.trie.values[node]
			if id < 0 {
				continue
			}
			length := i + 1 - at
			covered = covered || length == char
			to := reach(length)
			score := m.round(m.scores[id] + so)
			if to.from == none || score > to.score {
				*to = pathNode{score, int32(here), id}
			}
		}
		if !covered {
			to := reach(char)
			score := m.round(m.unkScore + so)
			if to.from == none || score > to.score {
				*to = pathNode{score, int32(here), none}
			}
		}
		at += char
	}
	e.paths.nodes = nodes
	if err := w.write(nodes, base); err != nil {
		return err
	}
	return w.flush(len(s))
}

func (m *unigram) round(score float64) float64 {
	if m.single {
		return float64(float32(score))
	}
	return score
}

// unigramWriter writes the tokens of one word.
type unigramWriter struct {
	*unigram
	e       *encoder
	s       string
	steps   []int32
	unknown int // start of the run of unknown characters, plus one; 0: no run
}

// write appends the tokens of the path that ends at the last node.
func (w *unigramWriter) write(nodes []pathNode, base int) error {
	w.steps = w.steps[:0]
	for at := int32(len(nodes) - 1); at > 0; at = nodes[at].from {
		w.steps = append(w.steps, at)
	}
	slices.Reverse(w.steps)
	for _, at := range w.steps {
		n := nodes[at]
		if n.id == noID {
			if w.unknown == 0 {
				w.unknown = base + int(n.from) + 1
			}
			if !w.fuse {
				if err := w.flush(base + int(at)); err != nil {
					return err
				}
			}
			continue
		}
		if err := w.flush(base + int(n.from)); err != nil {
			return err
		}
		w.e.ids = append(w.e.ids, n.id)
	}
	return nil
}

// flush writes the tokens for the pending unknown characters before end.
func (w *unigramWriter) flush(end int) error {
	if w.unknown == 0 {
		return nil
	}
	text := w.s[w.unknown-1 : end]
	w.unknown = 0
	for i := range len(text) {
		if w.bytes[text[i]] == noID {
			if w.unk == noID {
				return noToken(text)
			}
			w.e.ids = append(w.e.ids, w.unk)
			return nil
		}
	}
	for i := range len(text) {
		w.e.ids = append(w.e.ids, w.bytes[text[i]])
	}
	return nil
}

// unigram returns SentencePiece's model: user-defined tokens take precedence, and unused,
// control and byte tokens are not matched.
func (v *scored) unigram() (*unigram, error) {
	lowest, highest := float32(math.MaxFloat32), float32(-math.MaxFloat32)
	for id, kind := range v.kinds {
		if kind == normal {
			lowest, highest = min(lowest, v.scores[id]), max(highest, v.scores[id])
		}
	}
	scores := make([]float64, len(v.scores))
	for id, s := range v.scores {
		scores[id] = float64(s)
		if v.kinds[id] == userDefined {
			if scores[id] = 0; v.frozen {
				scores[id] = float64(float32(len(v.tokens[id]))*highest) - 0.1
			}
		}
	}
	m, err := newUnigram(v.tokens, scores, func(id int) bool {
		return v.kinds[id] == normal || v.kinds[id] == userDefined || v.kinds[id] == unused && !v.frozen
	})
	if err != nil {
		return nil, err
	}
	m.single = v.frozen
	m.unk, m.unkScore, m.bytes = v.unk, float64(lowest-unkPenalty), v.fallbackBytes()
	return m, nil
}
