package openai

import (
	"encoding/json"
	"strings"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fields"
)

// chatRequest is a request for chat completions.
type chatRequest struct {
	common
	c             engine.Conversation
	maxCompletion int
	logprobs      bool
	topLogProbs   int
	noTools       bool // tool_choice is "none"
	oneCall       bool // parallel_tool_calls is false
	newTurn       *bool
}

// The bounds of lists in conversations.
const (
	maxMessages = 10_000
	maxParts    = 1_000
	maxTools    = 1_024
	maxCalls    = 1_024
	maxVars     = 64
)

func chatCommon(q *chatRequest) *common { return &q.common }

// chatFields is the table of a request for chat completions. It is set in a function because its entries
// are many kinds of tables.
var chatFields = append([]fields.Field[chatRequest]{
	{Name: "messages", Doc: "see the table of messages", Read: readMessages},
	{Name: "max_tokens", Doc: "1 or more; default: up to the end of the context", Read: func(q *chatRequest, v fields.Value) error { return v.Int(&q.g.MaxTokens, 1, maxInt) }},
	{Name: "max_completion_tokens", Doc: "as `max_tokens`; the smaller one counts", Read: func(q *chatRequest, v fields.Value) error { return v.Int(&q.maxCompletion, 1, maxInt) }},
	{Name: "logprobs", Doc: "whether tokens have log-probabilities", Read: func(q *chatRequest, v fields.Value) error { return v.Bool(&q.logprobs) }},
	{Name: "top_logprobs", Doc: "0 to 20 alternatives; requires `logprobs`", Read: func(q *chatRequest, v fields.Value) error { return v.Int(&q.topLogProbs, 0, 20) }},
	{Name: "tools", Doc: "functions; `strict` and other kinds of tools are refused", Read: readTools},
	{Name: "tool_choice", Doc: "`none` or `auto`; `required` and named functions are refused", Read: func(q *chatRequest, v fields.Value) error {
		if v.Kind() == "an object" || string(v.Raw) == `"required"` {
			return v.Errorf("tool_choice %.60s is not supported: %s", v.Raw, noConstraint)
		}
		var choice string
		err := v.Choice(&choice, "none", "auto")
		q.noTools = choice == "none"
		return err
	}},
	{Name: "parallel_tool_calls", Doc: "false ends an answer after its first call", Read: func(q *chatRequest, v fields.Value) error {
		parallel := true
		err := v.Bool(&parallel)
		q.oneCall = !parallel
		return err
	}},
	{Name: "response_format", Doc: "`{\"type\": \"text\"}`; `json_object` and `json_schema` are refused", Read: func(_ *chatRequest, v fields.Value) error {
		return fields.Read(v, formatFields, &struct{}{})
	}},
	{Name: "reasoning_effort", Doc: "a variable of the chat template; `none` also sets `enable_thinking` to false", Read: func(q *chatRequest, v fields.Value) error {
		var effort string
		err := v.Choice(&effort, "none", "minimal", "low", "medium", "high", "xhigh")
		q.set("reasoning_effort", effort)
		if effort == "none" {
			q.set("enable_thinking", false)
		}
		return err
	}},
	{Name: "chat_template_kwargs", Doc: "variables of the chat template, such as `enable_thinking`", Read: readVars},
	{Name: "continue_final_message", Doc: "the model continues the last message, which is the assistant's", Read: func(q *chatRequest, v fields.Value) error { return v.Bool(&q.c.Continue) }},
	{Name: "add_generation_prompt", Doc: "the opposite of `continue_final_message`", Read: func(q *chatRequest, v fields.Value) error {
		q.newTurn = new(bool)
		return v.Bool(q.newTurn)
	}},
	{Name: "modalities", Doc: "`[\"text\"]`", Read: func(_ *chatRequest, v fields.Value) error {
		list, err := v.List(8)
		for _, one := range list {
			if string(one.Raw) != `"text"` {
				return one.Errorf("the service gives text only")
			}
		}
		return err
	}},
	{Name: "prediction", Doc: "it changes the speed only"},
	{Name: "moderation", Refused: "nothing is moderated"},
	{Name: "audio", Refused: "the service gives text only"},
	{Name: "web_search_options", Refused: "the service searches nothing"},
	{Name: "verbosity", Refused: "models have no such setting"},
	{Name: "functions", Refused: "use tools"},
	{Name: "function_call", Refused: "use tool_choice"},
}, commonFields(chatCommon)...)

// set sets a variable of the chat template.
func (q *chatRequest) set(name string, v any) {
	if q.c.Vars == nil {
		q.c.Vars = map[string]any{}
	}
	q.c.Vars[name] = v
}

