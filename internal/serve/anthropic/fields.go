package anthropic

import (
	"encoding/json"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fields"
)

// request is a request for a message, or for the number of its tokens.
type request struct {
	model             string
	messages          []message
	system            string
	maxTokens         int // 0 if absent
	stops             []string
	stream            bool
	temperature, topP float64
	topK              int
	tools             []engine.Tool
	toolChoice        string
	oneCall           bool // the answer may have only one call
	thinks            bool // thinking is part of the answer
	effort            string
}

// message is a message of the conversation.
type message struct {
	at     fields.Value // its content
	Role   string
	Blocks []block
}

// block is a block of a message's content.
type block struct {
	at   fields.Value
	Type string
	Text string // the text, the thinking, or the result of a tool

	ID, Name string // of a call; a result has the call's ID
	Input    json.RawMessage
}

// The bounds of a request.
const (
	maxMessages = 4096
	maxBlocks   = 1024
	maxTools    = 1024
	maxStops    = 64
	maxTokens   = 1 << 30
)

// unconstrained explains why a request is refused that needs constrained decoding.
const unconstrained = "it needs constrained decoding, which this service does not have"

// requestFields are the fields of a request.
var requestFields = []fields.Field[request]{
	{Name: "model", Doc: "may be absent if the service has one model", Read: func(r *request, v fields.Value) error { return v.Text(&r.model) }},
	{Name: "max_tokens", Read: func(r *request, v fields.Value) error { return v.Int(&r.maxTokens, 1, maxTokens) }},
	{Name: "messages", Read: readMessages,
		Doc: "blocks of the types text, thinking, tool_use and tool_result; a last message of the assistant is continued"},
	{Name: "system", Doc: "a text or blocks of text", Read: func(r *request, v fields.Value) (err error) {
		r.system, err = texts(v)
		return err
	}},
	{Name: "stop_sequences", Read: readStops},
	{Name: "stream", Read: func(r *request, v fields.Value) error { return v.Bool(&r.stream) }},
	{Name: "temperature", Doc: "1 by default", Read: func(r *request, v fields.Value) error { return v.Number(&r.temperature, 0, 1) }},
	{Name: "top_p", Read: func(r *request, v fields.Value) error { return v.Number(&r.topP, 0, 1) }},
	{Name: "top_k", Read: func(r *request, v fields.Value) error { return v.Int(&r.topK, 1, maxTokens) }},
	{Name: "tools", Doc: "tools of the client; `strict` must be false", Read: readTools},
	{Name: "tool_choice", Read: func(r *request, v fields.Value) error { return fields.Read(v, toolChoiceFields, r) },
		Doc: "`auto` and `none`; `disable_parallel_tool_use` ends an answer after its first call"},
	{Name: "thinking", Read: func(r *request, v fields.Value) error { return fields.Read(v, thinkingFields, r) },
		Doc: "`enable_thinking` of the chat template; `budget_tokens` is not enforced. Without it, what a model thinks nevertheless is left out"},
	{Name: "output_config", Read: func(r *request, v fields.Value) error { return fields.Read(v, outputFields, r) },
		Doc: "`effort` is `reasoning_effort` of the chat template, which may ignore it; `format` is refused"},
	{Name: "service_tier", Doc: "`auto` and `standard_only`; has no effect", Read: func(_ *request, v fields.Value) error {
		return v.Choice(new(string), "auto", "standard_only")
	}},
	{Name: "metadata", Doc: "has no effect"},
	{Name: "cache_control", Doc: "all prompts are cached"},
	{Name: "inference_geo", Doc: "has no effect"},
	{Name: "speed", Doc: "has no effect"},
	{Name: "diagnostics", Doc: "has no effect"},
	{Name: "user_profile_id", Doc: "has no effect"},
	{Name: "workspace_id", Doc: "has no effect"},
	{Name: "container", Refused: "there are no containers"},
	{Name: "context_management", Refused: "conversations are not edited"},
	{Name: "mcp_servers", Refused: "the service calls no tools"},
}

// newRequest returns a request with the values of absent fields.
func newRequest() *request { return &request{temperature: 1, topP: 1, toolChoice: "auto"} }

