package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/chat"
	"github.com/pianola-engine/pianola/internal/chat/jinja"
	"github.com/pianola-engine/pianola/internal/serve/answers"
	"github.com/pianola-engine/pianola/internal/serve/engine"
)

// template is a chat template with the ends of the assistant's turn.
type template struct {
	t    *chat.Template
	stop []string
}

// prepareChat parses the model's chat templates, or the source if it is not "".
func (m *Model) prepareChat(source string) (err error) {
	if m.sources, err = m.m.ChatTemplates(); err != nil {
		return err
	}
	if source != "" {
		m.sources = chat.Sources{chat.Default: source}
	}
	if m.talk, err = m.template(false); errors.Is(err, chat.ErrNoTemplate) {
		return nil
	}
	if err == nil {
		m.talkTools, err = m.template(true)
	}
	if err != nil {
		return fmt.Errorf("chat template: %w", err)
	}
	m.info.Chat = true
	in := m.input()
	const probe = "pianola_probe_tool"
	in.Messages = []chat.Message{{Role: "user", Content: "x"}}
	in.Tools = []chat.Tool{{Name: probe, Description: "x", Parameters: json.RawMessage(`{"type":"object","properties":{}}`)}}
	text, err := m.talkTools.t.Render(context.Background(), in)
	m.info.Tools = err == nil && strings.Contains(text, probe)
	return nil
}

// template parses the default template or the one for tools.
func (m *Model) template(tools bool) (*template, error) {
	t, err := m.sources.Parse("", tools)
	if err != nil {
		return nil, err
	}
	special := func(text string) (string, bool) {
		ids, err := m.tok.Encode(text, pianola.EncodeOptions{ParseSpecial: true})
		if err != nil || len(ids) == 0 || !m.tok.Special(ids[0]) {
			return "", false
		}
		return m.tok.Token(ids[0])
	}
	return &template{t, t.TurnEnds(context.Background(), m.input(), special)}, nil
}

// input returns the input of a template, without messages.
func (m *Model) input() chat.Input {
	in := chat.Input{Now: m.now(), Text: m.marks.mark}
	if id, ok := m.tok.BOS(); ok {
		in.BOS, _ = m.tok.Token(id)
	}
	if id, ok := m.tok.EOS(); ok {
		in.EOS, _ = m.tok.Token(id)
	}
	return in
}

// Chat renders a conversation.
func (m *Model) Chat(ctx context.Context, c engine.Conversation) (*engine.Prompt, error) {
	if m.talk == nil {
		return nil, &engine.UnsupportedError{Why: "it has no chat template"}
	}
	t := m.talk
	if len(c.Tools) > 0 {
		if t = m.talkTools; !m.info.Tools {
			return nil, &engine.RequestError{Param: "tools", Why: "the model's chat template has no place for tools"}
		}
	}
	in := m.input()
	in.Generate = !c.Continue
	if err := fill(&in, &c); err != nil {
		return nil, err
	}
	text, err := t.t.Render(ctx, in)
	if err != nil {
		return nil, templateFailure(ctx, err)
	}
	if c.Continue {
		last := strings.TrimSpace(m.marks.mark(c.Messages[len(c.Messages)-1].Content))
		i := strings.LastIndex(text, last)
		if last == "" || i < 0 {
			return nil, &engine.RequestError{Param: "messages", Why: "the chat template cannot continue the last message"}
		}
		text = text[:i+len(last)]
	}
	text, plain := unmark(text)
	ids, err := m.tok.Encode(text, pianola.EncodeOptions{ParseSpecial: true, Plain: plain})
	if err != nil {
		return nil, &engine.RequestError{Param: "messages", Why: err.Error()}
	}
	if len(ids) == 0 {
		return nil, &engine.RequestError{Param: "messages", Why: "the rendered conversation is empty"}
	}
	return &engine.Prompt{Text: text, IDs: ids, Stop: t.stop, Answer: func() engine.Answer { return answers.New(t.t, text, in.Tools) }}, nil
}

// templateFailure returns the error of a template that failed on a conversation.
func templateFailure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var raised *jinja.RaisedError
	if errors.As(err, &raised) {
		return &engine.RequestError{Param: "messages", Why: "the model's chat template refuses the conversation: " + raised.Message}
	}
	return &engine.RequestError{Param: "messages", Why: "the model's chat template fails on the conversation: " + err.Error()}
}

// roles are the roles of messages. Templates write a role between the parts of a special token's name,
// so that another role could become one.
var roles = []string{"system", "user", "assistant", "tool"}

// fill sets the fields of a template's input from a conversation.
func fill(in *chat.Input, c *engine.Conversation) error {
	if len(c.Messages) == 0 {
		return &engine.RequestError{Param: "messages", Why: "there are no messages"}
	}
	if last := c.Messages[len(c.Messages)-1]; c.Continue && last.Role != "assistant" {
		return &engine.RequestError{Param: "messages", Why: "only a message of the assistant can be continued"}
	}
	for i, msg := range c.Messages {
		if !slices.Contains(roles, msg.Role) {
			return &engine.RequestError{Param: fmt.Sprintf("messages[%d].role", i), Why: "the role is not one of " + strings.Join(roles, ", ")}
		}
		of := chat.Message{Role: msg.Role, Content: msg.Content, Reasoning: msg.Reasoning, Name: msg.Name, ToolCallID: msg.ToolCallID}
		for j, call := range msg.ToolCalls {
			var object map[string]json.RawMessage
			if call.Arguments != "" && json.Unmarshal([]byte(call.Arguments), &object) != nil {
				return &engine.RequestError{Param: fmt.Sprintf("messages[%d].tool_calls[%d].function.arguments", i, j), Why: "the arguments are not a JSON object"}
			}
			of.ToolCalls = append(of.ToolCalls, chat.ToolCall{ID: call.ID, Name: call.Name, Arguments: json.RawMessage(call.Arguments)})
		}
		in.Messages = append(in.Messages, of)
	}
	for _, tool := range c.Tools {
		in.Tools = append(in.Tools, chat.Tool{Name: tool.Name, Description: tool.Description, Parameters: tool.Parameters})
	}
	for name, v := range c.Vars {
		switch name {
		case "messages", "tools", "add_generation_prompt", "bos_token", "eos_token":
			return &engine.RequestError{Param: "chat_template_kwargs." + name, Why: "the variable has another field of the request"}
		}
		switch v.(type) {
		case nil, bool, int, float64, string, json.RawMessage:
		default:
			raw, err := json.Marshal(v)
			if err != nil {
				return &engine.RequestError{Param: "chat_template_kwargs." + name, Why: err.Error()}
			}
			v = json.RawMessage(raw)
		}
		if in.Vars == nil {
			in.Vars = map[string]any{}
		}
		in.Vars[name] = v
	}
	return nil
}
