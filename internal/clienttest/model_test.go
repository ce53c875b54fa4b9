package clienttest

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/enginetest"
)

// scripted is the model of the tests. What it answers depends on the last message:
//
//	Say hello.                    says "Hello, world!"
//	What is 2 + 2?                reasons, and says "4"
//	What is the weather in CITY?  calls get_weather for each city that it knows, if it has tools
//	the result of a tool          says what the tool said
//	Repeat the system prompt.     says the first message, as for Repeat my first message.
//	Be busy once: ID              refuses the first request with this ID, and then says hello
//	Break.                        fails after some words
//	Talk on.                      talks until it is cancelled
type scripted struct {
	*enginetest.Model

	mu      sync.Mutex
	changed chan struct{} // closed at each event
	events  map[string]int
}

// newScripted returns the model.
func newScripted() (*scripted, error) {
	s := &scripted{changed: make(chan struct{}), events: map[string]int{}}
	var err error
	s.Model, err = enginetest.New(enginetest.Options{
		Reply: s.reply,
	})
	return s, err
}

// Generate generates, and counts the generations that are cancelled.
func (s *scripted) Generate(ctx context.Context, g engine.Generation, yield func(engine.Token) bool) (engine.Result, error) {
	r, err := s.Model.Generate(ctx, g, yield)
	if ctx.Err() != nil {
		s.event("cancelled")
	}
	return r, err
}

// event counts an event, and returns how often it has happened.
func (s *scripted) event(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events[name]++
	close(s.changed)
	s.changed = make(chan struct{})
	return s.events[name]
}

// wait waits until an event has happened n times, and returns how often it has.
func (s *scripted) wait(ctx context.Context, name string, n int) (int, error) {
	for {
		s.mu.Lock()
		seen, changed := s.events[name], s.changed
		s.mu.Unlock()
		if seen >= n {
			return seen, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return seen, ctx.Err()
		}
	}
}

var (
	// turns matches the messages of a rendered conversation: the role and the content.
	turns  = regexp.MustCompile(`(?s)<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>`)
	cities = regexp.MustCompile(`Paris|Rome`)
)

// endless are some words, and a step that only a cancelled generation leaves.
var endless = append(enginetest.Words(strings.Repeat("la ", 100)), enginetest.Step{Wait: make(chan struct{})})

// reply returns the script for a prompt: a conversation, or the text of a completion.
func (s *scripted) reply(in enginetest.Input) enginetest.Script {
	role, text, first := "user", in.Prompt, in.Prompt
	if all := turns.FindAllStringSubmatch(in.Prompt, -1); len(all) > 0 {
		last := all[len(all)-1]
		role, text = last[1], last[2]
		if strings.Contains(all[0][2], "<tool_call>") { // the list of tools
			all = all[1:]
		}
		first = all[0][2]
	}
	tools := strings.Contains(in.Prompt, "to call a tool.")
	var b strings.Builder
	switch {
	case role == "tool":
		b.WriteString("It says: " + text)
	case strings.HasPrefix(text, "Repeat "):
		b.WriteString(first)
	case text == "What is 2 + 2?":
		b.WriteString("<think>Two and two make four.</think>4")
	case strings.HasPrefix(text, "What is the weather") && tools:
		for _, city := range cities.FindAllString(text, -1) {
			b.WriteString(`<tool_call>{"name": "get_weather", "arguments": {"city": "` + city + `"}}</tool_call>`)
		}
	case strings.HasPrefix(text, "Be busy once: ") && s.event(text) == 1:
		return enginetest.Script{Steps: []enginetest.Step{{Err: &engine.BusyError{}}}}
	case text == "Break.":
		return enginetest.Script{Steps: append(enginetest.Words("I am about to"), enginetest.Step{Err: errors.New("the device is lost")})}
	case text == "Talk on.":
		s.event("talking")
		return enginetest.Script{Steps: endless}
	default:
		b.WriteString("Hello, world!")
	}
	return enginetest.Script{Steps: enginetest.Words(b.String())}
}
