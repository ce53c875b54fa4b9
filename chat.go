package pianola

import (
	"context"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pianola-engine/pianola/internal/chat"
	"github.com/pianola-engine/pianola/internal/tokenizer"
	"github.com/pianola-engine/pianola/weights"
)

// Messages of a Chat, and tools that its template tells the model of.
type (
	ChatMessage  = chat.Message
	ChatToolCall = chat.ToolCall
	ChatTool     = chat.Tool
)

// ErrNoChatTemplate says that the model has no chat template, or none of the name
// that was asked for.
var ErrNoChatTemplate = chat.ErrNoTemplate

// SpecialTextError says that a message's text has the name of a special token, which
// the template's text would make that token: a message could so end its turn and
// begin another's.
type SpecialTextError struct {
	Message int    // its number in the conversation
	Token   string // "<|im_end|>"
}

// Error implements error.
func (e *SpecialTextError) Error() string {
	return fmt.Sprintf("pianola: message %d has %s in its text, which is a special token", e.Message, e.Token)
}

// ChatOptions are a conversation's settings.
type ChatOptions struct {
	// Template is the name of one of the model's templates; "": the one for tools if
	// there are Tools, else the default.
	Template string
	// Source is a template in the place of the model's.
	Source string
	Tools  []ChatTool
	// Vars are further variables of the template, such as "enable_thinking"; see
	// chat.Input.
	Vars map[string]any
	// AllowSpecial takes special tokens' names in messages as these tokens, as
	// transformers does. Otherwise they are a *SpecialTextError.
	AllowSpecial bool
	// Now is the templates' clock; nil: time.Now, once, when the chat begins, so that
	// midnight does not change what was said before.
	Now func() time.Time
}

// Chat is a conversation on a session: messages in turns, rendered by the model's own
// template. Each turn prefills only what is new. A Chat is for one goroutine at a time;
// other calls on its session in between cost a new prefill, no more.
type Chat struct {
	s     *Session
	tok   *tokenizer.Tokenizer
	t     *chat.Template
	o     ChatOptions
	in    chat.Input // without messages
	first []ChatMessage

	messages []ChatMessage
	checked  int // messages whose texts have no special tokens, or are the assistant's

	// What the last turn left in the context: its text and the tokens that it is.
	text string
	ids  []int32

	ends    []int32 // end a turn, beside the model's stop ids
	endText string
}

// NewChat begins a conversation with messages, such as a system message; nothing is
// computed yet. The error is ErrNoTokenizer, ErrNoChatTemplate or a *jinja.Error of the
// template.
func (s *Session) NewChat(o ChatOptions, messages ...ChatMessage) (*Chat, error) {
	tok, err := s.m.tokenizer()
	if err != nil {
		return nil, err
	}
	t, err := s.m.chatTemplate(o)
	if err != nil {
		return nil, err
	}
	c := &Chat{s: s, tok: tok, t: t, o: o, first: slices.Clone(messages), messages: slices.Clone(messages)}
	now := time.Now
	if o.Now != nil {
		now = o.Now
	}
	c.in = chat.Input{Tools: o.Tools, Vars: o.Vars, Now: now()}
	if id, ok := tok.BOS(); ok {
		c.in.BOS, _ = tok.Token(id)
	}
	if id, ok := tok.EOS(); ok {
		c.in.EOS, _ = tok.Token(id)
	}
	return c, c.findEnd()
}

// ChatTemplates returns the model's chat templates: from GGUF metadata, or from
// chat_template.jinja, additional_chat_templates, chat_template.json and
// tokenizer_config.json beside the weights.
func (m *Model) ChatTemplates() (map[string]string, error) { return chatTemplates(m.h.dir) }

func (m *Model) chatTemplate(o ChatOptions) (*chat.Template, error) {
	if o.Source != "" {
		return chat.Parse(o.Source)
	}
	sources, err := chatTemplates(m.h.dir)
	if err != nil {
		return nil, err
	}
	return sources.Parse(o.Template, len(o.Tools) > 0)
}

