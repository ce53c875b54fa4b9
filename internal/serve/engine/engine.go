// Package engine is the border between the service and the models that generate text. The service
// knows models by the interface Model alone, so that its tests can use scripted models.
//
// The package knows neither HTTP nor the library behind a model.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Model is a loaded model. Its methods may be called concurrently, except Close, which comes last.
type Model interface {
	Info() Info

	// Encode returns the tokens of a text.
	Encode(text string, o EncodeOptions) ([]int32, error)
	// Piece returns the bytes that a token stands for, and the name of a special token.
	// An id outside the vocabulary gives nil.
	Piece(id int32) []byte

	// Chat renders a conversation with the model's chat template. An error is a *RequestError for
	// a conversation that the template or the model refuses, or ErrUnsupported.
	Chat(ctx context.Context, c Conversation) (*Prompt, error)

	// Generate generates after a prompt and calls yield with each token, in order and from the
	// calling goroutine, until yield returns false. A slow yield delays no other generation. An
	// error is the cause of ctx, ErrContextFull, ErrDeadline, a *BusyError, a *RequestError, or a
	// failure of the device. The Result is valid after an error too.
	Generate(ctx context.Context, g Generation, yield func(Token) bool) (Result, error)

	// Embed returns one vector for each text, [len(texts)][Info.Width], and the number of tokens
	// of all texts.
	Embed(ctx context.Context, texts []Text, o EmbedOptions) ([][]float32, int, error)

	// Rerank returns a score for each document, higher for a better answer to the query, and the
	// number of tokens of all prompts.
	Rerank(ctx context.Context, query string, documents []string) ([]float64, int, error)

	// Load returns the load of the model's scheduler.
	Load() Load
	Close() error
}

// Info describes a model.
type Info struct {
	Architecture string
	Parameters   int64
	Context      int // positions of a sequence, prompt and answer together
	Vocabulary   int
	Width        int // elements of an embedding
	Parallel     int // generations that run together
	// PagePositions is the number of positions of a KV page.
	PagePositions int
	MaxLogProbs   int // largest value of Sampling.LogProbs; 0 if the model gives none

	Chat    bool // has a chat template
	Tools   bool // the template renders tools, and their calls are recognised
	Embeds  bool
	Reranks bool
}

// EncodeOptions select how a text becomes tokens.
type EncodeOptions struct {
	AddSpecial   bool // add the tokens that the model expects around a text, such as BOS
	ParseSpecial bool // read the names of special tokens as these tokens
}

// Text is a text or its tokens.
type Text struct {
	String string
	IDs    []int32 // if not nil, used in place of String
}

// Conversation is the input of a chat template.
type Conversation struct {
	Messages []Message
	Tools    []Tool
	// Continue lets the model continue the last message, which is the assistant's, instead of
	// beginning a new one.
	Continue bool
	// Vars are additional variables of the template, such as "enable_thinking".
	Vars map[string]any
}

// Message is a message of a conversation. Names of special tokens in its texts are plain text.
type Message struct {
	Role       string // "system", "user", "assistant" or "tool"
	Content    string
	Reasoning  string
	Name       string
	ToolCalls  []ToolCall
	ToolCallID string
}

// Tool is a function that the model may call.
type Tool struct {
	Name        string
	Description string
	Parameters  json.RawMessage // a JSON schema
}

// ToolCall is a call of a tool.
type ToolCall struct {
	ID        string // "" if the model does not number its calls
	Name      string
	Arguments string // JSON; while a call streams, the part so far
}

// Prompt is a rendered conversation.
type Prompt struct {
	Text string  // for logs of nobody: what the tokens stand for, special tokens by name
	IDs  []int32 // never empty
	// Stop are the texts, besides the model's stop tokens, that end the assistant's turn.
	Stop []string
	// Answer parses one answer while it is generated. Each choice calls it once.
	Answer func() Answer
}

// Answer parses an assistant's answer.
type Answer interface {
	// Add takes the next token, and returns what has become certain.
	Add(Token) []Delta
	// End returns the rest. It is called once, after the last token, also after an error.
	End() []Delta
}

