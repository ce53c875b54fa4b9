//go:build cgo

package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/cgo"
	"sync"

	"github.com/pianola-engine/pianola"
)

// errHandle reports a handle that is 0, closed, or not one of this library.
var errHandle = errors.New("invalid handle")

// lookup returns the value of a handle.
func lookup[T any](id uint64) (v T, err error) {
	defer func() {
		if recover() != nil { // Value panics if the handle is not valid
			err = invalid{fmt.Errorf("handle %d: %w", id, errHandle)}
		}
	}()
	v, ok := cgo.Handle(id).Value().(T)
	if !ok {
		return v, invalid{fmt.Errorf("handle %d: %w", id, errHandle)}
	}
	return v, nil
}

// take returns the value of a handle and makes the handle invalid. Of several calls with the same
// handle, one succeeds.
func take[T any](id uint64) (v T, err error) {
	if v, err = lookup[T](id); err != nil {
		return v, err
	}
	defer func() {
		if recover() != nil { // another call was faster
			err = invalid{fmt.Errorf("handle %d: %w", id, errHandle)}
		}
	}()
	cgo.Handle(id).Delete()
	return v, nil
}

// invalid is the error of an invalid argument.
type invalid struct{ error }

func (e invalid) Unwrap() error { return e.error }

// errCancelled is the cause of a context that pianola_cancel has ended.
var errCancelled = errors.New("cancelled")

// session is a session as C sees it.
type session struct {
	*pianola.Session

	mu     sync.Mutex
	cancel context.CancelCauseFunc // of the call in progress, or nil

	// Only the call in progress uses these fields.
	chat     *pianola.Chat // set by the first turn
	template string        // Jinja source; "" selects the model's template
}

// begin starts a call on the session. It fails if one is in progress.
func (s *session) begin() (context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		return nil, pianola.ErrBusy
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	s.cancel = cancel
	return ctx, nil
}

func (s *session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel(nil)
	s.cancel = nil
}

// interrupt cancels the call in progress, if there is one.
func (s *session) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel(errCancelled)
	}
}

// generate returns the tokens that continue the context and a prompt.
func (s *session) generate(ctx context.Context, prompt string, o pianola.GenerateOptions) (iter.Seq2[pianola.Token, error], error) {
	return s.Generate(ctx, prompt, o), nil
}

// answer returns the tokens of the next turn of the session's conversation.
func (s *session) answer(ctx context.Context, message string, o pianola.GenerateOptions) (iter.Seq2[pianola.Token, error], error) {
	if s.chat == nil {
		c, err := s.NewChat(pianola.ChatOptions{Source: s.template})
		if err != nil {
			return nil, err
		}
		s.chat = c
	}
	return s.chat.Send(ctx, o, pianola.ChatMessage{Role: "user", Content: message}), nil
}

// setTemplate ends the conversation, and checks the template of the next ones.
func (s *session) setTemplate(source string) error {
	if _, err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	c, err := s.NewChat(pianola.ChatOptions{Source: source})
	if err != nil {
		return err
	}
	s.chat, s.template = c, source
	return nil
}

// forget empties the context and the conversation.
func (s *session) forget() error {
	if _, err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	s.chat = nil
	return s.Reset()
}