// readStops reads the stop sequences.
func readStops(r *request, v fields.Value) error {
	list, err := v.List(maxStops)
	for _, one := range list {
		var s string
		if err := one.Text(&s); err != nil {
			return err
		}
		if s == "" {
			return one.Errorf("a stop sequence must not be empty")
		}
		r.stops = append(r.stops, s)
	}
	return err
}

// readTools reads the tools that the model may call.
func readTools(r *request, v fields.Value) error {
	list, err := v.List(maxTools)
	for _, one := range list {
		var t engine.Tool
		if err := fields.Read(one, toolFields, &t); err != nil {
			return err
		}
		if t.Name == "" || t.Parameters == nil {
			return one.Errorf("a tool needs a name and an input_schema")
		}
		r.tools = append(r.tools, t)
	}
	return err
}

// toolFields are the fields of a tool.
var toolFields = []fields.Field[engine.Tool]{
	{Name: "type", Doc: "`custom`", Read: func(_ *engine.Tool, v fields.Value) error { return v.Choice(new(string), "custom") }},
	{Name: "name", Read: func(t *engine.Tool, v fields.Value) error { return v.Text(&t.Name) }},
	{Name: "description", Read: func(t *engine.Tool, v fields.Value) error { return v.Text(&t.Description) }},
	{Name: "input_schema", Read: func(t *engine.Tool, v fields.Value) error {
		t.Parameters = v.Raw
		_, err := v.Members()
		return err
	}},
	{Name: "strict", Doc: "false", Read: func(_ *engine.Tool, v fields.Value) error { return off(v, unconstrained) }},
	{Name: "defer_loading", Doc: "false", Read: func(_ *engine.Tool, v fields.Value) error { return off(v, "all tools are in the prompt") }},
	{Name: "input_examples", Refused: "chat templates have no place for them"},
	{Name: "cache_control", Doc: "all prompts are cached"},
	{Name: "eager_input_streaming", Doc: "has no effect"},
	{Name: "allowed_callers", Doc: "the model is the only caller"},
}

// off reads a boolean that must be false.
func off(v fields.Value, why string) error {
	var on bool
	if err := v.Bool(&on); err != nil {
		return err
	}
	if on {
		return v.Errorf("true is not supported: %s", why)
	}
	return nil
}

// toolChoiceFields are the fields of tool_choice.
var toolChoiceFields = []fields.Field[request]{
	{Name: "type", Doc: "`auto` and `none`", Read: func(r *request, v fields.Value) error {
		if err := v.Choice(&r.toolChoice, "auto", "none", "any", "tool"); err != nil {
			return err
		}
		if r.toolChoice == "any" || r.toolChoice == "tool" {
			return v.Errorf("%s is not supported: %s", r.toolChoice, unconstrained)
		}
		return nil
	}},
	{Name: "name", Doc: "of the type `tool`, which is refused"},
	{Name: "disable_parallel_tool_use", Read: func(r *request, v fields.Value) error { return v.Bool(&r.oneCall) }},
}

// thinkingFields are the fields of thinking.
var thinkingFields = []fields.Field[request]{
	{Name: "type", Doc: "`enabled`, `adaptive` and `disabled`", Read: func(r *request, v fields.Value) error {
		var kind string
		err := v.Choice(&kind, "enabled", "adaptive", "disabled")
		r.thinks = kind != "disabled"
		return err
	}},
	{Name: "budget_tokens", Doc: "not enforced", Read: func(_ *request, v fields.Value) error { return v.Int(new(int), 1, maxTokens) }},
	{Name: "display", Doc: "`summarized`; the thinking itself is returned", Read: func(_ *request, v fields.Value) error { return v.Choice(new(string), "summarized") }},
}

// outputFields are the fields of output_config.
var outputFields = []fields.Field[request]{
	{Name: "effort", Doc: "`low` to `max`", Read: func(r *request, v fields.Value) error {
		return v.Choice(&r.effort, "low", "medium", "high", "xhigh", "max")
	}},
	{Name: "format", Refused: unconstrained},
}