func chatTemplates(dir *weights.Directory) (chat.Sources, error) {
	if dir.Format() == weights.GGUF {
		return chat.FromGGUF(dir), nil
	}
	root := dir.Path()
	if st, err := os.Stat(root); err == nil && !st.IsDir() {
		root = filepath.Dir(root)
	}
	return chat.FromDirectory(root, readBounded)
}

// callEnds are the tokens by which Llama 3 and gpt-oss end a turn that asks for a tool.
var callEnds = []string{"<|eom_id|>", "<|call|>"}

// findEnd finds how the template ends the assistant's turn: by a token, or by text.
func (c *Chat) findEnd() error {
	for _, name := range callEnds {
		if id, ok := c.tok.ID(name); ok && c.tok.Special(id) {
			c.ends = append(c.ends, id)
		}
	}
	end := strings.TrimSpace(c.t.EndOfTurn(context.Background(), c.in))
	if end == "" {
		return nil
	}
	ids, err := c.tok.Encode(end, tokenizer.EncodeOptions{ParseSpecial: true})
	if err != nil {
		return err
	}
	if len(ids) > 0 && c.tok.Special(ids[0]) {
		c.ends = append(c.ends, ids[0])
		return nil
	}
	c.endText, _, _ = strings.Cut(end, "\n")
	return nil
}

// Messages returns the conversation so far. It must not be changed.
func (c *Chat) Messages() []ChatMessage { return c.messages }

// Amend replaces the last message, for callers that find more in the assistant's text
// than Send does. Special tokens' names are not looked for in it.
func (c *Chat) Amend(m ChatMessage) {
	if n := len(c.messages); n > 0 {
		c.messages[n-1] = m
	}
}

// Reset takes the conversation back to the messages that it began with.
func (c *Chat) Reset() {
	c.messages, c.text, c.ids = slices.Clone(c.first), "", nil
	c.checked = min(c.checked, len(c.first))
}

// Send adds messages to the conversation and streams the assistant's answer, which
// becomes a message, too, as far as it has come, when the sequence ends: the last of
// Messages. In it are apart what the model thought (Reasoning), what it says (Content)
// and, if the chat has Tools, what it asks of them (ToolCalls), as models of Llama 3, Qwen,
// Mistral, Gemma 3, Phi 4 and gpt-oss write that; see chat.Template.Answer. Calls
// that the model gave no ID get one. The next Send takes the tools' answers, messages
// of role "tool". Of o count MaxTokens, Sampling and Stop.
//
// The sequence ends as Generate's. If an error comes before the first token, the
// conversation is as it was: a *SpecialTextError, a *jinja.Error of the template or of
// what it says of the messages (*jinja.RaisedError), ErrContextFull, ctx's and others
// of Generate.
func (c *Chat) Send(ctx context.Context, o GenerateOptions, messages ...ChatMessage) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		before := len(c.messages)
		c.messages = append(c.messages, messages...)
		text, ids, err := c.prompt(ctx)
		if err != nil {
			c.cut(before)
			yield(Token{}, err)
			return
		}
		o.Whole, o.ContinueText, o.NoSpecial = true, true, false
		if c.endText != "" {
			o.Stop = append(slices.Clone(o.Stop), c.endText)
		}
		a := answer{}
		defer func() {
			if len(a.ids) == 0 {
				c.cut(before)
				return
			}
			c.messages = append(c.messages, c.answer(&a))
			c.checked = len(c.messages)
			c.remember(text, ids, &a)
		}()
		for t, err := range c.s.GenerateIDs(ctx, ids, o) {
			if err != nil {
				yield(Token{}, err)
				return
			}
			t.Stop = t.Stop || slices.Contains(c.ends, t.ID)
			a.add(t, c.tok)
			if !yield(t, nil) || t.Stop {
				return
			}
		}
	}
}

// cut takes messages back.
func (c *Chat) cut(n int) {
	c.messages = c.messages[:n]
	c.checked = min(c.checked, n)
}

