package pianola

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pianola-engine/pianola/internal/chat"
	"github.com/pianola-engine/pianola/internal/chat/jinja"
	"github.com/pianola-engine/pianola/internal/tokenizer"
	"github.com/pianola-engine/pianola/weights"
)

// ChatMessage is one message of a Chat.
type ChatMessage struct {
	Role    string `json:"role"` // "system", "user", "assistant", "tool", or another role that the template knows
	Content string `json:"content"`
	// Reasoning is the text that the assistant generated before its answer, for templates
	// that render it.
	Reasoning string `json:"reasoning_content,omitempty"`
	// Name is the name of the tool whose result a message of role "tool" holds.
	Name string `json:"name,omitempty"`
	// ToolCalls are the tools that the assistant calls.
	ToolCalls []ChatToolCall `json:"tool_calls,omitempty"`
	// ToolCallID is the ID of the call that a message of role "tool" answers.
	ToolCallID string `json:"tool_call_id,omitempty"`
}

// ChatToolCall is a call of a tool by the assistant.
type ChatToolCall struct {
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"` // a JSON object; the order of its keys is kept
}

// ChatTool describes a function that the assistant may call.
type ChatTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"` // a JSON schema; the order of its keys is kept
}

// ErrNoChatTemplate reports that the model has no chat template, or none with the name in
// ChatOptions.Template.
var ErrNoChatTemplate = chat.ErrNoTemplate

// ChatTemplateError reports a chat template that cannot be parsed, that fails on a
// conversation, or that refuses one.
type ChatTemplateError struct {
	Line int // in the template, from 1
	// Raised is the message with which the template refused the conversation by calling
	// raise_exception, such as "roles must alternate", or "" for any other error.
	Raised string
	Err    error
}

// Error implements error.
func (e *ChatTemplateError) Error() string { return fmt.Sprintf("pianola: chat template: %v", e.Err) }

// Unwrap returns the underlying error.
func (e *ChatTemplateError) Unwrap() error { return e.Err }

// templateError returns err as a *ChatTemplateError if a template caused it.
func templateError(err error) error {
	var bad *jinja.Error
	if !errors.As(err, &bad) {
		return err
	}
	e := &ChatTemplateError{Line: bad.Line, Err: err}
	var raised *jinja.RaisedError
	if errors.As(err, &raised) {
		e.Raised = raised.Message
	}
	return e
}

// SpecialTextError reports a message whose text contains the name of a special token. Rendered
// by the template, the name would become the token, so that the text of one message could end
// its turn and begin another one.
type SpecialTextError struct {
	Message int    // index in the conversation
	Token   string // name of the token, such as "<|im_end|>"
}

// Error implements error.
func (e *SpecialTextError) Error() string {
	return fmt.Sprintf("pianola: message %d contains the special token %s as text", e.Message, e.Token)
}

// ChatOptions are the settings of a Chat.
type ChatOptions struct {
	// Template is the name of one of Model.ChatTemplates. "" selects the template for tools
	// if Tools are given and the model has one, and the default template otherwise.
	Template string
	// Source is the text of a Jinja template to use instead of the model's.
	Source string
	// Tools are the functions that the assistant may call.
	Tools []ChatTool
	// Vars are additional variables of the template, such as "enable_thinking". A value is
	// nil, a bool, int, float64, string or json.RawMessage.
	Vars map[string]any
	// AllowSpecial turns the names of special tokens in messages into these tokens, as
	// transformers does. Otherwise Send returns a *SpecialTextError for them.
	AllowSpecial bool
	// Now is the clock of templates that print the date. nil selects the time at which the
	// chat began, so that earlier messages stay the same past midnight.
	Now func() time.Time
}

// Chat is a conversation on a session. The model's chat template renders its messages, and each
// turn prefills only the text that is new.
//
// One goroutine at a time may use a Chat. Other calls may use its session between turns; the
// next turn then prefills what they removed from the context.
type Chat struct {
	s     *Session
	tok   *tokenizer.Tokenizer
	t     *chat.Template
	o     ChatOptions
	in    chat.Input // without messages
	first []ChatMessage

	messages []ChatMessage
	checked  int // the number of messages from the start that need no check for special tokens

	// The text that the last turn left in the context, and its tokens.
	text string
	ids  []int32

	ends    []int32 // tokens that end a turn, in addition to the model's stop tokens
	endText string
}

// NewChat begins a conversation with messages, such as a system message. It computes nothing
// yet. The error is ErrNoTokenizer, ErrNoChatTemplate or a *ChatTemplateError.
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
	c.in = chat.Input{Tools: internalTools(o.Tools), Vars: o.Vars, Now: now()}
	if id, ok := tok.BOS(); ok {
		c.in.BOS, _ = tok.Token(id)
	}
	if id, ok := tok.EOS(); ok {
		c.in.EOS, _ = tok.Token(id)
	}
	c.findEnd()
	return c, nil
}

// ChatTemplates returns the texts of the model's chat templates by name; the default one has the
// name "default". They are read from GGUF metadata, or from chat_template.jinja,
// additional_chat_templates, chat_template.json and tokenizer_config.json beside the weights.
func (m *Model) ChatTemplates() (map[string]string, error) { return chatTemplates(m.h.dir) }

