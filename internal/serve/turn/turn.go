// Package turn runs one request on a model: it renders the conversation, generates the choices at
// the same time, and turns tokens into the events that every protocol of the service needs.
//
// The package knows no protocol. Those who call it translate requests and events.
package turn

import (
	"context"

	"github.com/pianola-engine/pianola/internal/serve/engine"
)

// Request is a request for one or more answers.
type Request struct {
	// Conversation is what a chat template renders; with nil, the prompt of Generation is used as it is.
	Conversation *engine.Conversation
	Generation   engine.Generation
	// Choices is the number of answers, at least 1. Answer i is drawn with the seed Generation.Sampling.Seed+i.
	Choices int
	// Whole asks for no events before a choice ends: events of the same kind are joined.
	Whole bool
}

// Event is a piece of an answer.
type Event struct {
	Choice int
	Delta  engine.Delta   // empty in the last event of a choice
	Tokens []engine.Token // the tokens that have come since the choice's last event, for log-probabilities
	// Done is set in the last event of a choice.
	Done *Done
}

// Done is the end of a choice.
type Done struct {
	Result engine.Result
	Calls  int // number of tool calls
}

// Usage are the tokens of a request. The prompt counts once, however many choices it has.
type Usage struct {
	Prompt, Cached, Generated int
	Reasoning                 int // generated tokens before the answer proper
}

// Run runs a request and calls emit with its events, from one goroutine at a time. An error of emit,
// as of a client that is gone, ends all choices and is returned. Other errors are those of
// engine.Model; an error of one choice ends the others.
func Run(ctx context.Context, m engine.Model, r *Request, emit func(Event) error) (Usage, error) {
	return Usage{}, engine.ErrUnsupported
}
