package openai

import (
	"encoding/json"
	"strings"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/turn"
)

// chat serves POST /v1/chat/completions.
func (c *call) chat() error {
	q := chatRequest{common: newCommon()}
	if err := read(c, chatFields, &q); err != nil {
		return err
	}
	if err := q.finish(); err != nil {
		return err
	}
	return c.generate(&q.common, "chat", func(m engine.Model, id string, out *backend.Stream) (answer, []*turn.Request, error) {
		a := &chatAnswer{
			c: c, q: &q, m: m, out: out, choices: make([]chatChoice, q.choices),
			reply: chatReply{ID: "chatcmpl-" + c.o.NewID(), Object: "chat.completion", Created: c.o.Now().Unix(), Model: id},
		}
		if out != nil {
			a.reply.Object += ".chunk"
		}
		return a, []*turn.Request{{Conversation: &q.c, Generation: q.g, Choices: q.choices, Whole: out == nil, OneCall: q.oneCall}}, nil
	})
}

// chatReply is a whole reply or a chunk of a stream.
type chatReply struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []chatChoice `json:"choices"`
	Usage   any          `json:"usage,omitempty"`
}

// chatChoice is a choice of a reply. It has a message or a delta.
type chatChoice struct {
	Index        int           `json:"index"`
	Message      *chatMessage  `json:"message,omitempty"`
	Delta        *chatDelta    `json:"delta,omitempty"`
	LogProbs     *chatLogProbs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

type chatMessage struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	Refusal   *string    `json:"refusal"`
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
}

type chatDelta struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content,omitempty"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
}

// toolCall is a call, or a piece of one, which has an index.
type toolCall struct {
	Index    *int         `json:"index,omitempty"`
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function toolFunction `json:"function"`
}

type toolFunction struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

type chatLogProbs struct {
	Content []tokenLogProb `json:"content"`
	Refusal *string        `json:"refusal"`
}

type tokenLogProb struct {
	topLogProb
	Top []topLogProb `json:"top_logprobs"`
}

type topLogProb struct {
	Token   string  `json:"token"`
	LogProb float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// chatAnswer makes the reply to a request for chat completions.
type chatAnswer struct {
	c       *call
	q       *chatRequest
	m       engine.Model
	out     *backend.Stream // nil if the reply is wanted whole
	reply   chatReply
	choices []chatChoice
}

func (a *chatAnswer) add(e turn.Event) error {
	if a.out == nil {
		a.collect(e)
		return nil
	}
	of := &a.choices[e.Choice]
	if of.Delta == nil { // the choice begins
		empty := ""
		of.Delta = &chatDelta{Role: "assistant", Content: &empty}
		if err := a.chunk(chatChoice{Index: e.Choice, Delta: of.Delta}, a.pending()); err != nil {
			return err
		}
	}
	chunk := chatChoice{Index: e.Choice, Delta: &chatDelta{Reasoning: e.Delta.Reasoning}, LogProbs: a.logProbs(e.Tokens)}
	if e.Delta.Content != "" {
		chunk.Delta.Content = &e.Delta.Content
	}
	if e.Delta.Call != nil {
		chunk.Delta.ToolCalls = []toolCall{a.call(e.Delta.Call, true)}
	}
	if e.Done != nil {
		reason := e.Done.Reason()
		chunk.FinishReason = &reason
	}
	return a.chunk(chunk, a.pending())
}

// pending returns the usage of a chunk before the last one.
func (a *chatAnswer) pending() any {
	if a.q.includeUsage {
		return json.RawMessage("null")
	}
	return nil
}

// chunk sends a chunk.
func (a *chatAnswer) chunk(choice chatChoice, u any) error {
	return sendChunk(a.out, a.reply.with([]chatChoice{choice}, u))
}

// with returns a copy of a reply with choices.
func (r chatReply) with(choices []chatChoice, u any) chatReply {
	r.Choices, r.Usage = choices, u
	return r
}

// sendChunk sends a chunk of a stream.
func sendChunk(out *backend.Stream, chunk any) error {
	text, err := backend.Marshal(chunk)
	if err != nil {
		return err
	}
	return out.Event("", text)
}

// collect adds an event to a whole reply.
func (a *chatAnswer) collect(e turn.Event) {
	of := &a.choices[e.Choice]
	if of.Message == nil {
		*of = chatChoice{Index: e.Choice, Message: &chatMessage{Role: "assistant"}}
	}
	m := of.Message
	m.Reasoning += e.Delta.Reasoning
	if e.Delta.Content != "" {
		m.Content = &e.Delta.Content
	}
	if d := e.Delta.Call; d != nil {
		m.ToolCalls = append(m.ToolCalls, a.call(d, false))
	}
	if p := a.logProbs(e.Tokens); p != nil {
		of.LogProbs = p
	}
	if e.Done != nil {
		reason := e.Done.Reason()
		if of.FinishReason = &reason; m.Content == nil && len(m.ToolCalls) == 0 {
			m.Content = new(string)
		}
	}
}

// call returns a piece of a call. The first piece has the name and an ID.
func (a *chatAnswer) call(d *engine.CallDelta, piece bool) toolCall {
	t := toolCall{Function: toolFunction{d.Name, d.Arguments}}
	if piece {
		t.Index = &d.Index
	}
	if d.Name != "" {
		if t.ID, t.Type = d.ID, "function"; t.ID == "" {
			t.ID = callID(a.c.o.NewID())
		}
	}
	return t
}

// callID returns the ID of a call. It has nine letters and digits, because Mistral's templates want them.
func callID(id string) string {
	return "call" + strings.ToLower(id[max(0, len(id)-5):])
}

// logProbs returns the log-probabilities of tokens, or nil if they are not wanted.
func (a *chatAnswer) logProbs(tokens []engine.Token) *chatLogProbs {
	if !a.q.logprobs || len(tokens) == 0 {
		return nil
	}
	of := &chatLogProbs{}
	top := func(id int32, p float32) topLogProb {
		text, bytes := backend.Piece(a.m, id)
		return topLogProb{text, logProb(p), bytes}
	}
	for _, t := range tokens {
		one := tokenLogProb{top(t.ID, t.LogProb), []topLogProb{}}
		for _, p := range t.Top {
			one.Top = append(one.Top, top(p.ID, p.LogProb))
		}
		of.Content = append(of.Content, one)
	}
	return of
}

func (a *chatAnswer) end(u turn.Usage) error {
	if a.out == nil {
		return a.c.reply(a.reply.with(a.choices, usageOf(u)))
	}
	if a.q.includeUsage {
		if err := sendChunk(a.out, a.reply.with([]chatChoice{}, usageOf(u))); err != nil {
			return err
		}
	}
	return a.out.Event("", []byte("[DONE]"))
}
