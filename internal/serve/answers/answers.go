// Package answers parses the answers of models while they are generated, in the format of their chat
// template's family.
//
// The package knows package chat and the interface of package engine. It must not know a protocol.
package answers

import (
	"github.com/pianola-engine/pianola/internal/chat"
	"github.com/pianola-engine/pianola/internal/serve/engine"
)

// New returns the parser of one answer to a prompt, which is the rendered conversation.
func New(t *chat.Template, prompt string, tools []chat.Tool) engine.Answer {
	return &answer{s: t.Stream(prompt, tools)}
}

// answer gives the deltas of package chat the form of package engine.
type answer struct {
	s     *chat.AnswerStream
	calls int
}

func (a *answer) Add(t engine.Token) []engine.Delta {
	var deltas []chat.Delta
	if t.Text != "" {
		deltas = a.s.Add(t.Text)
	}
	if t.Special != "" {
		deltas = append(deltas, a.s.Special(t.Special)...)
	}
	return a.convert(deltas)
}

func (a *answer) End() []engine.Delta { return a.convert(a.s.End()) }

// convert divides a call into its name and its arguments, as clients expect.
func (a *answer) convert(deltas []chat.Delta) (list []engine.Delta) {
	for _, d := range deltas {
		if d.Call != nil {
			list = append(list, engine.Delta{Call: &engine.CallDelta{Index: a.calls, ID: d.Call.ID, Name: d.Call.Name}})
			a.calls++
			d.Arguments = string(d.Call.Arguments)
		}
		switch {
		case d.Arguments != "":
			list = append(list, engine.Delta{Call: &engine.CallDelta{Index: a.calls - 1, Arguments: d.Arguments}})
		case d.Call == nil:
			list = append(list, engine.Delta{Reasoning: d.Reasoning, Content: d.Content})
		}
	}
	return list
}
