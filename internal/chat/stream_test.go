package chat

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// families returns the templates of the families in testdata, and some of other formats.
func families(t testing.TB) map[string]*Template {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.jinja")
	if err != nil || len(paths) == 0 {
		t.Fatal("no templates of families: ", err)
	}
	list := map[string]*Template{}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".jinja")
		list[name] = parseFile(t, name)
	}
	for name, source := range map[string]string{"phi4": "<|tool|>", "plain": "{{ messages }}", "thinking llama": "<|start_header_id|></think>", "thinking mistral": "[TOOL_CALLS]</think>", "thinking gemma": "<start_of_turn></think>"} {
		if list[name], err = Parse(source); err != nil {
			t.Fatal(err)
		}
	}
	for name, source := range callTemplates {
		if list[name], err = Parse(source); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// join adds deltas to a message.
func join(m *Message, deltas []Delta) {
	for _, d := range deltas {
		m.Content += d.Content
		m.Reasoning += d.Reasoning
		if d.Call != nil {
			m.ToolCalls = append(m.ToolCalls, *d.Call)
		}
		if n := len(m.ToolCalls) - 1; d.Arguments != "" {
			m.ToolCalls[n].Arguments = append(m.ToolCalls[n].Arguments, d.Arguments...)
		}
	}
}

// pieces parses a text in pieces whose lengths next gives.
func pieces(s *AnswerStream, text string, next func() int) Message {
	m := Message{Role: "assistant"}
	for text != "" {
		n := min(len(text), max(1, next()))
		join(&m, s.Add(text[:n]))
		text = text[n:]
	}
	join(&m, s.End())
	return m
}

// checkPieces compares an answer in pieces with the same answer in one piece, and with that of Answer unless
// a call is broken. Answer and streams may read calls differently that have text after their arguments; exact
// says that the text has none.
func checkPieces(t *testing.T, name string, tmpl *Template, text string, tools []Tool, exact bool, next func() int) {
	t.Helper()
	prompt, whole := "assistant\n", text
	if think := tmpl.think; think.end != "" && tmpl.format != harmonyAnswers && strings.Contains(text, think.end) && !strings.HasPrefix(strings.TrimSpace(text), think.begin) {
		prompt, whole = "assistant\n"+think.begin+"\n", think.begin+text
	}
	want := tmpl.Answer(whole, tools)
	got := pieces(tmpl.Stream(prompt, tools), text, next)
	if one := pieces(tmpl.Stream(prompt, tools), text, func() int { return len(text) }); !reflect.DeepEqual(got, one) {
		t.Errorf("%s, %q, %d tools:\n%+v, in one piece\n%+v", name, text, len(tools), got, one)
	}
	for _, c := range got.ToolCalls {
		if !json.Valid(c.Arguments) {
			return
		}
	}
	if exact = exact || reflect.DeepEqual(got.ToolCalls, want.ToolCalls); exact && !reflect.DeepEqual(got, want) {
		t.Errorf("%s, %q, %d tools:\n%+v, want\n%+v", name, text, len(tools), got, want)
	}
}

var streamTexts = []string{
	"", " ", "Hi", " Hi \n", "<think>\nHm \u3000so.\n</think>\n\nHi\n", "Hm.</think>Hi", "<think>cut", " <thi", "<think></think>", "\n\n<think> </think>\n x",
	"<think>a</think>\n\nLet me.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>\n<tool_call>{\"name\": \"now\"}", "a <tool_call>no</tool_call> b <tool_ca",
	" x <tool_call>{\"name\": \"now\"}</tool_call> y \n", "<tool_call><function=now><parameter=a>1</parameter></function></tool_call>",
	"{\"name\": \"weather\", \"parameters\": {\"city\": \"x\"}}", " \n<|python_tag|>{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\"}", "{\"name\": \"nobody\"} ", "<|pyth",
	"Wait. [TOOL_CALLS]weather[ARGS]{\"city\": \"x\"}[TOOL_CALLS]now{}", "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}}]", "[TOOL_CALLS] none ", "[TOOL",
	"```tool_code\n[weather(city='x'), now()]\n```\n", "now()", "now ( ) ", "now", "nowhere to go", "```go\nx\n```", "[1]",
	"<|tool_call|>[{\"name\": \"now\"}]<|/tool_call|>", "<|tool_call|>[{\"name\": \"now\"}]", "a<|tool_call|>[<|/tool_call|>b",
	"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>First.<|end|><|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
	"<|channel|>analysis<|message|>a<|end|><|channel|>analysis<|message|>b<|start|>assistant<|channel|>final<|message|>Hi<|return|>", "<|channel|>commentary to=functions.now<|message|>{<|call|><|channel|>final<|message|>x",
	"<|channel|>analysis<|message|>a<|end|><|channel|>commentary<|message|>b<|channel|>final<|message|>c", "<|channel|>ana", "<|channel|>final<|message|>a <|b", "\xff\xe4\xb8", "日本</thi\xe4",
	"<seed:think>a</seed:think><seed:tool_call><function=now></function></seed:tool_call> b", "<minimax:tool_call><invoke name=\"now\"></invoke></minimax:tool_call>", "<answer>\n a </answer> b", "<think>a</think><answer>", "<|START_RESPONSE|> \n<|END_RESPONSE|>x",
	"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>[]<|END_ACTION|>", "<tool_call>now<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
}

// TestStream parses answers in pieces of every length, and in random pieces.
func TestStream(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, tmpl := range families(t) {
		for _, text := range streamTexts {
			for _, tools := range [][]Tool{nil, weatherTools} {
				for n := 1; n <= 3; n++ {
					checkPieces(t, name, tmpl, text, tools, true, func() int { return n })
				}
				checkPieces(t, name, tmpl, text, tools, true, func() int { return random.IntN(9) })
			}
		}
	}
}

// TestStreamEarly checks that text is returned as soon as it is certain.
func TestStreamEarly(t *testing.T) {
	for _, c := range []struct {
		family string
		tools  []Tool
		pieces []string // alternately a text and what it makes certain
	}{
		{"qwen3", nil, []string{"<think>", "", "\nHm ", "?Hm", "so", "? so", "</thi", "", "nk>", "", "\n\nHi", "!Hi", " \n", "! \n"}},
		{"qwen3", weatherTools, []string{"Hi", "!Hi", " <", "", "b", "! <b", "\n<tool_call>{\"name\": \"now\"}", "", "</tool_call>", "#now{}", "\n", ""}},
		{"qwen3", nil, []string{"日\xe6", "!日", "\x9c\xac", "!本"}},
		{"llama3", weatherTools, []string{" Hi", "! Hi", " {", "! {"}},
		{"llama3", weatherTools, []string{" {", "", "}", ""}},
		{"gemma3", weatherTools, []string{"We", "", "ll", "", ", hi", "!Well, hi", " x", "! x"}},
		{"mistral", weatherTools, []string{"Hi [TOOL", "!Hi", "S] x", "! [TOOLS] x", "[TOOL_CALLS]", "", "[]", ""}},
		{"gpt-oss", weatherTools, []string{"<|channel|>analysis", "", "<|message|>Hm", "?Hm", ".<|e", "?.", "nd|><|start|>assistant<|channel|>final<|message|>Hi", "!Hi", " x", "! x"}},
		{"gpt-oss", weatherTools, []string{"<|channel|>commentary to=functions.now<|message|>", "", " {", "#now{", "}", "#}", " <|call|>", ""}},
		{"qwen3", weatherTools, []string{"<tool_call>\n{\"name\": \"now\", \"arg", "", "uments\": {\"a", "#now{\"a", "\": \"}\\\"", "#\": \"}\\\"", "x\"}}\n<", "#x\"}", "/tool_call>", ""}},
		{"qwen3", weatherTools, []string{"<tool_call>{\"arguments\": {}, \"name\": \"now\"}", "", "</tool_call>", "#now{}"}},
	} {
		s := parseFile(t, c.family).Stream("", c.tools)
		for i := 0; i < len(c.pieces); i += 2 {
			m := Message{ToolCalls: []ToolCall{{}}}
			join(&m, s.Add(c.pieces[i]))
			got := ""
			if m.Reasoning != "" {
				got += "?" + m.Reasoning
			}
			if m.Content != "" {
				got += "!" + m.Content
			}
			for _, call := range m.ToolCalls {
				if call.Name != "" || len(call.Arguments) > 0 {
					got += "#" + call.Name + string(call.Arguments)
				}
			}
			if got != c.pieces[i+1] {
				t.Errorf("%s, %q: %q, want %q", c.family, c.pieces[:i+1], got, c.pieces[i+1])
			}
		}
	}
}

// TestStreamSpecial checks which special tokens become text.
func TestStreamSpecial(t *testing.T) {
	for _, c := range []struct {
		family string
		tools  []Tool
		text   string // special tokens are between | and |
		want   string
	}{
		{"gpt-oss", nil, "‖<|channel|>‖final‖<|message|>‖a‖<|endofprompt|>‖b‖<|return|>‖", "ab"},
		{"gpt-oss", weatherTools, "‖<|channel|>‖commentary to=functions.now‖<|constrain|>‖json‖<|message|>‖{}‖<|call|>‖", "#now"},
		{"mistral", weatherTools, "‖[TOOL_CALLS]‖now‖[ARGS]‖{}", "#now"},
		{"mistral", nil, "‖[TOOL_CALLS]‖now", "now"},
		{"qwen3", nil, "a‖<|vision_pad|>‖b", "ab"},
		{"llama3", weatherTools, "‖<|python_tag|>‖{\"name\": \"now\"}", "#now"},
	} {
		s := parseFile(t, c.family).Stream("", c.tools)
		m := Message{}
		for i, part := range strings.Split(c.text, "‖") {
			if i%2 == 1 {
				join(&m, s.Special(part))
			} else {
				join(&m, s.Add(part))
			}
		}
		join(&m, s.End())
		got := m.Content
		for _, call := range m.ToolCalls {
			got += "#" + call.Name
		}
		if got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.family, c.text, got, c.want)
		}
	}
}

// FuzzStream checks that the pieces of an answer make the whole answer, however it is divided.
func FuzzStream(f *testing.F) {
	for i, text := range streamTexts {
		f.Add(text, uint64(i))
	}
	list := families(f)
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		for name, tmpl := range list {
			for _, tools := range [][]Tool{nil, weatherTools} {
				checkPieces(t, name, tmpl, text, tools, false, func() int { return random.IntN(12) })
			}
		}
	})
}

// BenchmarkStream parses answers of several lengths a byte at a time. The time for a byte must not grow.
func BenchmarkStream(b *testing.B) {
	tmpl := parseFile(b, "qwen3")
	for _, n := range []int{1 << 10, 1 << 14, 1 << 18} {
		text := strings.Repeat("a < \n", n/5)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				s := tmpl.Stream("<think>", weatherTools)
				for i := range len(text) {
					if i == len(text)/2 {
						s.Add(thinkEnd)
					}
					s.Add(text[i : i+1])
				}
				s.End()
			}
		})
	}
}
