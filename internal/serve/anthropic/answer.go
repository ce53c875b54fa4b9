package anthropic

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/turn"
)

// Message is an answer of the model. Containers, diagnostics and details of a stop, which the service
// does not have, are null.
type Message struct {
	ID           string    `json:"id"`
	Type         string    `json:"type"`
	Role         string    `json:"role"`
	Model        string    `json:"model"`
	Content      []Block   `json:"content"`
	StopReason   *string   `json:"stop_reason"`
	StopSequence *string   `json:"stop_sequence"`
	StopDetails  *struct{} `json:"stop_details"`
	Container    *struct{} `json:"container"`
	Diagnostics  *struct{} `json:"diagnostics"`
	Usage        Usage     `json:"usage"`
}

// Usage are the tokens of a message. The tokens of the prompt that a cache had are not part of
// InputTokens.
type Usage struct {
	InputTokens              int `json:"input_tokens"`
	CacheCreationInputTokens int `json:"cache_creation_input_tokens"`
	CacheReadInputTokens     int `json:"cache_read_input_tokens"`
	OutputTokens             int `json:"output_tokens"`
	OutputTokensDetails      struct {
		ThinkingTokens int `json:"thinking_tokens"`
	} `json:"output_tokens_details"`
	ServerToolUse *struct{} `json:"server_tool_use"` // there are no tools of the server
}

// Block is a block of a message's content. Its JSON depends on its type.
type Block struct {
	Type string // "text", "thinking" or "tool_use"
	Text string // the text or the thinking; of a call, the JSON of the input

	ID, Name string // of a call
}

// signature is the signature of thinking. Anthropic's clients expect one; it is not verified.
const signature = "unsigned"

// MarshalJSON implements json.Marshaler.
func (b Block) MarshalJSON() ([]byte, error) {
	switch b.Type {
	case "thinking":
		sign := signature
		if b.Text == "" {
			sign = ""
		}
		return backend.Marshal(struct {
			Type      string `json:"type"`
			Thinking  string `json:"thinking"`
			Signature string `json:"signature"`
		}{b.Type, b.Text, sign})
	case "tool_use":
		return backend.Marshal(struct {
			Type   string          `json:"type"`
			ID     string          `json:"id"`
			Name   string          `json:"name"`
			Input  json.RawMessage `json:"input"`
			Caller caller          `json:"caller"`
		}{b.Type, b.ID, b.Name, input(b.Text), caller{"direct"}})
	}
	return backend.Marshal(struct {
		Type      string    `json:"type"`
		Text      string    `json:"text"`
		Citations *struct{} `json:"citations"`
	}{b.Type, b.Text, nil})
}

// caller is what has called a tool: the model.
type caller struct {
	Type string `json:"type"`
}

// input returns the input of a call as JSON. An input that is not complete, as of an answer that
// reached max_tokens, becomes a JSON string.
func input(arguments string) json.RawMessage {
	if arguments == "" {
		return json.RawMessage("{}")
	}
	if json.Valid([]byte(arguments)) {
		return json.RawMessage(arguments)
	}
	b, _ := backend.Marshal(arguments) // a string has a JSON form
	return b
}

// event is an event of a stream.
type event struct {
	Type         string   `json:"type"`
	Message      *Message `json:"message,omitempty"`
	Index        *int     `json:"index,omitempty"`
	ContentBlock *Block   `json:"content_block,omitempty"`
	Delta        any      `json:"delta,omitempty"`
	Usage        *Usage   `json:"usage,omitempty"`
	Error        *fault   `json:"error,omitempty"`
}

// stop is the delta of the event message_delta.
type stop struct {
	StopReason   *string `json:"stop_reason"`
	StopSequence *string `json:"stop_sequence"`
}

// delta is the delta of the event content_block_delta.
type delta struct {
	Type        string  `json:"type"`
	Text        *string `json:"text,omitempty"`
	Thinking    *string `json:"thinking,omitempty"`
	Signature   string  `json:"signature,omitempty"`
	PartialJSON *string `json:"partial_json,omitempty"`
}

// answer builds a message from the events of a turn, and sends the events of its stream.
type answer struct {
	message *Message
	// send sends an event. It does nothing for a message that is not streamed.
	send func(*event) error
	// thinks reports whether thinking is part of the answer.
	thinks bool
	stops  []string // the request's stop sequences

	begun bool
	open  bool // the last block is in progress
	call  int  // index of the open call among the calls
	said  strings.Builder
}