// answer is what the assistant says in a turn.
type answer struct {
	text strings.Builder
	raw  strings.Builder // with special tokens by their names
	ids  []int32
	stop bool
}

func (a *answer) add(t Token, tok *tokenizer.Tokenizer) {
	a.text.WriteString(t.Text)
	a.raw.WriteString(t.Text)
	if tok.Special(t.ID) && !t.Stop {
		name, _ := tok.Token(t.ID)
		a.raw.WriteString(name)
	}
	a.ids = append(a.ids, t.ID)
	a.stop = t.Stop
}

// answer returns what the assistant said, taken apart.
func (c *Chat) answer(a *answer) ChatMessage {
	m := c.t.Answer(a.raw.String(), c.o.Tools)
	for _, id := range a.ids { // names that are left would be tokens again
		if name, _ := c.tok.Token(id); name != "" && c.tok.Special(id) {
			m.Content, m.Reasoning = strings.ReplaceAll(m.Content, name, ""), strings.ReplaceAll(m.Reasoning, name, "")
		}
	}
	n := 0
	for i := range c.messages {
		n += len(c.messages[i].ToolCalls)
	}
	for i := range m.ToolCalls {
		if n++; m.ToolCalls[i].ID == "" {
			m.ToolCalls[i].ID = fmt.Sprintf("call%05d", n) // Mistral wants nine letters or digits
		}
	}
	return m
}

// prompt returns the conversation's text and its tokens. The tokens that the last
// turn left stay as they are: a text that a model wrote may be encoded as others.
func (c *Chat) prompt(ctx context.Context) (string, []int32, error) {
	if err := c.checkSpecial(); err != nil {
		return "", nil, err
	}
	in := c.in
	in.Messages, in.Generate = c.messages, true
	text, err := c.t.Render(ctx, in)
	if err != nil {
		return "", nil, err
	}
	parse := tokenizer.EncodeOptions{ParseSpecial: true}
	if rest, ok := strings.CutPrefix(text, c.text); ok && c.ids != nil {
		ids, err := c.tok.Encode(rest, parse)
		if err != nil {
			return "", nil, err
		}
		if len(ids) > 0 && c.tok.Special(ids[0]) { // nothing joins across it
			return text, append(slices.Clone(c.ids), ids...), nil
		}
	}
	ids, err := c.tok.Encode(text, parse)
	return text, ids, err
}

// remember keeps what a turn has left in the context, if its tokens are its text.
func (c *Chat) remember(text string, ids []int32, a *answer) {
	c.text, c.ids = "", nil
	said := a.ids
	if a.stop && (c.s.s.IsStop(said[len(said)-1]) || slices.Contains(c.ends, said[len(said)-1])) {
		said = said[:len(said)-1]
	}
	dec := c.tok.NewContinuation()
	var b strings.Builder
	for _, id := range said {
		t, err := dec.Next(id)
		if err != nil || c.tok.Special(id) {
			return
		}
		b.WriteString(t)
	}
	b.WriteString(dec.Flush())
	if b.String() == a.text.String() {
		c.text, c.ids = text+b.String(), append(slices.Clone(ids), said...)
	}
}

// checkSpecial looks for special tokens' names in the texts of messages that are new. The
// assistant's own are not looked at: an answer that spells one would end the chat.
func (c *Chat) checkSpecial() error {
	if c.o.AllowSpecial {
		return nil
	}
	for i := c.checked; i < len(c.messages); i++ {
		m := &c.messages[i]
		texts := []string{m.Role, m.Content, m.Reasoning, m.Name, m.ToolCallID}
		for _, call := range m.ToolCalls {
			texts = append(texts, call.ID, call.Name, string(call.Arguments))
		}
		for _, text := range texts {
			ids, err := c.tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
			if err != nil {
				return err
			}
			for _, id := range ids {
				if c.tok.Special(id) {
					name, _ := c.tok.Token(id)
					return &SpecialTextError{i, name}
				}
			}
		}
	}
	c.checked = len(c.messages)
	return nil
}
