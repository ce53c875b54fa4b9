package answers

import (
	"fmt"
	"testing"

	"github.com/pianola-engine/pianola/internal/chat"
	"github.com/pianola-engine/pianola/internal/serve/engine"
)

// TestAnswer parses an answer with reasoning, content, special tokens and two calls.
func TestAnswer(t *testing.T) {
	tmpl, err := chat.Parse("<tool_call> </think>")
	if err != nil {
		t.Fatal(err)
	}
	a := New(tmpl, "x<think>\n", []chat.Tool{{Name: "now"}})
	got := ""
	show := func(deltas []engine.Delta) {
		for _, d := range deltas {
			if got += fmt.Sprintf("[%s|%s", d.Reasoning, d.Content); d.Call != nil {
				got += fmt.Sprintf("%d%s%s", d.Call.Index, d.Call.Name, d.Call.Arguments)
			}
			got += "]"
		}
	}
	for _, tok := range []engine.Token{{Text: "Hm"}, {Special: "</think>"}, {Text: "\n\n"}, {Special: "<|other|>"}, {Text: "So"}, {Special: "<tool_call>"}, {Text: `{"name": "now"}`}, {Text: "</tool_"}, {Text: "call>"}, {Text: `<tool_call>{"name": "now", "arguments": {"a": 1}}`}} {
		show(a.Add(tok))
	}
	show(a.End())
	if want := `[Hm|][|So][|0now][|0{}][|1now][|1{"a": 1}]`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
