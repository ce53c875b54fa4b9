package chat

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func call(name, arguments string) ToolCall {
	return ToolCall{Name: name, Arguments: json.RawMessage(arguments)}
}

var weatherTools = []Tool{{Name: "weather", Description: "d", Parameters: json.RawMessage(`{"type": "object", "properties": {"city": {"type": "string"}}}`)}, {Name: "now"}}

// TestAnswer parses outputs of models of several families.
func TestAnswer(t *testing.T) {
	sources := map[string]string{"phi4": "<|tool|>", "gemma2": "<start_of_turn>", "plain": "{{ messages }}"}
	for _, c := range []struct {
		family, text, content, reasoning string
		calls                            []ToolCall
	}{
		{"qwen3", "Hi", "Hi", "", nil},
		{"qwen3", "<think>\nHm.\n</think>\n\nHi\n", "Hi\n", "Hm.", nil},
		{"qwen3", "Hm.\n</think>\n\nHi", "Hi", "Hm.", nil},
		{"qwen3", "<think>\nnot yet", "", "not yet", nil},
		{"qwen3", " x<think>y", " x<think>y", "", nil},
		{"qwen3", "<think>\nHm.\n</think>\n\nLet me.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\", \"b\": 1, \"a\": {\"x\": [1.50]}}}\n</tool_call>", "Let me.", "Hm.",
			[]ToolCall{call("weather", `{"city": "Köln", "b": 1, "a": {"x": [1.50]}}`)}},
		{"qwen3", "<tool_call>{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": 1}\"}</tool_call>\n<tool_call>{\"name\": \"now\"}", "", "",
			[]ToolCall{call("weather", `{"city": 1}`), call("now", "{}")}},
		{"qwen3", "<tool_call>{\"name\": \"weather\", \"arg</tool_call> so", "<tool_call>{\"name\": \"weather\", \"arg</tool_call> so", "", nil},
		{"qwen3", "<tool_call>\n<function=weather>\n<parameter=city>\nKöln <b> \"x\"\n</parameter>\n<parameter=days>\n2\n</parameter>\n<parameter=units>[\"c\"]</parameter>\n</function>\n</tool_call>", "", "",
			[]ToolCall{call("weather", `{"city": "Köln <b> \"x\"", "days": 2, "units": ["c"]}`)}},
		{"llama3", `{"name": "weather", "parameters": {"city": "Köln"}}`, "", "", []ToolCall{call("weather", `{"city": "Köln"}`)}},
		{"llama3", "<|python_tag|>{\"name\": \"weather\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}", "", "", []ToolCall{call("weather", "{}"), call("now", "{}")}},
		{"llama3", `{"type": "function", "function": {"name": "now", "parameters": {}}}`, "", "", []ToolCall{call("now", "{}")}},
		{"llama3", `{"type": "function", "function": "now", "parameters": {"a": 1}}`, "", "", []ToolCall{call("now", `{"a": 1}`)}},
		{"llama3", `{"name": "somebody", "parameters": {}}`, `{"name": "somebody", "parameters": {}}`, "", nil},
		{"llama3", ` Use {"name": "now"}.`, ` Use {"name": "now"}.`, "", nil},
		{"mistral", `[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "x"}, "id": "abcdef123"}, {"name": "now", "arguments": {}}]`, "", "",
			[]ToolCall{{ID: "abcdef123", Name: "weather", Arguments: json.RawMessage(`{"city": "x"}`)}, call("now", "{}")}},
		{"mistral-nemo", `Wait. [TOOL_CALLS]weather[ARGS]{"city": "x"}[TOOL_CALLS]now{}`, "Wait.", "", []ToolCall{call("weather", `{"city": "x"}`), call("now", "{}")}},
		{"mistral-nemo", `[TOOL_CALLS] none`, `[TOOL_CALLS] none`, "", nil},
		{"gemma3", "```tool_code\n[weather(city='it\\'s \"x\"', days=2, on=True, at={\"lat\": -1.5e3, 'l': [None, (1, \"\\u00e9\\n\")]}), now()]\n```", "", "",
			[]ToolCall{call("weather", `{"city": "it's \"x\"", "days": 2, "on": true, "at": {"lat": -1.5e3, "l": [null, [1, "é\n"]]}}`), call("now", "{}")}},
		{"gemma3", "```json\n{\"name\": \"weather\", \"parameters\": {\"city\": \"x\"}}\n```\n", "", "", []ToolCall{call("weather", `{"city": "x"}`)}},
		{"gemma2", "now()", "", "", []ToolCall{call("now", "{}")}},
		{"gemma3", "print(1)", "print(1)", "", nil},
		{"gemma3", "weather(city=", "weather(city=", "", nil},
		{"phi4", `<|tool_call|>[{"name": "weather", "arguments": {"city": "x"}}]<|/tool_call|>`, "", "", []ToolCall{call("weather", `{"city": "x"}`)}},
		{"phi3", `{"name": "now"}`, `{"name": "now"}`, "", nil},
		{"gpt-oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi", "Hi", "Hm.", nil},
		{"gpt-oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\":\"x\"}", "", "Hm.",
			[]ToolCall{call("weather", `{"city":"x"}`)}},
		{"gpt-oss", "<|channel|>commentary<|message|>First.<|end|><|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>", "First.", "", []ToolCall{call("now", "{}")}},
		{"gpt-oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>First.<|end|><|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>", "", "Hm.\nFirst.",
			[]ToolCall{call("now", "{}")}},
		{"gpt-oss", "<|channel|>analysis<|message|>cut", "", "cut", nil},
		{"gpt-oss", "<|channel|>ana", "", "", nil},
		{"gpt-oss", "Hi", "Hi", "", nil},
		{"plain", "<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", "", nil},
	} {
		var tmpl *Template
		if source, ok := sources[c.family]; ok {
			var err error
			if tmpl, err = Parse(source); err != nil {
				t.Fatal(err)
			}
		} else {
			tmpl = parseFile(t, c.family)
		}
		want := Message{Role: "assistant", Content: c.content, Reasoning: c.reasoning, ToolCalls: c.calls}
		if got := tmpl.Answer(c.text, weatherTools); !reflect.DeepEqual(got, want) {
			t.Errorf("%s, %q:\n%+v, want\n%+v", c.family, c.text, got, want)
		}
		if got := tmpl.Answer(c.text, nil); got.ToolCalls != nil {
			t.Errorf("%s, %q: calls without tools: %+v", c.family, c.text, got)
		}
	}
}