var formatFields = []fields.Field[struct{}]{
	{Name: "type", Doc: "`text`", Read: func(_ *struct{}, v fields.Value) error {
		if string(v.Raw) != `"text"` {
			return v.Errorf("response_format %.40s is not supported: %s", v.Raw, noConstraint)
		}
		return nil
	}},
	{Name: "json_schema", Refused: noConstraint},
}

// readVars reads the variables of the chat template.
func readVars(q *chatRequest, v fields.Value) error {
	members, err := v.Members()
	if err != nil {
		return err
	}
	if len(members) > maxVars {
		return v.Errorf("at most %d variables are allowed", maxVars)
	}
	for name, one := range members {
		q.set(name, one.Raw)
	}
	return nil
}

// message is a message while it is read.
type message struct {
	engine.Message
	refusal string
}

var messageFields = []fields.Field[message]{
	{Name: "role", Doc: "`developer` (as `system`), `system`, `user`, `assistant`, `tool`", Read: func(m *message, v fields.Value) error {
		if string(v.Raw) == `"function"` {
			return v.Errorf("messages of functions are not supported: use tools, and messages of the role tool")
		}
		err := v.Choice(&m.Role, "developer", "system", "user", "assistant", "tool")
		if m.Role == "developer" {
			m.Role = "system"
		}
		return err
	}},
	{Name: "content", Doc: "a text, or parts of the type `text`, which are joined", Read: func(m *message, v fields.Value) error { return readContent(&m.Content, v) }},
	{Name: "reasoning_content", Doc: "the assistant's reasoning, for templates with a place for it", Read: func(m *message, v fields.Value) error { return v.Text(&m.Reasoning) }},
	{Name: "reasoning", Doc: "as `reasoning_content`", Read: func(m *message, v fields.Value) error { return v.Text(&m.Reasoning) }},
	{Name: "name", Doc: "for templates with a place for it", Read: func(m *message, v fields.Value) error { return v.Text(&m.Name) }},
	{Name: "tool_calls", Doc: "calls of functions; the arguments are JSON in a text", Read: func(m *message, v fields.Value) error { return readCalls(&m.ToolCalls, v) }},
	{Name: "tool_call_id", Doc: "the call that a message of the role `tool` answers", Read: func(m *message, v fields.Value) error { return v.Text(&m.ToolCallID) }},
	{Name: "refusal", Doc: "the content of a message without one", Read: func(m *message, v fields.Value) error { return v.Text(&m.refusal) }},
	{Name: "id", Doc: "clients send the service's replies back"},
	{Name: "annotations", Doc: "clients send the service's replies back"},
	{Name: "parsed", Doc: "clients send the service's replies back"},
	{Name: "audio", Refused: "the service takes text only"},
	{Name: "function_call", Refused: "use tool_calls"},
}

// readMessages reads a conversation.
func readMessages(q *chatRequest, v fields.Value) error {
	list, err := v.List(maxMessages)
	if err != nil {
		return err
	}
	for _, one := range list {
		var m message
		if err := fields.Read(one, messageFields, &m); err != nil {
			return err
		}
		switch {
		case m.Role == "":
			return one.Errorf("a message must have a role")
		case m.Role != "assistant" && len(m.ToolCalls) > 0:
			return one.Errorf("only the assistant calls tools")
		case m.Content == "":
			m.Content = m.refusal
		}
		q.c.Messages = append(q.c.Messages, m.Message)
	}
	return nil
}

// part is a part of a content.
type part struct {
	kind, text, refusal string
}

var partFields = []fields.Field[part]{
	{Name: "type", Doc: "`text` or `refusal`", Read: func(p *part, v fields.Value) error {
		if err := v.Text(&p.kind); err != nil || p.kind == "text" || p.kind == "refusal" {
			return err
		}
		return v.Errorf("parts of the type %.40q are not supported: the service takes text only", p.kind)
	}},
	{Name: "text", Read: func(p *part, v fields.Value) error { return v.Text(&p.text) }},
	{Name: "refusal", Read: func(p *part, v fields.Value) error { return v.Text(&p.refusal) }},
	{Name: "cache_control", Doc: "prompts are found by their text"},
}

// readContent reads a text or a list of parts.
func readContent(into *string, v fields.Value) error {
	if v.Kind() == "a string" {
		return v.Text(into)
	}
	list, err := v.List(maxParts)
	if err != nil {
		return v.Errorf("want a string or a list of parts, not %s", v.Kind())
	}
	var b strings.Builder
	for _, one := range list {
		var p part
		if err := fields.Read(one, partFields, &p); err != nil {
			return err
		}
		if p.kind == "" {
			return one.Errorf("a part must have a type")
		}
		b.WriteString(p.text + p.refusal)
	}
	*into = b.String()
	return nil
}

