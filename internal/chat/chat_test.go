package chat

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/chat/jinja"
)

type conversation struct {
	Name     string
	Messages []Message
	Tools    []Tool
	Generate bool
	Vars     map[string]any
}

func parseFile(t testing.TB, name string) *Template {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", name+".jinja"))
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := Parse(string(source))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return tmpl
}

// TestFamilies renders conversations with the templates of several families. For the templates
// in testdata, the texts must equal those of Jinja2, which testdata/reference.py writes
// (testdata/README.md).
func TestFamilies(t *testing.T) {
	data, err := os.ReadFile("testdata/conversations.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []conversation
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	for _, family := range []string{"llama3", "qwen3", "gemma3", "phi3", "mistral", "mistral-nemo", "gpt-oss"} {
		tmpl := parseFile(t, family)
		want, err := os.ReadFile(filepath.Join("testdata", family+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		rest := string(want) + "==== "
		for _, c := range list {
			_, after, ok := strings.Cut(rest, "==== "+c.Name+"\n")
			if !ok {
				t.Fatalf("%s has no %s", family, c.Name)
			}
			text, _, _ := strings.Cut(after, "\n==== ")
			got, err := tmpl.Render(context.Background(), Input{
				Messages: c.Messages, Tools: c.Tools, Generate: c.Generate, Vars: c.Vars, BOS: "<s>", EOS: "</s>",
				Now: time.Date(2026, 3, 7, 8, 9, 5, 0, time.UTC),
			})
			var raised *jinja.RaisedError
			if errors.As(err, &raised) {
				got, err = "error: "+raised.Message, nil
			}
			if err != nil || got != text {
				t.Errorf("%s, %s: error %v\n%q, want\n%q", family, c.Name, err, got, text)
			}
		}
	}
}

func TestEndOfTurn(t *testing.T) {
	for family, want := range map[string]string{
		"llama3": "<|eot_id|>", "qwen3": "<|im_end|>\n", "gemma3": "<end_of_turn>\n", "phi3": "<|end|>\n</s>", "mistral": "</s>", "mistral-nemo": "</s>", "gpt-oss": "<|return|>",
	} {
		if got := parseFile(t, family).EndOfTurn(context.Background(), Input{BOS: "<s>", EOS: "</s>"}); got != want {
			t.Errorf("%s: %q, want %q", family, got, want)
		}
	}
	for _, source := range []string{"{{ raise_exception('no') }}", "nothing", "{{ messages[5].content.x }}"} {
		tmpl, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		if got := tmpl.EndOfTurn(context.Background(), Input{}); got != "" {
			t.Errorf("%s: %q", source, got)
		}
	}
}

type meta map[string]any

func (m meta) Meta(key string) (any, bool) { v, ok := m[key]; return v, ok }

func TestSources(t *testing.T) {
	s := FromGGUF(meta{
		"tokenizer.chat_template": "d", "tokenizer.chat_templates": []string{"tool_use", "rag", "gone"},
		"tokenizer.chat_template.tool_use": "t", "tokenizer.chat_template.rag": "r", "tokenizer.chat_template.other": "o",
	})
	if got := strings.Join(s.Names(), " "); got != "default rag tool_use" {
		t.Errorf("GGUF: %s", got)
	}
	for _, c := range []struct {
		name  string
		tools bool
		want  string
	}{{"", false, "d"}, {"", true, "t"}, {"rag", true, "r"}} {
		tmpl, err := s.Parse(c.name, c.tools)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tmpl.Render(context.Background(), Input{}); got != c.want || err != nil {
			t.Errorf("%q with tools %v: %q, %v", c.name, c.tools, got, err)
		}
	}
	if _, err := s.Parse("none", false); !errors.Is(err, ErrNoTemplate) {
		t.Errorf("an unknown name: %v", err)
	}
	if _, err := (Sources{}).Parse("", false); !errors.Is(err, ErrNoTemplate) {
		t.Errorf("no templates: %v", err)
	}
	var e *jinja.Error
	if _, err := (Sources{Default: "{% if"}).Parse("", false); !errors.As(err, &e) {
		t.Errorf("a broken template: %v", err)
	}
	if got := FromGGUF(meta{"tokenizer.chat_template": 5, "tokenizer.chat_templates": 6}); len(got) != 0 {
		t.Errorf("templates of wrong types: %v", got)
	}
}

func TestFromConfig(t *testing.T) {
	for config, want := range map[string]string{
		`{}`: "", `{"chat_template": null}`: "", `{"chat_template": "x"}`: "default",
		`{"chat_template": [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "y"}]}`: "default tool_use",
	} {
		s, err := FromConfig([]byte(config))
		if got := strings.Join(s.Names(), " "); err != nil || got != want {
			t.Errorf("%s: %q, %v", config, got, err)
		}
	}
	for _, bad := range []string{``, `[]`, `{"chat_template": 5}`, `{"chat_template": [5]}`} {
		if s, err := FromConfig([]byte(bad)); err == nil {
			t.Errorf("%s: %v", bad, s)
		}
	}
}

func TestInputErrors(t *testing.T) {
	tmpl := parseFile(t, "qwen3")
	for name, in := range map[string]Input{
		"arguments that are not JSON":       {Messages: []Message{{Role: "assistant", ToolCalls: []ToolCall{{Name: "f", Arguments: json.RawMessage("{")}}}}},
		"arguments that are not an object":  {Messages: []Message{{Role: "assistant", ToolCalls: []ToolCall{{Name: "f", Arguments: json.RawMessage("5")}}}}},
		"a schema that is not JSON":         {Tools: []Tool{{Name: "f", Parameters: json.RawMessage("x")}}},
		"a variable of an unsupported type": {Vars: map[string]any{"x": time.Now()}},
		"no messages":                       {},
	} {
		if out, err := tmpl.Render(context.Background(), in); err == nil {
			t.Errorf("%s: %q", name, out)
		}
	}
	tmpl, err := Parse("{{ x | tojson }}")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tmpl.Render(context.Background(), Input{Vars: map[string]any{"x": json.RawMessage(`{"b": 1, "a": 2}`)}}); got != `{"b": 1, "a": 2}` || err != nil {
		t.Errorf("a variable with JSON: %q, %v", got, err)
	}
}

// TestText checks that Input.Text replaces every text that a client gives, and nothing else.
func TestText(t *testing.T) {
	tmpl, err := Parse(`{{ bos_token }}{{ tools | tojson }}{{ messages | tojson }}{{ x | tojson }}`)
	if err != nil {
		t.Fatal(err)
	}
	in := Input{
		BOS:      "#",
		Messages: []Message{{Role: "user", Content: "a#", Reasoning: "#", Name: "#", ToolCallID: "#"}, {Role: "assistant", ToolCalls: []ToolCall{{ID: "#", Name: "#", Arguments: json.RawMessage(`{"#":["#",1]}`)}}}},
		Tools:    []Tool{{Name: "#", Description: "#", Parameters: json.RawMessage(`{"a":"\u0023"}`)}},
		Vars:     map[string]any{"x": json.RawMessage(`{"#":["#"]}`)},
		Text:     func(s string) string { return strings.ReplaceAll(s, "#", "+") },
	}
	text, err := tmpl.Render(context.Background(), in)
	if err != nil || strings.Count(text, "#") != 1 || text[0] != '#' || strings.Count(text, "+") != 14 {
		t.Errorf("%s: %v", text, err)
	}
}
