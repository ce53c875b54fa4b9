package e2e_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
)

// errHeld reports that a call succeeded although another call was in progress.
var errHeld = errors.New("the call was not refused")

// sessionCalls returns, by method name, a function that calls this method of a session and
// returns its error. The function calls gate at a point where the method can be held while it
// is in progress: in a loop or in a writer. Methods without such a point are held by a tap.
func sessionCalls(t *testing.T, m *pianola.Model) map[string]func(s *pianola.Session, gate func()) error {
	ctx, ids := t.Context(), []int32{5, 6, 7}
	vocab := m.Config().Vocab
	times := func(program string) []time.Duration {
		p, _, ok := m.Table().Program(program)
		if !ok {
			t.Fatalf("the table has no program %s", program)
		}
		return make([]time.Duration, p.Count)
	}
	generate := func(seq func(yield func(pianola.Token, error) bool), gate func()) error {
		for _, err := range seq {
			if err != nil {
				return err
			}
			gate()
		}
		return nil
	}
	o := pianola.GenerateOptions{MaxTokens: 2}
	return map[string]func(s *pianola.Session, gate func()) error{
		"Generate":    func(s *pianola.Session, gate func()) error { return generate(s.Generate(ctx, "a", o), gate) },
		"GenerateIDs": func(s *pianola.Session, gate func()) error { return generate(s.GenerateIDs(ctx, ids, o), gate) },
		"Logits": func(s *pianola.Session, gate func()) error {
			for _, err := range s.Logits(ctx, ids, 0) {
				if err != nil {
					return err
				}
				gate()
			}
			return nil
		},
		"Hidden": func(s *pianola.Session, gate func()) error {
			for _, err := range s.Hidden(ctx, ids, 0) {
				if err != nil {
					return err
				}
				gate()
			}
			return nil
		},
		"Snapshot": func(s *pianola.Session, gate func()) error { return s.Snapshot(writerFunc(gate)) },
		"Classify": func(s *pianola.Session, _ func()) error {
			_, err := s.Classify(ctx, []string{"a"}, []string{" b"})
			return err
		},
		"Embed": func(s *pianola.Session, _ func()) error {
			_, err := s.Embed(ctx, []string{"a b"}, pianola.EmbedOptions{})
			return err
		},
		"Prompt":  func(s *pianola.Session, _ func()) error { _, _, err := s.Prompt(ctx, ids); return err },
		"Chain":   func(s *pianola.Session, _ func()) error { _, _, err := s.Chain(ctx, 2); return err },
		"Profile": func(s *pianola.Session, _ func()) error { return s.Profile(ctx, times("decode")) },
		"ProfilePrompt": func(s *pianola.Session, _ func()) error {
			return s.ProfilePrompt(ctx, ids, times("prefill"), times("head"))
		},
		"Dry":         func(s *pianola.Session, _ func()) error { _, err := s.Dry(2); return err },
		"Reset":       func(s *pianola.Session, _ func()) error { return s.Reset() },
		"Rewind":      func(s *pianola.Session, _ func()) error { return s.Rewind(1) },
		"NextLogits":  func(s *pianola.Session, _ func()) error { return s.NextLogits(make([]float32, vocab)) },
		"SetNext":     func(s *pianola.Session, _ func()) error { return s.SetNext(5) },
		"SetSampling": func(s *pianola.Session, _ func()) error { return s.SetSampling(pianola.Sampling{}) },
		"SetTaps":     func(s *pianola.Session, _ func()) error { return s.SetTaps(nil) },
		"SetRequest":  func(s *pianola.Session, _ func()) error { return s.SetRequest(pianola.RequestOptions{}) },
		"Keys":        func(s *pianola.Session, _ func()) error { _, err := s.Keys(0); return err },
		"Values":      func(s *pianola.Session, _ func()) error { _, err := s.Values(7); return err },
		"SnapshotFile": func(s *pianola.Session, _ func()) error {
			return s.SnapshotFile(t.TempDir() + "/snapshot")
		},
		"Fork": func(s *pianola.Session, _ func()) error {
			f, err := s.Fork()
			if err != nil {
				return err
			}
			return f.Close()
		},
		"NewChat": func(s *pianola.Session, gate func()) error {
			c, err := s.NewChat(pianola.ChatOptions{Source: "{{ messages[0].content }}"})
			if err != nil {
				return err
			}
			return generate(c.Send(ctx, o, pianola.ChatMessage{Role: "user", Content: "a"}), gate)
		},
		"Close": func(s *pianola.Session, _ func()) error { return s.Close() },
		"Len": func(s *pianola.Session, _ func()) error {
			if n := s.Len(); n < 0 || n > s.Context() {
				return errHeld
			}
			return nil
		},
		"Context":   func(s *pianola.Session, _ func()) error { _ = s.Context(); return nil },
		"ChainTime": func(s *pianola.Session, _ func()) error { _ = s.ChainTime(); return nil },
		"Stats":     func(s *pianola.Session, _ func()) error { _ = s.Stats(); return nil },
		"Counters":  func(s *pianola.Session, _ func()) error { _ = s.Counters(); return nil },
		"MetalSpan": func(s *pianola.Session, _ func()) error {
			if _, err := s.MetalSpan("logits"); !errors.As(err, new(*pianola.DeviceError)) {
				return errHeld // a model on the CPU has no Metal span
			}
			return nil
		},
	}
}