// readMessages reads the conversation.
func readMessages(r *request, v fields.Value) error {
	list, err := v.List(maxMessages)
	for _, one := range list {
		var m message
		if err := fields.Read(one, messageFields, &m); err != nil {
			return err
		}
		if m.Role == "" || m.at.Null() {
			return one.Errorf("a message needs a role and a content")
		}
		r.messages = append(r.messages, m)
	}
	return err
}

// messageFields are the fields of a message.
var messageFields = []fields.Field[message]{
	{Name: "role", Read: func(m *message, v fields.Value) error { return v.Choice(&m.Role, "user", "assistant", "system") }},
	{Name: "content", Read: func(m *message, v fields.Value) (err error) {
		m.at = v
		m.Blocks, err = blocks(v)
		return err
	}},
}

// blocks returns the blocks of a content: a list, or a text for a block of text.
func blocks(v fields.Value) ([]block, error) {
	if v.Kind() == "a string" {
		b := block{at: v, Type: "text"}
		return []block{b}, v.Text(&b.Text)
	}
	list, err := v.List(maxBlocks)
	all := make([]block, 0, len(list))
	for _, one := range list {
		b, err := readBlock(one)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, err
}

// readBlock reads a block.
func readBlock(v fields.Value) (block, error) {
	b := block{at: v}
	members, err := v.Members()
	if err != nil {
		return b, err
	}
	if err := members["type"].Text(&b.Type); err != nil {
		return b, &fields.Error{Param: v.Path, Why: "a block needs a type"}
	}
	table, ok := blockFields[b.Type]
	if !ok {
		return b, members["type"].Errorf("blocks of type %.80q are not supported", b.Type)
	}
	return b, fields.Read(v, table, &b)
}

// The fields that blocks of several types have.
var (
	typeField  = fields.Field[block]{Name: "type", Doc: "read before the other fields"}
	cacheField = fields.Field[block]{Name: "cache_control", Doc: "all prompts are cached"}
)

// noPlace explains why a field is ignored.
const noPlace = "chat templates have no place for it"

// blockFields are the fields of blocks by their type.
var blockFields map[string][]fields.Field[block]

// init breaks the cycle of blockFields and the blocks in results of tools.
func init() {
	blockFields = map[string][]fields.Field[block]{
		"text": {typeField, cacheField, {Name: "citations", Doc: noPlace}, {Name: "text", Read: func(b *block, v fields.Value) error { return v.Text(&b.Text) }}},
		"thinking": {
			typeField, {Name: "signature", Doc: "it is not verified"},
			{Name: "thinking", Read: func(b *block, v fields.Value) error { return v.Text(&b.Text) }},
		},
		"tool_use": {
			typeField, cacheField, {Name: "caller", Doc: noPlace},
			{Name: "id", Read: func(b *block, v fields.Value) error { return v.Text(&b.ID) }},
			{Name: "name", Read: func(b *block, v fields.Value) error { return v.Text(&b.Name) }},
			{Name: "input", Read: func(b *block, v fields.Value) error {
				b.Input = v.Raw
				_, err := v.Members()
				return err
			}},
		},
		"tool_result": {
			typeField, cacheField,
			{Name: "is_error", Doc: noPlace},
			{Name: "tool_use_id", Read: func(b *block, v fields.Value) error { return v.Text(&b.ID) }},
			{Name: "content", Read: func(b *block, v fields.Value) (err error) {
				b.Text, err = texts(v)
				return err
			}},
		},
	}
}

// texts returns a content that may only have blocks of text.
func texts(v fields.Value) (string, error) {
	all, err := blocks(v)
	text := ""
	for _, b := range all {
		if b.Type != "text" {
			return "", b.at.Errorf("blocks of type %.80q are not supported here", b.Type)
		}
		text = join(text, b.Text)
	}
	return text, err
}

// join joins the texts of blocks.
func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "\n\n" + b
}

// Table returns the table of the fields of a request, for documents: name, support and description.
func Table() [][3]string {
	var rows [][3]string
	for i := range requestFields {
		f := &requestFields[i]
		rows = append(rows, [3]string{f.Name, f.Support(), f.Doc + f.Refused})
	}
	return rows
}