func (m *Model) chatTemplate(o ChatOptions) (*chat.Template, error) {
	if o.Source != "" {
		t, err := chat.Parse(o.Source)
		return t, templateError(err)
	}
	sources, err := chatTemplates(m.h.dir)
	if err != nil {
		return nil, err
	}
	t, err := sources.Parse(o.Template, len(o.Tools) > 0)
	return t, templateError(err)
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

// findEnd finds the tokens or the text with which the template ends the assistant's turn.
func (c *Chat) findEnd() {
	special := func(text string) (name string, ok bool) {
		ids, err := c.tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
		if err != nil || len(ids) == 0 || !c.tok.Special(ids[0]) {
			return "", false
		}
		return c.tok.Token(ids[0])
	}
	for _, end := range c.t.TurnEnds(context.Background(), c.in, special) {
		if id, ok := c.tok.ID(end); ok && c.tok.Special(id) {
			c.ends = append(c.ends, id)
		} else {
			c.endText = end
		}
	}
}

// Messages returns the conversation so far. The slice must not be changed.
func (c *Chat) Messages() []ChatMessage { return c.messages }

// Amend replaces the last message, for callers that parse the assistant's text themselves. The
// new text is not checked for special tokens.
func (c *Chat) Amend(m ChatMessage) {
	if n := len(c.messages); n > 0 {
		c.messages[n-1] = m
	}
}

// Reset removes all messages except those given to NewChat.
func (c *Chat) Reset() {
	c.messages, c.text, c.ids = slices.Clone(c.first), "", nil
	c.checked = min(c.checked, len(c.first))
}

// Send appends messages to the conversation and streams the tokens of the assistant's answer.
// It uses the fields MaxTokens, Sampling, Speculate and Stop of o.
//
// When the sequence ends, the answer is the last of Messages, incomplete if the loop was left
// early. Send parses it as the models of the Llama 3, Qwen, Mistral, Gemma 3, Phi 4 and gpt-oss
// families write it: Reasoning is the text before the answer, Content the answer, and ToolCalls
// the calls of tools if the chat has Tools. A call without an ID is given one. To answer calls,
// pass messages of role "tool" to the next Send.
//
// An error is the last element of the sequence. It is a *SpecialTextError, a *ChatTemplateError,
// or one of the errors of Generate. An error before the first token leaves the conversation
// unchanged.
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

// cut shortens the conversation to its first n messages.
func (c *Chat) cut(n int) {
	c.messages = c.messages[:n]
	c.checked = min(c.checked, n)
}

// answer is the assistant's answer in a turn.
type answer struct {
	text strings.Builder
	raw  strings.Builder // the text with special tokens by their names
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

// answer returns the parsed answer.
func (c *Chat) answer(a *answer) ChatMessage {
	m := rootMessage(c.t.Answer(a.raw.String(), c.in.Tools))
	for _, id := range a.ids { // a remaining name would become a token again
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

// prompt returns the conversation's text and its tokens. It keeps the tokens that the last turn
// left in the context, because the tokenizer may encode a generated text as other tokens.
func (c *Chat) prompt(ctx context.Context) (string, []int32, error) {
	if err := c.checkSpecial(); err != nil {
		return "", nil, err
	}
	in := c.in
	in.Messages, in.Generate = internalMessages(c.messages), true
	text, err := c.t.Render(ctx, in)
	if err != nil {
		return "", nil, templateError(err)
	}
	parse := tokenizer.EncodeOptions{ParseSpecial: true}
	if rest, ok := strings.CutPrefix(text, c.text); ok && c.ids != nil {
		ids, err := c.tok.Encode(rest, parse)
		if err != nil {
			return "", nil, err
		}
		if len(ids) > 0 && c.tok.Special(ids[0]) { // no token joins the two texts
			return text, append(slices.Clone(c.ids), ids...), nil
		}
	}
	ids, err := c.tok.Encode(text, parse)
	return text, ids, err
}

// remember keeps the text and the tokens that a turn left in the context, if decoding the tokens
// gives the text.
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

// checkSpecial looks for names of special tokens in the texts of new messages. It skips the
// assistant's answers: one that spells such a name would otherwise end the chat.
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

// internalMessages returns messages as package chat takes them.
func internalMessages(messages []ChatMessage) []chat.Message {
	list := make([]chat.Message, len(messages))
	for i, m := range messages {
		list[i] = chat.Message{Role: m.Role, Content: m.Content, Reasoning: m.Reasoning, Name: m.Name, ToolCallID: m.ToolCallID}
		for _, c := range m.ToolCalls {
			list[i].ToolCalls = append(list[i].ToolCalls, chat.ToolCall(c))
		}
	}
	return list
}

// internalTools returns tools as package chat takes them.
func internalTools(tools []ChatTool) []chat.Tool {
	var list []chat.Tool
	for _, t := range tools {
		list = append(list, chat.Tool(t))
	}
	return list
}

// rootMessage returns a message of package chat as a ChatMessage.
func rootMessage(m chat.Message) ChatMessage {
	of := ChatMessage{Role: m.Role, Content: m.Content, Reasoning: m.Reasoning, Name: m.Name, ToolCallID: m.ToolCallID}
	for _, c := range m.ToolCalls {
		of.ToolCalls = append(of.ToolCalls, ChatToolCall(c))
	}
	return of
}
