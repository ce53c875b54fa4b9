// Package enginetest has a model for tests of the service. It generates what a script says, and
// renders and parses conversations as the models of a family do.
//
// The package must not know HTTP or any protocol.
package enginetest

import (
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/pianola-engine/pianola/internal/chat"
	"github.com/pianola-engine/pianola/internal/serve/answers"
	"github.com/pianola-engine/pianola/internal/serve/engine"
)

// ChatML is a chat template in the form of Qwen 3: its models reason between <think> and </think>
// and call tools between <tool_call> and </tool_call>.
const ChatML = `{% if tools %}<|im_start|>system
{% for t in tools %}{{ t | tojson }}
{% endfor %}Answer with <tool_call> to call a tool.<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}`

// Options are the settings of a Model.
type Options struct {
	Info     engine.Info // zero numbers have defaults; the booleans are true unless Bare is set
	Template string      // a chat template; "" means ChatML
	// Bare leaves the booleans of Info as they are, and the model without a chat template if Info.Chat
	// is false.
	Bare  bool
	Reply func(Input) Script // nil answers "Hello there, friend."
	Ended func(error)        // if not nil, is called at the end of each generation
}

// Model is a scripted model. It implements engine.Model.
type Model struct {
	o    Options
	info engine.Info
	t    *chat.Template

	mu      sync.Mutex
	pieces  []piece // tokens from firstPiece
	ids     map[piece]int32
	running int
	closed  bool
}

var _ engine.Model = (*Model)(nil)

// piece is a token of more than a byte.
type piece struct {
	text    string
	special bool
}

// The tokens 0 to 255 are bytes.
const firstPiece = 256

// stopName is the name of the stop token.
const stopName = "<|im_end|>"

// New returns a model.
func New(o Options) (*Model, error) {
	if o.Template == "" {
		o.Template = ChatML
	}
	if o.Reply == nil {
		o.Reply = Say("Hello there, friend.")
	}
	t, err := chat.Parse(o.Template)
	if err != nil {
		return nil, err
	}
	m := &Model{o: o, info: o.Info, t: t, ids: map[piece]int32{}}
	i := &m.info
	if !o.Bare {
		i.Chat, i.Tools, i.Embeds, i.Reranks = true, true, true, true
	}
	if i.Architecture == "" {
		i.Architecture = "scripted"
	}
	for of, n := range map[*int]int{&i.Context: 4096, &i.Vocabulary: 4096, &i.Width: 8, &i.Parallel: 8, &i.PagePositions: 16, &i.MaxLogProbs: 21} {
		if *of == 0 {
			*of = n
		}
	}
	for _, name := range []string{stopName, "<|im_start|>"} {
		m.id(piece{name, true})
	}
	return m, nil
}

// Info returns the model's properties.
func (m *Model) Info() engine.Info { return m.info }

