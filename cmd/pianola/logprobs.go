package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/pianola-engine/pianola"
)

// rankedToken is a token with its log-probability, and the most probable tokens at its position.
type rankedToken struct {
	ID      int32         `json:"id"`
	Text    string        `json:"text"`    // of the token alone
	LogProb *float64      `json:"logprob"` // null for minus infinity
	Top     []rankedToken `json:"top,omitempty"`
}

// rankedList collects generated tokens with their log-probabilities.
type rankedList struct {
	tok    *pianola.Tokenizer
	tokens []rankedToken
}

func (l *rankedList) add(t pianola.Token) {
	r := l.token(pianola.LogProb{ID: t.ID, LogProb: t.LogProb})
	for _, p := range t.Top {
		r.Top = append(r.Top, l.token(p))
	}
	l.tokens = append(l.tokens, r)
}

func (l *rankedList) last() *rankedToken { return &l.tokens[len(l.tokens)-1] }

func (l *rankedList) token(p pianola.LogProb) rankedToken {
	dec := l.tok.NewDecoder()
	text, err := dec.Next(p.ID)
	if text += dec.Flush(); err != nil || text == "" {
		text, _ = l.tok.Token(p.ID) // a special token, or padding of the vocabulary
	}
	r := rankedToken{ID: p.ID, Text: text}
	if v := float64(p.LogProb); !math.IsInf(v, 0) {
		r.LogProb = &v
	}
	return r
}

// String returns one line with the token and the most probable tokens at its position.
func (t *rankedToken) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%8s %6d %-16q", t.figure(), t.ID, t.Text)
	for i := range t.Top {
		fmt.Fprintf(&b, "  %s %q", t.Top[i].figure(), t.Top[i].Text)
	}
	return b.String()
}

func (t *rankedToken) figure() string {
	if t.LogProb == nil {
		return "-inf"
	}
	return fmt.Sprintf("%.4f", *t.LogProb)
}
