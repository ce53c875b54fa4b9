package responses

import (
	"fmt"
	"math/rand/v2"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fields"
)

// functions returns the functions that the model may call.
func (r *request) functions() []engine.Tool {
	if r.toolChoice == "none" {
		return nil
	}
	var tools []engine.Tool
	for _, f := range r.tools {
		t := engine.Tool{Name: f.Name, Parameters: f.Parameters}
		if f.Description != nil {
			t.Description = *f.Description
		}
		tools = append(tools, t)
	}
	return tools
}

// sampling returns how tokens are chosen.
func (r *request) sampling() engine.Sampling {
	s := engine.Sampling{
		Seed: rand.Uint64(), Temperature: r.temperature, TopP: r.topP,
		PresencePenalty: r.presence, FrequencyPenalty: r.frequency,
	}
	if r.logProbs {
		s.LogProbs = r.topLogProbs + 1
	}
	return s
}

// vars returns the variables of the chat template that follow from the request.
func (r *request) vars() map[string]any {
	if r.effort == nil {
		return nil
	}
	return map[string]any{"reasoning_effort": *r.effort, "enable_thinking": *r.effort != "none"}
}

// conversation returns the conversation of a request, and the items of its input. The items before the
// input are those of the responses before this one.
func (r *request) conversation(before, input []Item) (*engine.Conversation, error) {
	var all []Item
	if r.instructions != nil && *r.instructions != "" {
		all = append(all, Item{Type: messageItem, Role: "system", Text: []Text{{Text: *r.instructions}}})
	}
	all = append(all, before...)
	known := len(all)
	all = append(all, input...)
	m, err := messages(all, func(i int) string { return fmt.Sprintf("input[%d]", i-known) })
	if err != nil {
		return nil, err
	}
	if len(m) == 0 {
		return nil, &fields.Error{Param: "input", Why: "the conversation is empty"}
	}
	return &engine.Conversation{Messages: m, Tools: r.functions(), Vars: r.vars()}, nil
}