// begin sends the events that precede the content, once.
func (a *answer) begin() error {
	if a.begun {
		return nil
	}
	a.begun = true
	if err := a.send(&event{Type: "message_start", Message: a.message}); err != nil {
		return err
	}
	return a.send(&event{Type: "ping"})
}

// add adds an event of the turn.
func (a *answer) add(e turn.Event) error {
	if err := a.begin(); err != nil {
		return err
	}
	switch d := e.Delta; {
	case d.Reasoning != "":
		if !a.thinks {
			return nil
		}
		return a.piece("thinking", d.Reasoning, &delta{Type: "thinking_delta", Thinking: &d.Reasoning})
	case d.Content != "":
		return a.piece("text", d.Content, &delta{Type: "text_delta", Text: &d.Content})
	case d.Call != nil:
		return a.arguments(d.Call)
	}
	return nil
}

// last returns the last block, and its index.
func (a *answer) last() (*Block, *int) {
	index := len(a.message.Content) - 1
	return &a.message.Content[index], &index
}

// piece adds a piece to a text or to thinking.
func (a *answer) piece(kind, text string, d *delta) error {
	if !a.open || a.kind() != kind {
		if err := a.next(Block{Type: kind}); err != nil {
			return err
		}
	}
	return a.extend(text, d)
}

// kind returns the type of the last block.
func (a *answer) kind() string {
	b, _ := a.last()
	return b.Type
}

// extend adds a piece to the open block.
func (a *answer) extend(text string, d *delta) error {
	a.said.WriteString(text)
	_, index := a.last()
	return a.send(&event{Type: "content_block_delta", Index: index, Delta: d})
}

// arguments adds a piece of a call.
func (a *answer) arguments(d *engine.CallDelta) error {
	if !a.open || a.kind() != "tool_use" || a.call != d.Index {
		b := Block{Type: "tool_use", ID: d.ID, Name: d.Name}
		if b.ID == "" {
			b.ID = backend.NewID("toolu")
		}
		if err := a.next(b); err != nil {
			return err
		}
		a.call = d.Index
	}
	if d.Arguments == "" {
		return nil
	}
	return a.extend(d.Arguments, &delta{Type: "input_json_delta", PartialJSON: &d.Arguments})
}

// next ends the open block, and begins another one.
func (a *answer) next(b Block) error {
	if err := a.close(); err != nil {
		return err
	}
	a.message.Content = append(a.message.Content, b)
	a.open = true
	_, index := a.last()
	return a.send(&event{Type: "content_block_start", Index: index, ContentBlock: &b})
}

// close ends the open block.
func (a *answer) close() error {
	if !a.open {
		return nil
	}
	a.open = false
	b, index := a.last()
	b.Text = a.said.String()
	a.said.Reset()
	if b.Type == "thinking" {
		e := &event{Type: "content_block_delta", Index: index, Delta: &delta{Type: "signature_delta", Signature: signature}}
		if err := a.send(e); err != nil {
			return err
		}
	}
	return a.send(&event{Type: "content_block_stop", Index: index})
}

// end ends the message.
func (a *answer) end(r engine.Result, u turn.Usage, limit int) error {
	if err := a.close(); err != nil {
		return err
	}
	m := a.message
	reason := "end_turn"
	switch {
	case r.Reason == engine.Length && r.Tokens < limit:
		reason = "model_context_window_exceeded"
	case r.Reason == engine.Length:
		reason = "max_tokens"
	case r.StopText != "" && slices.Contains(a.stops, r.StopText):
		reason, m.StopSequence = "stop_sequence", &r.StopText
	case slices.ContainsFunc(m.Content, func(b Block) bool { return b.Type == "tool_use" }):
		reason = "tool_use"
	}
	m.StopReason = &reason
	m.Usage = Usage{InputTokens: u.Prompt - u.Cached, CacheReadInputTokens: u.Cached, OutputTokens: u.Generated}
	m.Usage.OutputTokensDetails.ThinkingTokens = u.Reasoning
	if err := a.send(&event{Type: "message_delta", Delta: &stop{m.StopReason, m.StopSequence}, Usage: &m.Usage}); err != nil {
		return err
	}
	return a.send(&event{Type: "message_stop"})
}
