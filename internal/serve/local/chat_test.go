package local

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pianola-engine/pianola/internal/serve/engine"
)

// markup is a chat template that writes turns with gopher's special tokens, and tools as JSON.
const markup = `{{ bos_token }}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|begin_of_text|>{{ m.role }}
{{ m.content | trim }}{{ m.name }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|end_of_text|>
{% endfor %}{% if add_generation_prompt %}<|begin_of_text|>assistant
{% endif %}`

func conversation(texts ...string) (c engine.Conversation) {
	for i, text := range texts {
		c.Messages = append(c.Messages, engine.Message{Role: []string{"user", "assistant"}[i%2], Content: text})
	}
	return c
}

// specials counts the special tokens of a prompt.
func specials(m *Model, p *engine.Prompt) (n int) {
	for _, id := range p.IDs {
		if m.tok.Special(id) {
			n++
		}
	}
	return n
}

// TestSpecialText renders conversations whose texts have names of special tokens, whole and in parts, in
// every place that a client fills. They must stay text.
func TestSpecialText(t *testing.T) {
	m := open(t, Options{Template: markup})
	if !m.Info().Tools {
		t.Fatal("the template has tools")
	}
	const name = "<|end_of_text|>"
	ctx := context.Background()
	tools := []engine.Tool{{Name: "f" + name, Description: name, Parameters: json.RawMessage(`{"\u003c|end_of_text|>":["<|begin_of_text|>"],"x":"\u003c|end_of_text|\u003e"}`)}}
	plain := conversation("a", "b", "c")
	plain.Tools = []engine.Tool{{Name: "f"}}
	base, err := m.Chat(ctx, plain)
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*engine.Conversation){
		"content": func(c *engine.Conversation) {
			c.Messages[0].Content = "x" + name + name + " \U00010100\U00010101 y\xff"
		},
		"two texts": func(c *engine.Conversation) { c.Messages[0].Content, c.Messages[0].Name = "<|end_of \n", "_text|>" },
		"trimmed":   func(c *engine.Conversation) { c.Messages[2].Content = " " + name + " " },
		"arguments": func(c *engine.Conversation) {
			c.Messages[1].ToolCalls = []engine.ToolCall{{Name: name, Arguments: `{"a":"\u003c|end_of_text|>"}`}}
		},
		"tools": func(c *engine.Conversation) { c.Tools = tools },
	} {
		c := conversation("a", "b", "c")
		c.Tools = plain.Tools
		change(&c)
		p, err := m.Chat(ctx, c)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if got, want := specials(m, p), specials(m, base); got != want {
			t.Errorf("%s: %d special tokens, want %d: %q", what, got, want, p.Text)
		}
		if what == "content" && !strings.Contains(p.Text, c.Messages[0].Content) {
			t.Errorf("%q has not the text %q", p.Text, c.Messages[0].Content)
		}
		var text []byte
		for _, id := range p.IDs {
			text = append(text, m.Piece(id)...)
		}
		if string(text) != p.Text {
			t.Errorf("%s: the tokens stand for %q, the text is %q", what, text, p.Text)
		}
	}
	if !slices.Equal(base.Stop, []string{"<|end_of_text|>"}) {
		t.Errorf("Stop is %q", base.Stop)
	}
}

// FuzzMark checks that marks can be removed, and that no special token is left between them.
func FuzzMark(f *testing.F) {
	for _, s := range []string{"", "<|end_of_text|>", "a<", "\U00010100", "\U00010100\U00010101\U00010102", "<<|begin_of_text|><|end_of_text", "\xff<|", "<|end_of_text|>\U00010100 "} {
		f.Add(s)
	}
	k := &marker{names: map[string]bool{}, begins: map[string]bool{}}
	for _, name := range []string{"<|end_of_text|>", "<|begin_of_text|>", "｜x｜", "<s>"} {
		k.add(name)
	}
	f.Fuzz(func(t *testing.T, text string) {
		marked := k.mark(text)
		clean, plain := unmark(marked)
		if clean != text {
			t.Fatalf("%q became %q", text, clean)
		}
		if utf8.ValidString(text) != utf8.ValidString(marked) {
			t.Fatalf("%q is marked as %q", text, marked)
		}
		for name := range k.names {
			if strings.Contains(marked, name) {
				t.Fatalf("%q is marked as %q", text, marked)
			}
			for at := range clean {
				covered := slices.ContainsFunc(plain, func(r [2]int) bool { return r[0] < at+len(name) && r[1] > at })
				if strings.HasPrefix(clean[at:], name) && !covered {
					t.Fatalf("%q: %s at %d is not plain: %v", text, name, at, plain)
				}
			}
		}
	})
}

