// Package chat renders conversations as the texts that models were trained on, with the chat
// templates in the models' files.
//
// The package knows messages, tools, and where model files store templates. Package jinja
// renders the templates. The package must not import tokenizers or models.
package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pianola-engine/pianola/internal/chat/jinja"
)

// Message is one message of a conversation.
type Message struct {
	Role    string `json:"role"` // "system", "user", "assistant", "tool" and other roles that the template knows
	Content string `json:"content"`
	// Reasoning is the assistant's reasoning before its answer. Some templates have no place for
	// it and omit it.
	Reasoning  string     `json:"reasoning_content,omitempty"`
	Name       string     `json:"name,omitempty"` // name of the tool whose result this is
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

// ToolCall is a call of a tool that the assistant requests.
type ToolCall struct {
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"` // an object; its keys keep their order
}

// Tool is a function that the assistant may call.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"` // a JSON schema; its keys keep their order
}

// Input is the input of a template.
type Input struct {
	Messages []Message
	Tools    []Tool
	// Generate appends the beginning of the assistant's next message to the text
	// (add_generation_prompt).
	Generate bool
	// BOS and EOS are the values of the template variables bos_token and eos_token.
	BOS, EOS string
	// Vars are additional variables of the template, such as "enable_thinking". A value is
	// a bool, int, float64, string, nil or json.RawMessage.
	Vars map[string]any
	Now  time.Time // time for strftime_now; the zero time means the current time
	// Text, if not nil, replaces every text of Messages, Tools and Vars before the template sees it, also
	// those within JSON. It must not change the result of a comparison that a template makes, such as
	// that of a role.
	Text func(string) string
}

// Template is a parsed chat template. Several goroutines may use it at once.
type Template struct {
	t      *jinja.Template
	format answerFormat
	think  thinkMarks

	toolsInMessage bool // the template expects tools in messages

	mu                sync.Mutex
	asked, askedCalls bool // the results cached in known
	known             style
}

// Parse parses a template. The error is a *jinja.Error.
func Parse(source string) (*Template, error) {
	t, err := jinja.Parse(source)
	if err != nil {
		return nil, err
	}
	return &Template{
		t: t, format: formatOf(source), think: thinkMarksOf(source), toolsInMessage: strings.Contains(source, "'tools' in message"),
	}, nil
}

// Render returns the text of the conversation. The error is a *jinja.Error if the template is
// faulty or rejects the conversation (*jinja.RaisedError). Invalid JSON in the input is also
// an error.
//
// By default a message's content is a string and a call's arguments are an object, as in
// transformers. If the template fails with these or omits the calls, Render passes contents as
// lists of parts, arguments as JSON text, or no content for a message that has only calls. The
// template of Phi 4 mini receives the tools in the system message.
func (t *Template) Render(ctx context.Context, in Input) (string, error) {
	vars, err := in.vars(t.style(ctx, &in))
	if err != nil {
		return "", err
	}
	now := time.Now
	if !in.Now.IsZero() {
		now = func() time.Time { return in.Now }
	}
	return t.t.Render(ctx, vars, jinja.Options{Now: now})
}

// vars returns the template's variables under the names that transformers uses.
func (in *Input) vars(s style) (map[string]any, error) {
	vars := map[string]any{
		"bos_token": in.BOS, "eos_token": in.EOS, "add_generation_prompt": in.Generate, "tools": nil, "documents": nil,
	}
	for name, v := range in.Vars {
		if raw, ok := v.(json.RawMessage); ok {
			var err error
			if v, err = jinja.FromJSON(raw); err != nil {
				return nil, fmt.Errorf("chat: variable %s: %w", name, err)
			}
		}
		switch v.(type) {
		case nil, bool, int, float64, string, *jinja.List, *jinja.Dict:
			vars[name] = v
		default:
			return nil, fmt.Errorf("chat: variable %s is a %T", name, v)
		}
	}
	messages := &jinja.List{}
	for i := range in.Messages {
		m, err := in.Messages[i].value(s)
		if err != nil {
			return nil, fmt.Errorf("chat: message %d: %w", i, err)
		}
		messages.Items = append(messages.Items, m)
	}
	vars["messages"] = messages
	if len(in.Tools) > 0 {
		tools := &jinja.List{}
		for _, t := range in.Tools {
			parameters, err := object(t.Parameters)
			if err != nil {
				return nil, fmt.Errorf("chat: parameters of tool %s: %w", t.Name, err)
			}
			tools.Items = append(tools.Items, jinja.NewDict("type", "function", "function",
				jinja.NewDict("name", t.Name, "description", t.Description, "parameters", parameters)))
		}
		vars["tools"] = tools
		if s.inSystem {
			if err := toolsToSystem(messages, tools); err != nil {
				return nil, fmt.Errorf("chat: tools: %w", err)
			}
		}
	}
	if in.Text != nil {
		for name, v := range vars {
			if _, given := in.Vars[name]; given || name == "messages" || name == "tools" {
				vars[name] = jinja.MapText(v, in.Text)
			}
		}
	}
	return vars, nil
}

