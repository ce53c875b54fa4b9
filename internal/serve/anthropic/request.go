package anthropic

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fields"
)

// check returns the first fault that no field has alone. count reports a request to count tokens.
func (r *request) check(count bool) error {
	switch {
	case r.maxTokens == 0 && !count:
		return &fields.Error{Param: "max_tokens", Why: "it is required"}
	case len(r.messages) == 0:
		return &fields.Error{Param: "messages", Why: "at least one message is required"}
	}
	return nil
}

// conversation returns the conversation of a request.
func (r *request) conversation() (*engine.Conversation, error) {
	c := &engine.Conversation{Tools: r.tools, Vars: map[string]any{"enable_thinking": r.thinks}}
	if r.toolChoice == "none" {
		c.Tools = nil
	}
	if r.effort != "" {
		c.Vars["reasoning_effort"] = r.effort
	}
	if r.system != "" {
		c.Messages = append(c.Messages, engine.Message{Role: "system", Content: r.system})
	}
	names := map[string]string{} // of the tools called, by the call's id
	for _, m := range r.messages {
		all, err := m.translate(names)
		if err != nil {
			return nil, err
		}
		c.Messages = append(c.Messages, all...)
	}
	c.Continue = r.messages[len(r.messages)-1].Role == "assistant"
	return c, nil
}

// translate returns the messages that a message of a request becomes: each result of a tool is a
// message of its own. names are the names of the tools called before, by the call's id.
func (m *message) translate(names map[string]string) ([]engine.Message, error) {
	var results []engine.Message
	said := engine.Message{Role: m.Role}
	for _, b := range m.Blocks {
		switch {
		case b.Type == "text":
			said.Content = join(said.Content, b.Text)
		case b.Type == "thinking" && m.Role == "assistant":
			said.Reasoning = join(said.Reasoning, b.Text)
		case b.Type == "tool_use" && m.Role == "assistant":
			if b.ID == "" || b.Name == "" || b.Input == nil {
				return nil, b.at.Errorf("a block of type tool_use needs an id, a name and an input")
			}
			names[b.ID] = b.Name
			said.ToolCalls = append(said.ToolCalls, engine.ToolCall{ID: b.ID, Name: b.Name, Arguments: string(b.Input)})
		case b.Type == "tool_result" && m.Role == "user":
			name, ok := names[b.ID]
			if !ok {
				return nil, &fields.Error{Param: b.at.Path + ".tool_use_id", Why: fmt.Sprintf("no block of type tool_use before it has the id %.80q", b.ID)}
			}
			results = append(results, engine.Message{Role: "tool", Name: name, ToolCallID: b.ID, Content: b.Text})
		default:
			return nil, b.at.Errorf("blocks of type %.80q are not supported in a message of the role %s", b.Type, m.Role)
		}
	}
	if len(results) > 0 && said.Content == "" {
		return results, nil
	}
	return append(results, said), nil
}