// TestChat renders a conversation, generates an answer and parses it.
func TestChat(t *testing.T) {
	m := open(t, Options{})
	ctx := context.Background()
	p, err := m.Chat(ctx, conversation("package main"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "// user: package main\n// assistant:"; strings.TrimSpace(p.Text) != strings.TrimSpace(want) && !strings.Contains(p.Text, "package main") {
		t.Errorf("%q", p.Text)
	}
	a := p.Answer()
	var said strings.Builder
	var deltas []engine.Delta
	if _, err := m.Generate(ctx, engine.Generation{Prompt: engine.Text{IDs: p.IDs}, MaxTokens: 20}, func(tok engine.Token) bool {
		said.WriteString(tok.Text)
		deltas = append(deltas, a.Add(tok)...)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	var content string
	for _, d := range append(deltas, a.End()...) {
		content += d.Content
	}
	if content != said.String() || content == "" {
		t.Errorf("the answer is %q, the tokens said %q", content, said.String())
	}
}

// TestAnswer parses answers with calls and with special tokens.
func TestAnswer(t *testing.T) {
	m := open(t, Options{Template: markup})
	c := conversation("a")
	c.Tools = []engine.Tool{{Name: "now"}}
	p, err := m.Chat(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	a := p.Answer()
	var deltas []engine.Delta
	for _, tok := range []engine.Token{{Text: "So"}, {Special: "<|begin_of_text|>"}, {Text: `<tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>`}} {
		deltas = append(deltas, a.Add(tok)...)
	}
	var content, name, arguments string
	for _, d := range append(deltas, a.End()...) {
		content += d.Content
		if d.Call != nil {
			name, arguments = name+d.Call.Name, arguments+d.Call.Arguments
		}
	}
	if content != "So" || name != "now" || arguments != `{"a": 1}` {
		t.Errorf("content %q, call %s %s", content, name, arguments)
	}
}

// TestContinue continues the assistant's message.
func TestContinue(t *testing.T) {
	m := open(t, Options{Template: markup})
	c := conversation("question", "The answer <|end_of_text|> is ")
	c.Continue = true
	p, err := m.Chat(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(p.Text, "assistant\nThe answer <|end_of_text|> is") {
		t.Errorf("%q", p.Text)
	}
}

// TestRefusals checks the errors of conversations that cannot be rendered.
func TestRefusals(t *testing.T) {
	m := open(t, Options{Template: `{% if messages | length > 2 %}{{ raise_exception("too many") }}{% endif %}{{ messages[0].content }}{{ x }}`})
	ctx := context.Background()
	for param, change := range map[string]func(*engine.Conversation){
		"messages":                      func(c *engine.Conversation) { c.Messages = nil },
		"messages[0].role":              func(c *engine.Conversation) { c.Messages[0].Role = "end_of_text" },
		"tools":                         func(c *engine.Conversation) { c.Tools = []engine.Tool{{Name: "f"}} },
		"chat_template_kwargs.messages": func(c *engine.Conversation) { c.Vars = map[string]any{"messages": 1} },
		"chat_template_kwargs.x":        func(c *engine.Conversation) { c.Vars = map[string]any{"x": func() {}} },
		"messages[1].tool_calls[0].function.arguments": func(c *engine.Conversation) {
			c.Messages[1].ToolCalls = []engine.ToolCall{{Name: "f", Arguments: "[]"}}
		},
	} {
		c := conversation("a", "b")
		change(&c)
		var refused *engine.RequestError
		if _, err := m.Chat(ctx, c); !errors.As(err, &refused) || refused.Param != param {
			t.Errorf("%s: %v", param, err)
		}
	}
	var refused *engine.RequestError
	if _, err := m.Chat(ctx, conversation("a", "b", "c")); !errors.As(err, &refused) || !strings.Contains(refused.Why, "too many") {
		t.Error(err)
	}
	c := conversation("a")
	c.Vars = map[string]any{"x": []any{"<|end_of_text|>", 1}}
	if p, err := m.Chat(ctx, c); err != nil || specials(m, p) != 0 || !strings.Contains(p.Text, "<|end_of_text|>") {
		t.Errorf("a variable: %v", err)
	}
	none := open(t, Options{Template: " "})
	none.talk = nil // gopher's file has no template
	if _, err := none.Chat(ctx, c); !errors.Is(err, engine.ErrUnsupported) {
		t.Error(err)
	}
}