// value returns the message in the form that templates expect.
func (m *Message) value(s style) (*jinja.Dict, error) {
	var content any = m.Content
	switch {
	case s.noContent && m.Content == "" && len(m.ToolCalls) > 0:
		content = nil
	case s.parts:
		content = &jinja.List{Items: []any{jinja.NewDict("type", "text", "text", m.Content)}}
	}
	d := jinja.NewDict("role", m.Role, "content", content)
	if m.Reasoning != "" {
		d.Set("reasoning_content", m.Reasoning)
		d.Set("thinking", m.Reasoning) // the name in gpt-oss's template
	}
	if m.Name != "" {
		d.Set("name", m.Name)
	}
	if m.ToolCallID != "" {
		d.Set("tool_call_id", m.ToolCallID)
	}
	if len(m.ToolCalls) > 0 {
		calls := &jinja.List{}
		for _, c := range m.ToolCalls {
			arguments, err := object(c.Arguments)
			if err != nil {
				return nil, fmt.Errorf("arguments of tool %s: %w", c.Name, err)
			}
			if s.jsonText {
				arguments = string(c.Arguments)
				if len(c.Arguments) == 0 {
					arguments = "{}"
				}
			}
			call := jinja.NewDict("type", "function", "function", jinja.NewDict("name", c.Name, "arguments", arguments))
			if c.ID != "" {
				call.Set("id", c.ID)
			}
			calls.Items = append(calls.Items, call)
		}
		d.Set("tool_calls", calls)
	}
	return d, nil
}

// object converts a JSON object to a value. Empty text becomes an empty object.
func object(raw json.RawMessage) (any, error) {
	if len(raw) == 0 {
		return jinja.NewDict(), nil
	}
	v, err := jinja.FromJSON(raw)
	if err != nil {
		return nil, err
	}
	if _, ok := v.(*jinja.Dict); !ok {
		return nil, errors.New("want a JSON object")
	}
	return v, nil
}

// endMark is the content of a message that EndOfTurn searches in the rendered text.
const endMark = "pianola-end-of-turn"

// EndOfTurn returns the text that follows an assistant's message and ends its turn, such as
// "<|im_end|>
// ". It returns "" if the template has no such text or rejects the conversation.
func (t *Template) EndOfTurn(ctx context.Context, in Input) string {
	in.Messages = []Message{{Role: "user", Content: "x"}, {Role: "assistant", Content: endMark}}
	in.Tools, in.Generate = nil, false
	text, err := t.Render(ctx, in)
	if err != nil {
		return ""
	}
	_, end, _ := strings.Cut(text, endMark)
	return end
}

// callEnds are the tokens with which Llama 3 and gpt-oss end a turn that calls a tool.
var callEnds = []string{"<|eom_id|>", "<|call|>"}

// TurnEnds returns what ends the assistant's turn: names of special tokens, and a text if the template
// ends the turn with one. special returns the name of the special token at the beginning of a text.
func (t *Template) TurnEnds(ctx context.Context, in Input, special func(text string) (name string, ok bool)) (ends []string) {
	for _, name := range callEnds {
		if of, ok := special(name); ok && of == name {
			ends = append(ends, name)
		}
	}
	end := strings.TrimSpace(t.EndOfTurn(ctx, in))
	if name, ok := special(end); ok {
		return append(ends, name)
	}
	if end, _, _ = strings.Cut(end, "\n"); end != "" {
		ends = append(ends, end)
	}
	return ends
}