// anyTime lists the methods that may be called while another call is in progress.
var anyTime = []string{"Len", "Context", "ChainTime", "Stats", "Counters", "MetalSpan"}

type writerFunc func()

func (f writerFunc) Write(p []byte) (int, error) { f(); return len(p), nil }

// TestBusyPairs calls every method of a session while every other method is held in its loop,
// its writer or a tap. All methods except those in anyTime must return ErrBusy, and the call
// in progress must complete normally. Methods too short to be held are called concurrently
// many times.
func TestBusyPairs(t *testing.T) {
	m := open(t, gopher, pianola.Options{Device: pianola.DeviceCPU, Threads: 1, Table: pianola.TableOptions{Context: 64, AllLogits: true, Hidden: true}})
	calls := sessionCalls(t, m)
	methods := reflect.TypeFor[*pianola.Session]()
	for i := range methods.NumMethod() {
		if name := methods.Method(i).Name; calls[name] == nil {
			t.Fatalf("sessionCalls has no entry for method %s", name)
		}
	}
	if len(calls) != methods.NumMethod() {
		t.Fatalf("sessionCalls has %d entries for %d methods", len(calls), methods.NumMethod())
	}
	for outer, call := range calls {
		s := begun(t, m)
		arrived, leave := make(chan struct{}), make(chan struct{})
		var once sync.Once
		gate := func() { once.Do(func() { close(arrived); <-leave }) }
		if outer != "SetTaps" {
			taps := &pianola.Taps{Activations: []string{"layer.0.*"}, Show: func(pianola.Activation) error { gate(); return nil }}
			if slices.Contains([]string{"Dry", "Snapshot"}, outer) {
				taps = nil
			}
			if err := s.SetTaps(taps); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error, 1)
		go func() { done <- call(s, gate) }()
		select {
		case <-arrived:
		case err := <-done: // too short to be held: call it concurrently
			if err != nil && outer != "Dry" {
				t.Errorf("%s alone: %v", outer, err)
			}
			beside(t, m, calls, outer)
			continue
		}
		for inner, other := range calls {
			if inner == "Close" {
				continue // Close waits for the call in progress
			}
			err := other(s, func() {})
			if want := slices.Contains(anyTime, inner); want && err != nil || !want && !errors.Is(err, pianola.ErrBusy) {
				t.Errorf("%s during %s: %v", inner, outer, err)
			}
		}
		close(leave)
		if err := <-done; err != nil {
			t.Errorf("%s, after other calls were refused: %v", outer, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// begun returns a session with a nonempty context and a pending token.
func begun(t *testing.T, m *pianola.Model) *pianola.Session {
	t.Helper()
	s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true, Chain: 1})
	if _, _, err := s.Prompt(context.Background(), []int32{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	return s
}

// beside calls a method concurrently with every other one. Each call must succeed or fail with
// an expected error: ErrBusy, ErrClosed if the other is Close, or a missing prompt if the
// other is Reset.
func beside(t *testing.T, m *pianola.Model, calls map[string]func(s *pianola.Session, gate func()) error, outer string) {
	for inner := range calls {
		s := begun(t, m)
		var running sync.WaitGroup
		for _, name := range []string{outer, inner} {
			running.Go(func() {
				for range 3 {
					err := calls[name](s, func() {})
					switch {
					case err == nil, errors.Is(err, pianola.ErrBusy), errors.Is(err, pianola.ErrClosed), errors.Is(err, pianola.ErrNothingPending), errors.Is(err, pianola.ErrContextFull):
					case strings.Contains(err.Error(), "cannot rewind"):
					default:
						t.Errorf("%s concurrently with %s: %s: %v", outer, inner, name, err)
					}
				}
			})
		}
		running.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
