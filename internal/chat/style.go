package chat

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/pianola-engine/pianola/internal/chat/jinja"
)

// style is the form in which a template expects its input. The zero style is the one that
// transformers documents. It is the default for all templates.
type style struct {
	parts     bool // contents are lists of {"type": "text", "text": ...}
	noContent bool // a message that has only tool calls has no content, not ""
	jsonText  bool // a call's arguments are JSON text, not an object
	inSystem  bool // tools are JSON text in the system message, as for Phi 4 mini
}

// These texts identify the parts of a probe in the rendered text.
const (
	probeSystem = "pianola-probe-system"
	probeUser   = "pianola-probe-user"
	probeTool   = "pianola_probe_tool"
	probeKey    = "pianola_probe_key"
	probeValue  = "pianola-probe-value"
	probeResult = "pianola-probe-result"
)

// style determines the style by probing the template. It renders one conversation to test
// contents and another to test tool calls, and checks the results.
func (t *Template) style(ctx context.Context, in *Input) style {
	calls := false
	for i := range in.Messages {
		calls = calls || len(in.Messages[i].ToolCalls) > 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known.inSystem = t.format == bracketAnswers && t.toolsInMessage
	if !t.asked {
		t.asked, t.known.parts = true, t.wantsParts(ctx, in)
	}
	if calls && !t.askedCalls {
		s := t.callStyle(ctx, in)
		t.askedCalls, t.known.noContent, t.known.jsonText = true, s.noContent, s.jsonText
	}
	return t.known
}

// probe renders messages in a style. It returns "" if the template fails.
func (t *Template) probe(ctx context.Context, in *Input, s style, messages ...Message) string {
	p := Input{Messages: messages, Tools: in.Tools, BOS: in.BOS, EOS: in.EOS, Vars: in.Vars, Now: time.Unix(0, 0)}
	vars, err := p.vars(s)
	if err != nil {
		return ""
	}
	text, err := t.t.Render(ctx, vars, jinja.Options{Now: func() time.Time { return p.Now }})
	if err != nil {
		return ""
	}
	return text
}

// functionsJSON writes tools in the form that Phi 4 mini's system message uses.
var functionsJSON = func() *jinja.Template {
	t, err := jinja.Parse("{{ tools | map(attribute='function') | list | tojson }}")
	if err != nil {
		panic(err)
	}
	return t
}()

// toolsToSystem adds tools to the system message. If there is no system message, it inserts
// one at the front.
func toolsToSystem(messages, tools *jinja.List) error {
	text, err := functionsJSON.Render(context.Background(), map[string]any{"tools": tools}, jinja.Options{})
	if err != nil {
		return err
	}
	for _, m := range messages.Items {
		if m, ok := m.(*jinja.Dict); ok {
			if role, _ := m.Get("role"); role == "system" {
				m.Set("tools", text)
				return nil
			}
		}
	}
	messages.Items = slices.Insert(messages.Items, 0, any(jinja.NewDict("role", "system", "content", "", "tools", text)))
	return nil
}

func (t *Template) wantsParts(ctx context.Context, in *Input) bool {
	user := Message{Role: "user", Content: probeUser}
	for _, messages := range [][]Message{{{Role: "system", Content: probeSystem}, user}, {user}} {
		has := func(s style) bool {
			text := t.probe(ctx, in, s, messages...)
			return strings.Contains(text, probeUser) && (len(messages) == 1 || strings.Contains(text, probeSystem))
		}
		if has(style{}) {
			return false
		}
		if s := (style{parts: true}); has(s) && !strings.Contains(t.probe(ctx, in, s, messages...), "'text': ") {
			return true
		}
	}
	return false
}

func (t *Template) callStyle(ctx context.Context, in *Input) style {
	arguments, _ := json.Marshal(map[string]string{probeKey: probeValue})
	messages := []Message{
		{Role: "user", Content: probeUser},
		{Role: "assistant", ToolCalls: []ToolCall{{ID: "pianola01", Name: probeTool, Arguments: arguments}}},
		{Role: "tool", Content: probeResult, Name: probeTool, ToolCallID: "pianola01"},
	}
	for _, s := range []style{{}, {noContent: true}, {jsonText: true}, {noContent: true, jsonText: true}} {
		s.parts, s.inSystem = t.known.parts, t.known.inSystem
		text := t.probe(ctx, in, s, messages...)
		if strings.Contains(text, probeTool) && strings.Contains(text, probeValue) && strings.Contains(text, probeResult) &&
			!strings.Contains(text, "{'"+probeKey) && !strings.Contains(text, `\"`+probeKey) {
			return s
		}
	}
	return style{}
}
