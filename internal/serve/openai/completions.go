package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fields"
	"github.com/pianola-engine/pianola/internal/serve/turn"
)

// completionRequest is a request for completions.
type completionRequest struct {
	common
	prompts  []engine.Text
	logprobs int // alternatives; -1 if log-probabilities are not wanted
	bestOf   int
}

// The bounds of lists of texts.
const (
	maxPrompts = 256
	maxInputs  = 2048
	maxTokens  = 1 << 22 // of a prompt
)

// defaultTokens is OpenAI's default of max_tokens for completions.
const defaultTokens = 16

var completionFields = append([]fields.Field[completionRequest]{
	{Name: "prompt", Doc: "a text, tokens, or a list of up to 256 of either", Read: func(q *completionRequest, v fields.Value) (err error) {
		q.prompts, err = readTexts(v, maxPrompts)
		return err
	}},
	{Name: "max_tokens", Doc: "1 or more, default 16", Read: func(q *completionRequest, v fields.Value) error { return v.Int(&q.g.MaxTokens, 1, maxInt) }},
	{Name: "logprobs", Doc: "0 to 20 alternatives", Read: func(q *completionRequest, v fields.Value) error { return v.Int(&q.logprobs, 0, 20) }},
	{Name: "best_of", Doc: "the same number as `n`", Read: func(q *completionRequest, v fields.Value) error { return v.Int(&q.bestOf, 1, maxChoices) }},
	{Name: "echo", Doc: "false", Read: func(_ *completionRequest, v fields.Value) error {
		var echo bool
		err := v.Bool(&echo)
		if echo {
			return v.Errorf("echo is not supported: the prompt is not part of the answer")
		}
		return err
	}},
	{Name: "suffix", Doc: "an empty text", Read: func(_ *completionRequest, v fields.Value) error {
		var suffix string
		err := v.Text(&suffix)
		if suffix != "" {
			return v.Errorf("suffix is not supported: the model completes texts at their end")
		}
		return err
	}},
}, commonFields(func(q *completionRequest) *common { return &q.common })...)

// readTexts reads a text, a list of tokens, or a list of at most n texts or lists of tokens.
func readTexts(v fields.Value, n int) ([]engine.Text, error) {
	if v.Kind() == "a string" {
		var s string
		err := v.Text(&s)
		return []engine.Text{{String: s}}, err
	}
	if first := strings.TrimLeft(string(v.Raw[1:min(len(v.Raw), 64)]), " \t\r\n"); v.Kind() == "a list" && first != "" && (first[0] == '-' || first[0] >= '0' && first[0] <= '9') {
		ids, err := v.Tokens(maxTokens)
		return []engine.Text{{IDs: ids}}, err
	}
	list, err := v.List(n)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, v.Errorf("the list is empty")
	}
	texts := make([]engine.Text, len(list))
	for i, one := range list {
		if one.Kind() == "a list" {
			texts[i].IDs, err = one.Tokens(maxTokens)
		} else {
			err = one.Text(&texts[i].String)
		}
		if err != nil {
			return nil, err
		}
	}
	return texts, nil
}

// checkTokens checks that tokens are in the vocabulary.
func checkTokens(m engine.Model, param string, texts []engine.Text) error {
	most := m.Info().Vocabulary
	for _, t := range texts {
		for _, id := range t.IDs {
			if int(id) >= most {
				return &fields.Error{Param: param, Why: fmt.Sprintf("the token %d is not in the vocabulary of %d tokens", id, most)}
			}
		}
	}
	return nil
}

// finish checks fields that depend on each other.
func (q *completionRequest) finish() error {
	if len(q.prompts) == 0 {
		return &fields.Error{Param: "prompt", Why: "a prompt is required"}
	}
	if q.bestOf > 0 && q.bestOf != q.choices {
		return &fields.Error{Param: "best_of", Why: "best_of is not supported unless it is n: the service returns every answer"}
	}
	if q.g.MaxTokens == 0 {
		q.g.MaxTokens = defaultTokens
	}
	q.g.Sampling.LogProbs = q.logprobs + 1
	return nil
}