// Delta is a piece of an answer. Exactly one of Reasoning, Content and Call is set.
type Delta struct {
	Reasoning string
	Content   string
	Call      *CallDelta
}

// CallDelta is a piece of a tool call. The first piece of a call has the name.
type CallDelta struct {
	Index     int // of the call in the answer, from 0
	ID, Name  string
	Arguments string // to append
}

// Generation is the input of Generate.
type Generation struct {
	Prompt    Text
	MaxTokens int // 0 means up to the end of the context
	Sampling  Sampling
	Stop      []string
	// IgnoreStops goes on after the model's stop tokens.
	IgnoreStops bool
	Priority    int
	Within      time.Duration // time until the first token must come; 0 means no limit
	CachePrompt *bool         // whether pages are shared with other prompts; nil means yes
	// User separates the prompts of users who must not share pages; "" is shared by all.
	User string
}

// Sampling selects how tokens are chosen. The zero value is greedy.
type Sampling struct {
	Temperature                       float64
	TopK                              int
	TopP, MinP                        float64
	RepeatPenalty                     float64
	PresencePenalty, FrequencyPenalty float64
	LogitBias                         map[int32]float64
	// LogProbs asks for Token.LogProb, and is one more than the number of alternatives in
	// Token.Top. 0 asks for nothing.
	LogProbs int
	Seed     uint64
}

// Token is a generated token.
type Token struct {
	ID   int32
	Text string // the text that becomes complete with this token; it is valid UTF-8 and may be empty
	// Special is the name of a special token, which Text lacks. A stop token has none.
	Special string
	LogProb float32
	Top     []LogProb
}

// LogProb is a token with the natural logarithm of its probability.
type LogProb struct {
	ID      int32
	LogProb float32
}

// Reason is the reason for which a generation ended.
type Reason string

// The reasons.
const (
	Stopped Reason = "stop"   // at a stop token or a stop text
	Length  Reason = "length" // MaxTokens, or the end of the context
	Left    Reason = "left"   // yield returned false
)

// Result is the outcome of a generation.
type Result struct {
	Reason     Reason
	StopText   string // the stop text that ended the generation, or ""
	Prompt     int    // tokens of the prompt
	Cached     int    // those that were found in a cache
	Tokens     int    // generated tokens, the stop token included
	FirstToken time.Duration
	Queue      time.Duration
}

// EmbedOptions select the form of embeddings.
type EmbedOptions struct {
	Normalize bool
}

// Load is the load of a model's scheduler. It has the fields of observe.Load.
type Load struct {
	Running, Waiting              int
	Pages, UsedPages, CachedPages int
	PromptTokens, FoundTokens     int
	DraftedTokens, AcceptedTokens int

	SavedPages, RestoredPages, LostPages, RestoredTokens int
	SpillMemory, SpillFile                               uint64
}

// Errors of a Model.
var (
	ErrContextFull = errors.New("the prompt does not fit in the model's context")
	ErrDeadline    = errors.New("the deadline cannot be met")
	ErrUnsupported = errors.New("the model does not support this request")
	ErrClosed      = errors.New("the model is closed")
)

// UnsupportedError is ErrUnsupported with the reason.
type UnsupportedError struct {
	Why string // such as "it has no chat template"
}

// Error implements error.
func (e *UnsupportedError) Error() string { return ErrUnsupported.Error() + ": " + e.Why }

// Is reports whether target is ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

// BusyError reports that too many requests wait.
type BusyError struct {
	RetryAfter time.Duration
}

func (e *BusyError) Error() string { return "too many requests wait for the model" }

// RequestError reports a request that the model cannot serve, by the client's fault.
type RequestError struct {
	Param string // the field at fault, such as "messages[2].content", or ""
	Why   string
}

func (e *RequestError) Error() string {
	if e.Param == "" {
		return e.Why
	}
	return fmt.Sprintf("%s: %s", e.Param, e.Why)
}