// function is a function of a tool or of a call.
type function struct {
	engine.Tool
	kind, id, arguments string
}

// readKind reads the type of a tool or of a call.
func readKind(f *function, v fields.Value) error {
	if err := v.Text(&f.kind); err != nil || f.kind == "function" {
		return err
	}
	return v.Errorf("tools of the type %.40q are not supported", f.kind)
}

// readName reads the name of a function.
func readName(f *function, v fields.Value) error {
	if err := v.Text(&f.Name); err != nil {
		return err
	}
	strange := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_-.:", c)
	}
	if f.Name == "" || len(f.Name) > 128 || strings.ContainsFunc(f.Name, strange) {
		return v.Errorf("the name of a function must have 1 to 128 letters, digits, and characters of _-.:")
	}
	return nil
}

var toolFields = []fields.Field[function]{
	{Name: "type", Doc: "`function`", Read: readKind},
	{Name: "function", Doc: "`name`, `description`, `parameters`", Read: func(f *function, v fields.Value) error {
		return fields.Read(v, functionFields, f)
	}},
}

var functionFields = []fields.Field[function]{
	{Name: "name", Read: readName},
	{Name: "description", Read: func(f *function, v fields.Value) error { return v.Text(&f.Description) }},
	{Name: "parameters", Doc: "a JSON schema", Read: func(f *function, v fields.Value) error {
		if v.Kind() != "an object" {
			return v.Errorf("want a JSON schema, which is an object, not %s", v.Kind())
		}
		f.Parameters = json.RawMessage(v.Raw)
		return nil
	}},
	{Name: "strict", Doc: "false", Read: func(_ *function, v fields.Value) error {
		var strict bool
		err := v.Bool(&strict)
		if strict {
			return v.Errorf("strict is not supported: %s", noConstraint)
		}
		return err
	}},
}

// readTools reads the functions that the model may call.
func readTools(q *chatRequest, v fields.Value) error {
	list, err := v.List(maxTools)
	if err != nil {
		return err
	}
	for _, one := range list {
		var f function
		if err := fields.Read(one, toolFields, &f); err != nil {
			return err
		}
		if f.kind == "" || f.Name == "" {
			return one.Errorf("a tool must have the type function, and a function with a name")
		}
		q.c.Tools = append(q.c.Tools, f.Tool)
	}
	return nil
}

var callFields = []fields.Field[function]{
	{Name: "type", Doc: "`function`", Read: readKind},
	{Name: "id", Read: func(f *function, v fields.Value) error { return v.Text(&f.id) }},
	{Name: "index", Doc: "the place in the list counts"},
	{Name: "function", Doc: "`name`, `arguments`", Read: func(f *function, v fields.Value) error {
		return fields.Read(v, []fields.Field[function]{
			{Name: "name", Read: readName},
			{Name: "arguments", Read: func(f *function, v fields.Value) error { return v.Text(&f.arguments) }},
		}, f)
	}},
}

// readCalls reads the calls of an assistant's message.
func readCalls(into *[]engine.ToolCall, v fields.Value) error {
	list, err := v.List(maxCalls)
	if err != nil {
		return err
	}
	for _, one := range list {
		var f function
		if err := fields.Read(one, callFields, &f); err != nil {
			return err
		}
		if f.Name == "" {
			return one.Errorf("a call must have a function with a name")
		}
		if strings.TrimSpace(f.arguments) == "" {
			f.arguments = "{}"
		}
		*into = append(*into, engine.ToolCall{ID: f.id, Name: f.Name, Arguments: f.arguments})
	}
	return nil
}

// finish checks fields that depend on each other.
func (q *chatRequest) finish() error {
	switch {
	case len(q.c.Messages) == 0:
		return &fields.Error{Param: "messages", Why: "a conversation must have a message"}
	case q.topLogProbs > 0 && !q.logprobs:
		return &fields.Error{Param: "top_logprobs", Why: "logprobs must be true"}
	case q.newTurn != nil && *q.newTurn == q.c.Continue:
		return &fields.Error{Param: "add_generation_prompt", Why: "the model either continues the last message or begins a new one"}
	case q.c.Continue && q.c.Messages[len(q.c.Messages)-1].Role != "assistant":
		return &fields.Error{Param: "continue_final_message", Why: "the last message is not the assistant's"}
	}
	if q.maxCompletion > 0 && (q.g.MaxTokens == 0 || q.maxCompletion < q.g.MaxTokens) {
		q.g.MaxTokens = q.maxCompletion
	}
	if q.logprobs {
		q.g.Sampling.LogProbs = q.topLogProbs + 1
	}
	if q.noTools {
		q.c.Tools = nil
	}
	return nil
}