// id returns the token of a piece, and adds it to the vocabulary.
func (m *Model) id(p piece) int32 {
	if len(p.text) == 1 && !p.special {
		return int32(p.text[0])
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	id, ok := m.ids[p]
	if !ok {
		id = int32(firstPiece + len(m.pieces))
		m.pieces = append(m.pieces, p)
		m.ids[p] = id
	}
	return id
}

// Encode returns the bytes of a text as tokens. With ParseSpecial, names of special tokens become
// these tokens.
func (m *Model) Encode(text string, o engine.EncodeOptions) (ids []int32, err error) {
	for text != "" {
		if i := strings.Index(text, "|>") + 2; o.ParseSpecial && strings.HasPrefix(text, "<|") && i > 1 {
			ids = append(ids, m.id(piece{text[:i], true}))
			text = text[i:]
			continue
		}
		ids = append(ids, int32(text[0]))
		text = text[1:]
	}
	return ids, nil
}

// Piece returns the bytes of a token.
func (m *Model) Piece(id int32) []byte {
	if id >= 0 && id < firstPiece {
		return []byte{byte(id)}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := int(id) - firstPiece; i >= 0 && i < len(m.pieces) {
		return []byte(m.pieces[i].text)
	}
	return nil
}

// text returns what tokens stand for.
func (m *Model) text(ids []int32) (string, error) {
	var b strings.Builder
	for _, id := range ids {
		piece := m.Piece(id)
		if piece == nil {
			return "", &engine.RequestError{Param: "prompt", Why: "the prompt has a token that is not in the vocabulary"}
		}
		b.Write(piece)
	}
	return b.String(), nil
}

// Chat renders a conversation.
func (m *Model) Chat(ctx context.Context, c engine.Conversation) (*engine.Prompt, error) {
	if !m.info.Chat {
		return nil, engine.ErrUnsupported
	}
	in := chat.Input{Generate: !c.Continue, Vars: c.Vars}
	for _, msg := range c.Messages {
		of := chat.Message{Role: msg.Role, Content: msg.Content, Reasoning: msg.Reasoning, Name: msg.Name, ToolCallID: msg.ToolCallID}
		for _, call := range msg.ToolCalls {
			of.ToolCalls = append(of.ToolCalls, chat.ToolCall{ID: call.ID, Name: call.Name, Arguments: json.RawMessage(call.Arguments)})
		}
		in.Messages = append(in.Messages, of)
	}
	for _, tool := range c.Tools {
		in.Tools = append(in.Tools, chat.Tool(tool))
	}
	text, err := m.t.Render(ctx, in)
	if err != nil {
		return nil, &engine.RequestError{Param: "messages", Why: err.Error()}
	}
	ids, err := m.Encode(text, engine.EncodeOptions{ParseSpecial: true})
	if err == nil && len(ids) == 0 {
		err = &engine.RequestError{Param: "messages", Why: "the rendered conversation is empty"}
	}
	return &engine.Prompt{
		Text: text, IDs: ids, Stop: []string{stopName},
		Answer: func() engine.Answer { return answers.New(m.t, text, in.Tools) },
	}, err
}

// Generate generates what the script says.
func (m *Model) Generate(ctx context.Context, g engine.Generation, yield func(engine.Token) bool) (r engine.Result, err error) {
	m.mu.Lock()
	closed := m.closed
	m.running++
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.running--
		m.mu.Unlock()
		if m.o.Ended != nil {
			m.o.Ended(err)
		}
	}()
	ids := g.Prompt.IDs
	if ids == nil {
		if ids, err = m.Encode(g.Prompt.String, engine.EncodeOptions{AddSpecial: true}); err != nil {
			return r, err
		}
	}
	r.Prompt = len(ids)
	prompt, err := m.text(ids)
	switch {
	case err != nil:
		return r, err
	case closed:
		return r, engine.ErrClosed
	case len(ids) == 0:
		return r, &engine.RequestError{Param: "prompt", Why: "the prompt has no tokens"}
	case len(ids) >= m.info.Context:
		return r, engine.ErrContextFull
	}
	script := m.o.Reply(Input{prompt, g})
	r.Cached = script.Cached
	play := player{m: m, g: &g, r: &r, stops: stopper{stop: g.Stop}, yield: yield}
	for _, step := range append(slices.Clip(script.Steps), Step{Stop: true}) {
		if more, err := play.step(ctx, step); err != nil || !more {
			return r, err
		}
	}
	r.Reason = engine.Stopped
	return r, nil
}

// player performs the steps of a script.
type player struct {
	m     *Model
	g     *engine.Generation
	r     *engine.Result
	stops stopper
	part  string // bytes of an incomplete character
	yield func(engine.Token) bool
}

// step performs a step. It reports false at the end of the generation.
func (p *player) step(ctx context.Context, s Step) (more bool, err error) {
	if err := p.wait(ctx, s.Wait); err != nil || s.Err != nil {
		return false, errors.Join(err, s.Err)
	}
	if s.Text == "" && s.Special == "" && !s.Stop {
		return true, nil
	}
	of := piece{s.Text, false}
	switch {
	case s.Stop:
		of = piece{stopName, true}
	case s.Special != "":
		of = piece{s.Special, true}
	}
	t, ends := engine.Token{ID: p.m.id(of), Special: s.Special}, s.Stop && !p.g.IgnoreStops
	p.part += s.Text
	whole := len(p.part)
	for i := max(0, whole-utf8.UTFMax); i < whole; i++ {
		if utf8.RuneStart(p.part[i]) && !utf8.FullRuneInString(p.part[i:]) {
			whole = i
		}
	}
	text := p.part[:whole]
	p.part = p.part[whole:]
	t.Text, p.r.StopText = p.stops.add(strings.ToValidUTF8(text, "\uFFFD"))
	if s.Special != "" && slices.Contains(p.g.Stop, s.Special) {
		p.r.StopText, t.Special = s.Special, ""
	}
	ends = ends || p.r.StopText != ""
	p.r.Tokens++
	full := p.r.Tokens == p.g.MaxTokens || p.r.Prompt+p.r.Tokens >= p.m.info.Context
	if full || ends {
		t.Text += p.stops.held
	}
	if n := p.g.Sampling.LogProbs; n > 0 {
		t.LogProb = -0.5
		for i := range n - 1 {
			t.Top = append(t.Top, engine.LogProb{ID: (t.ID + int32(i)) % firstPiece, LogProb: -0.5 - float32(i)})
		}
		if n > 1 {
			t.Top[0].ID = t.ID
		}
	}
	open := p.yield(t)
	switch {
	case ends:
		p.r.Reason = engine.Stopped
	case full:
		p.r.Reason = engine.Length
	case !open:
		p.r.Reason = engine.Left
	default:
		return true, nil
	}
	return false, nil
}

// wait waits for a channel, for the first token no longer than the request allows.
func (p *player) wait(ctx context.Context, until <-chan struct{}) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if until == nil {
		return nil
	}
	var late <-chan time.Time
	if p.g.Within > 0 && p.r.Tokens == 0 {
		timer := time.NewTimer(p.g.Within)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-until:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-late:
		return engine.ErrDeadline
	}
}