// TestAnswersAgain renders calls with the families' templates and parses the result.
func TestAnswersAgain(t *testing.T) {
	asked := []ToolCall{{ID: "abcdef123", Name: "weather", Arguments: json.RawMessage(`{"city": "Köln \"<x>\"\n", "days": [1, null, true]}`)}}
	user := Message{Role: "user", Content: "x"}
	for _, family := range []string{"llama3", "qwen3", "mistral", "mistral-nemo", "gpt-oss"} {
		tmpl := parseFile(t, family)
		in := Input{Messages: []Message{user}, Tools: weatherTools, Generate: true}
		prompt, err := tmpl.Render(context.Background(), in)
		if err != nil {
			t.Fatal(err)
		}
		in.Messages, in.Generate = []Message{user, {Role: "assistant", ToolCalls: asked}}, false
		text, err := tmpl.Render(context.Background(), in)
		if err != nil {
			t.Fatal(err)
		}
		said, ok := strings.CutPrefix(text, prompt)
		if !ok {
			t.Fatalf("%s: %q does not begin with %q", family, text, prompt)
		}
		for _, end := range []string{"<|eot_id|>", "<|im_end|>\n"} {
			said = strings.TrimSuffix(said, end)
		}
		got := tmpl.Answer(said, weatherTools)
		if len(got.ToolCalls) == 1 && got.ToolCalls[0].ID == "" {
			got.ToolCalls[0].ID = asked[0].ID
		}
		if !reflect.DeepEqual(got.ToolCalls, asked) || strings.TrimSpace(got.Content) != "" {
			t.Errorf("%s, %q: %+v", family, said, got)
		}
	}
}

// TestStyles renders with templates that expect contents or arguments in a form different from
// transformers'.
func TestStyles(t *testing.T) {
	messages := []Message{
		{Role: "system", Content: "S"}, {Role: "user", Content: "U"},
		{Role: "assistant", ToolCalls: []ToolCall{{Name: "f", Arguments: json.RawMessage(`{"b": 1, "a": "é"}`)}}}, {Role: "tool", Content: "R"},
	}
	for _, c := range []struct{ source, want string }{
		{"{% for m in messages %}[{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function.name ~ (m.tool_calls[0].function.arguments | tojson) }}{% endif %}]{% endfor %}",
			`[S][U][f{"b": 1, "a": "é"}][R]`},
		{"{% for m in messages %}[{% for p in m.content %}{{ p['text'] + '' }}{% endfor %}{% if m.tool_calls %}{{ m.tool_calls[0].function.name ~ (m.tool_calls[0].function.arguments | tojson) }}{% endif %}]{% endfor %}",
			`[S][U][f{"b": 1, "a": "é"}][R]`},
		{"{% for m in messages %}[{% if m.content is none %}{% for t in m.tool_calls %}{{ t.function.name + ' ' + t.function.arguments }}{% endfor %}{% else %}{{ m.content + '' }}{% endif %}]{% endfor %}",
			`[S][U][f {"b": 1, "a": "é"}][R]`},
		{"{% for m in messages %}[{{ m.content }}{% for t in m.tool_calls or [] %}{{ t.function.name }} {{ t.function.arguments }}{% endfor %}]{% endfor %}",
			`[S][U][f {"b": 1, "a": "é"}][R]`},
		{"{{ messages[0].content }}", "S"},
		{"{% for m in messages[:1] %}{{ m.content }}{% if 'tools' in messages[0] %}<|tool|>{{ m.tools }}{% endif %}{% endfor %}{# 'tools' in message #}",
			`S<|tool|>[{"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}, {"name": "now", "description": "", "parameters": {}}]`},
	} {
		tmpl, err := Parse(c.source)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tmpl.Render(context.Background(), Input{Messages: messages, Tools: weatherTools})
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.source, got, err, c.want)
		}
	}
}

// FuzzAnswer looks for panics and for calls whose arguments are not an object.
func FuzzAnswer(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.jinja")
	if err != nil || len(paths) == 0 {
		f.Fatal("no templates of families: ", err)
	}
	var list []*Template
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		tmpl, err := Parse(string(source))
		if err != nil {
			f.Fatal(err)
		}
		list = append(list, tmpl)
	}
	for _, text := range []string{
		"<think>a</think><tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>", "<tool_call><function=now><parameter=a>1</parameter></function>", "[TOOL_CALLS]now[ARGS]{}",
		"[now(a=[1, {'b': \"c\\x41\"}])]", "<|channel|>commentary to=functions.now<|message|>{}<|call|>", "{\"name\": \"now\"}",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, tmpl := range list {
			for _, c := range tmpl.Answer(text, weatherTools).ToolCalls {
				var object map[string]any
				if err := json.Unmarshal(c.Arguments, &object); err != nil || c.Name == "" {
					t.Errorf("%q: %+v, %v", text, c, err)
				}
			}
		}
	})
}