// completions serves POST /v1/completions.
func (c *call) completions() error {
	q := completionRequest{common: newCommon(), logprobs: -1}
	if err := read(c, completionFields, &q); err != nil {
		return err
	}
	if err := q.finish(); err != nil {
		return err
	}
	return c.generate(&q.common, "text_completion", func(m engine.Model, id string, out *backend.Stream) (answer, []*turn.Request, error) {
		if err := checkTokens(m, "prompt", q.prompts); err != nil {
			return nil, nil, err
		}
		a := &completionAnswer{
			c: c, q: &q, m: m, out: out, choices: make([]completionChoice, q.choices*len(q.prompts)),
			reply: completionReply{ID: "cmpl-" + c.o.NewID(), Object: "text_completion", Created: c.o.Now().Unix(), Model: id},
		}
		var turns []*turn.Request
		for _, p := range q.prompts {
			g := q.g
			g.Prompt = p
			turns = append(turns, &turn.Request{Generation: g, Choices: q.choices, Whole: out == nil})
		}
		return a, turns, nil
	})
}

// completionReply is a whole reply or a chunk of a stream.
type completionReply struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"`
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []completionChoice `json:"choices"`
	Usage   any                `json:"usage,omitempty"`
}

type completionChoice struct {
	Index        int                 `json:"index"`
	Text         string              `json:"text"`
	LogProbs     *completionLogProbs `json:"logprobs"`
	FinishReason *string             `json:"finish_reason"`

	offset int // characters of the text so far
}

type completionLogProbs struct {
	Tokens   []string             `json:"tokens"`
	LogProbs []float64            `json:"token_logprobs"`
	Top      []map[string]float64 `json:"top_logprobs"`
	Offsets  []int                `json:"text_offset"`
}

// completionAnswer makes the reply to a request for completions.
type completionAnswer struct {
	c       *call
	q       *completionRequest
	m       engine.Model
	out     *backend.Stream // nil if the reply is wanted whole
	reply   completionReply
	choices []completionChoice
}

func (a *completionAnswer) add(e turn.Event) error {
	of := &a.choices[e.Choice]
	chunk := completionChoice{Index: e.Choice, Text: e.Delta.Content, LogProbs: a.logProbs(of, e.Tokens)}
	if e.Done != nil {
		reason := e.Done.Reason()
		chunk.FinishReason = &reason
	}
	if a.out == nil {
		chunk.Text, chunk.offset = of.Text+chunk.Text, of.offset
		if chunk.LogProbs == nil {
			chunk.LogProbs = of.LogProbs
		}
		chunk.offset = of.offset
		*of = chunk
		return nil
	}
	var u any
	if a.q.includeUsage {
		u = json.RawMessage("null")
	}
	return sendChunk(a.out, a.reply.with([]completionChoice{chunk}, u))
}

// with returns a copy of a reply with choices.
func (r completionReply) with(choices []completionChoice, u any) completionReply {
	r.Choices, r.Usage = choices, u
	return r
}

// logProbs returns the log-probabilities of tokens, or nil if they are not wanted.
func (a *completionAnswer) logProbs(of *completionChoice, tokens []engine.Token) *completionLogProbs {
	if a.q.logprobs < 0 || len(tokens) == 0 {
		return nil
	}
	p := &completionLogProbs{}
	for _, t := range tokens {
		p.Tokens = append(p.Tokens, pieceName(a.m, t.ID))
		p.LogProbs = append(p.LogProbs, logProb(t.LogProb))
		p.Offsets = append(p.Offsets, of.offset)
		of.offset += utf8.RuneCountInString(t.Text)
		top := map[string]float64{}
		for _, one := range t.Top {
			top[pieceName(a.m, one.ID)] = logProb(one.LogProb)
		}
		p.Top = append(p.Top, top)
	}
	return p
}

// pieceName returns the text of a token. A token that is not valid UTF-8 is spelled as OpenAI does:
// bytes:\xe4.
func pieceName(m engine.Model, id int32) string {
	b := m.Piece(id)
	if utf8.Valid(b) {
		return string(b)
	}
	name := "bytes:"
	for _, c := range b {
		name += fmt.Sprintf(`\x%02x`, c)
	}
	return name
}

func (a *completionAnswer) end(u turn.Usage) error {
	if a.out == nil {
		return a.c.reply(a.reply.with(a.choices, usageOf(u)))
	}
	if a.q.includeUsage {
		if err := sendChunk(a.out, a.reply.with([]completionChoice{}, usageOf(u))); err != nil {
			return err
		}
	}
	return a.out.Event("", []byte("[DONE]"))
}