// Embed returns vectors that depend on the texts alone.
func (m *Model) Embed(ctx context.Context, texts []engine.Text, o engine.EmbedOptions) (vectors [][]float32, tokens int, err error) {
	if !m.info.Embeds {
		return nil, 0, engine.ErrUnsupported
	}
	for _, t := range texts {
		if t.IDs != nil {
			if t.String, err = m.text(t.IDs); err != nil {
				return nil, tokens, err
			}
		}
		tokens += len(t.String)
		v, sum := make([]float32, m.info.Width), 0.0
		for i := range v {
			h := fnv.New32a()
			_, _ = h.Write(append([]byte(t.String), byte(i))) // cannot fail
			v[i] = float32(h.Sum32()%1000)/500 - 1
			sum += float64(v[i]) * float64(v[i])
		}
		for i := range v {
			if o.Normalize {
				v[i] = float32(float64(v[i]) / math.Sqrt(sum))
			}
		}
		vectors = append(vectors, v)
	}
	return vectors, tokens, ctx.Err()
}

// Rerank counts the words of the query in each document.
func (m *Model) Rerank(ctx context.Context, query string, documents []string) (scores []float64, tokens int, err error) {
	if !m.info.Reranks {
		return nil, 0, engine.ErrUnsupported
	}
	for _, d := range documents {
		tokens += len(query) + len(d)
		n := 0
		for _, word := range strings.Fields(query) {
			n += strings.Count(d, word)
		}
		scores = append(scores, float64(n))
	}
	return scores, tokens, ctx.Err()
}

// Load returns the number of generations in progress.
func (m *Model) Load() engine.Load {
	m.mu.Lock()
	defer m.mu.Unlock()
	return engine.Load{Running: m.running}
}

// Close closes the model.
func (m *Model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}
