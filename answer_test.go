package pianola

import (
	"context"
	"testing"

	"github.com/pianola-engine/pianola/internal/chat"
)

// TestChatAnswer parses an answer with special tokens and checks the ID of its tool call.
func TestChatAnswer(t *testing.T) {
	m, err := Open(context.Background(), "testdata/gopher-q8_0.gguf", Options{Device: "cpu"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	tok, err := m.tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := chat.Parse("<tool_call> </think>")
	if err != nil {
		t.Fatal(err)
	}
	special, ok := tok.ID("<|begin_of_text|>")
	if !ok {
		t.Fatal("the model has no <|begin_of_text|>")
	}
	c := &Chat{tok: tok, t: tmpl, in: chat.Input{Tools: []chat.Tool{{Name: "now"}}}}
	c.messages = []ChatMessage{{Role: "assistant", ToolCalls: make([]ChatToolCall, 2)}}
	a := answer{}
	for _, token := range []Token{{Text: "Hm.</think>So"}, {ID: special}, {Text: "<tool_call>{\"name\": \"now\"}</tool_call>"}, {ID: special, Stop: true}} {
		if token.Text != "" {
			token.ID = 300
		}
		a.add(token, tok)
	}
	got := c.answer(&a)
	if got.Content != "So" || got.Reasoning != "Hm." || len(got.ToolCalls) != 1 || got.ToolCalls[0].Name != "now" || got.ToolCalls[0].ID != "call00003" {
		t.Errorf("%+v", got)
	}
}
