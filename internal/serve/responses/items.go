package responses

import (
	"bytes"
	"fmt"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fields"
)

// Item is an input or output item of a response. The JSON of an item depends on its Type.
type Item struct {
	Type   string
	ID     string
	Status string // "in_progress", "completed" or "incomplete"

	Role string // of a message
	Text []Text // the parts of a message, of reasoning, or of a function's output

	CallID    string // of a call and its output
	Name      string // of a call's function
	Arguments string // of a call

	// Plain reports that the output of a function is a string instead of parts.
	Plain bool
}

// The types of items.
const (
	messageItem   = "message"
	reasoningItem = "reasoning"
	callItem      = "function_call"
	outputItem    = "function_call_output"
	referenceItem = "item_reference"
)

// Text is a part of an item.
type Text struct {
	Type     string // "input_text", "output_text", "refusal" or "reasoning_text"
	Text     string
	LogProbs []LogProb // of an output text
}

// LogProb is a token of an output text with the logarithm of its probability.
type LogProb struct {
	Top
	Alternatives []Top `json:"top_logprobs"`
}

// Top is a token with the logarithm of its probability.
type Top struct {
	Token   string  `json:"token"`
	Bytes   []int   `json:"bytes"`
	LogProb float64 `json:"logprob"`
}

// outputText is the JSON form of a part with the type output_text.
type outputText struct {
	Type        string     `json:"type"`
	Text        string     `json:"text"`
	Annotations []struct{} `json:"annotations"`
	LogProbs    []LogProb  `json:"logprobs"`
}

// plainText is the JSON form of the other parts with a text.
type plainText struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// refusal is the JSON form of a part with the type refusal.
type refusal struct {
	Type    string `json:"type"`
	Refusal string `json:"refusal"`
}

// MarshalJSON implements json.Marshaler.
func (t Text) MarshalJSON() ([]byte, error) {
	switch t.Type {
	case "output_text":
		probs := t.LogProbs
		if probs == nil {
			probs = []LogProb{}
		}
		return backend.Marshal(outputText{t.Type, t.Text, []struct{}{}, probs})
	case "refusal":
		return backend.Marshal(refusal{t.Type, t.Text})
	}
	return backend.Marshal(plainText{t.Type, t.Text})
}

// MarshalJSON implements json.Marshaler.
func (i Item) MarshalJSON() ([]byte, error) {
	parts := i.Text
	if parts == nil {
		parts = []Text{}
	}
	switch i.Type {
	case reasoningItem:
		return backend.Marshal(struct {
			ID      string     `json:"id"`
			Type    string     `json:"type"`
			Status  string     `json:"status"`
			Summary []struct{} `json:"summary"`
			Content []Text     `json:"content"`
		}{i.ID, i.Type, i.Status, []struct{}{}, parts})
	case callItem:
		return backend.Marshal(struct {
			ID        string `json:"id"`
			Type      string `json:"type"`
			Status    string `json:"status"`
			CallID    string `json:"call_id"`
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		}{i.ID, i.Type, i.Status, i.CallID, i.Name, i.Arguments})
	case outputItem:
		out := struct {
			ID     string `json:"id"`
			Type   string `json:"type"`
			Status string `json:"status"`
			CallID string `json:"call_id"`
			Output any    `json:"output"`
		}{i.ID, i.Type, i.Status, i.CallID, parts}
		if i.Plain {
			out.Output = i.text()
		}
		return backend.Marshal(out)
	}
	return backend.Marshal(struct {
		ID      string `json:"id"`
		Type    string `json:"type"`
		Status  string `json:"status"`
		Role    string `json:"role"`
		Content []Text `json:"content"`
	}{i.ID, i.Type, i.Status, i.Role, parts})
}

// itemID returns a new id for an item of a type.
func itemID(kind string) string {
	return backend.NewID(map[string]string{messageItem: "msg", reasoningItem: "rs", callItem: "fc", outputItem: "fco"}[kind])
}

// text returns the parts of an item as one text.
func (i *Item) text() string {
	if len(i.Text) == 1 {
		return i.Text[0].Text
	}
	var b bytes.Buffer
	for _, t := range i.Text {
		b.WriteString(t.Text)
	}
	return b.String()
}

// size returns the approximate number of bytes that an item occupies in memory.
func (i *Item) size() int {
	n := 256 + len(i.ID) + len(i.CallID) + len(i.Name) + len(i.Arguments)
	for _, t := range i.Text {
		n += 64 + len(t.Text)
		for _, p := range t.LogProbs {
			n += 96 + len(p.Token) + 8*len(p.Bytes)
			for _, top := range p.Alternatives {
				n += 64 + len(top.Token) + 8*len(top.Bytes)
			}
		}
	}
	return n
}

// messages returns the conversation of items. Reasoning, text and calls that follow each other become
// one message of the assistant, and leading instructions become one message of the system, because
// chat templates expect them so. place names an item in errors.
func messages(items []Item, place func(i int) string) ([]engine.Message, error) {
	var all []engine.Message
	names := map[string]string{} // of the functions called, by the call's id
	last := func() *engine.Message {
		if len(all) == 0 || all[len(all)-1].Role != "assistant" {
			all = append(all, engine.Message{Role: "assistant"})
		}
		return &all[len(all)-1]
	}
	next := func() *engine.Message {
		all = append(all, engine.Message{Role: "assistant"})
		return &all[len(all)-1]
	}
	for n := range items {
		i := &items[n]
		switch {
		case i.Type == reasoningItem:
			m := last()
			if m.Content != "" || m.ToolCalls != nil {
				m = next()
			}
			m.Reasoning += i.text()
		case i.Type == callItem:
			m := last()
			m.ToolCalls = append(m.ToolCalls, engine.ToolCall{ID: i.CallID, Name: i.Name, Arguments: i.Arguments})
			names[i.CallID] = i.Name
		case i.Type == outputItem:
			name, ok := names[i.CallID]
			if !ok {
				return nil, &fields.Error{Param: place(n) + ".call_id", Why: fmt.Sprintf("no function_call before it has the call_id %.80q", i.CallID)}
			}
			all = append(all, engine.Message{Role: "tool", Name: name, ToolCallID: i.CallID, Content: i.text()})
		case i.Role == "assistant":
			m := last()
			if m.Content != "" || m.ToolCalls != nil {
				m = next()
			}
			m.Content = i.text()
		case i.Role == "system" && len(all) == 1 && all[0].Role == "system":
			all[0].Content += "\n\n" + i.text()
		default:
			all = append(all, engine.Message{Role: i.Role, Content: i.text()})
		}
	}
	return all, nil
}
