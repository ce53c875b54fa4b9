package turn_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/enginetest"
	"github.com/pianola-engine/pianola/internal/serve/turn"
)

func model(t *testing.T, o enginetest.Options) *enginetest.Model {
	t.Helper()
	m, err := enginetest.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func ask(tools ...engine.Tool) *engine.Conversation {
	return &engine.Conversation{Messages: []engine.Message{{Role: "user", Content: "Hi"}}, Tools: tools}
}

// spell writes the events of each choice on a line.
func spell(t *testing.T, m engine.Model, r *turn.Request) ([]string, turn.Usage, error) {
	t.Helper()
	lines := make([]string, r.Choices)
	ended := make([]bool, r.Choices)
	u, err := turn.Run(context.Background(), m, r, func(e turn.Event) error {
		if ended[e.Choice] {
			t.Errorf("choice %d has an event after its end", e.Choice)
		}
		s := ""
		switch {
		case e.Done != nil:
			ended[e.Choice] = true
			s = "=" + e.Done.Reason()
		case e.Delta.Call != nil:
			s = fmt.Sprintf("#%d%s%s", e.Delta.Call.Index, e.Delta.Call.Name, e.Delta.Call.Arguments)
		case e.Delta.Reasoning != "":
			s = "?" + e.Delta.Reasoning
		default:
			s = "!" + e.Delta.Content
		}
		lines[e.Choice] += fmt.Sprintf("%s(%d)", s, len(e.Tokens))
		return nil
	})
	return lines, u, err
}

// TestRun runs requests with and without a conversation, in pieces and whole.
func TestRun(t *testing.T) {
	think := "<think>\nHm so.\n</think>\n\nLet me.\n<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1}}</tool_call>"
	m := model(t, enginetest.Options{Reply: func(in enginetest.Input) enginetest.Script {
		if in.Generation.Sampling.Seed == 8 {
			return enginetest.Script{Steps: enginetest.Words("Other."), Cached: 4}
		}
		if in.Generation.Sampling.Seed == 2 {
			return enginetest.Script{Steps: enginetest.Words("<tool_call>{\"name\":\"now\"}</tool_call> <tool_call>{\"name\":\"now\"}</tool_call> x <tool_call>")}
		}
		if strings.Contains(in.Prompt, "now") {
			return enginetest.Script{Steps: enginetest.Words(think)}
		}
		return enginetest.Script{Steps: enginetest.Words("So it is."), Cached: 3}
	}})
	for _, c := range []struct {
		what  string
		r     turn.Request
		lines []string
		usage turn.Usage
	}{
		{"text", turn.Request{Choices: 2, Generation: engine.Generation{Prompt: engine.Text{String: "Hi"}, Sampling: engine.Sampling{Seed: 7}}},
			[]string{"!So(1)! it(1)! is.(1)=stop(0)", "!Other.(1)=stop(0)"}, turn.Usage{Prompt: 2, Cached: 3, Generated: 6}},
		{"whole text", turn.Request{Whole: true, Choices: 1, Generation: engine.Generation{Prompt: engine.Text{String: "Hi"}, MaxTokens: 2}},
			[]string{"!So it(2)=length(0)"}, turn.Usage{Prompt: 2, Cached: 3, Generated: 2}},
		{"stop", turn.Request{Choices: 1, Generation: engine.Generation{Prompt: engine.Text{String: "Hi"}, Stop: []string{"t i"}}},
			[]string{"!So(1)! i(1)=stop(0)"}, turn.Usage{Prompt: 2, Cached: 3, Generated: 3}},
		{"whole call", turn.Request{Whole: true, Choices: 1, Conversation: ask(engine.Tool{Name: "now"})},
			[]string{"?Hm so.(15)!Let me.(0)#0now{\"a\": 1}(0)=tool_calls(0)"}, turn.Usage{}},
		{"one call", turn.Request{Choices: 1, OneCall: true, Conversation: ask(engine.Tool{Name: "now"}), Generation: engine.Generation{Sampling: engine.Sampling{Seed: 2}}},
			[]string{"#0now(2)#0{}(0)=tool_calls(3)"}, turn.Usage{}},
		{"call cut", turn.Request{Whole: true, Choices: 1, Conversation: ask(engine.Tool{Name: "now"}), Generation: engine.Generation{MaxTokens: 9}},
			[]string{"?Hm so.(9)!Let me.\n(0)=length(0)"}, turn.Usage{}},
	} {
		lines, usage, err := spell(t, m, &c.r)
		if err != nil || strings.Join(lines, "\n") != strings.Join(c.lines, "\n") {
			t.Errorf("%s: %v\n%q, want\n%q", c.what, err, lines, c.lines)
		}
		if c.usage.Prompt > 0 && usage != c.usage {
			t.Errorf("%s: %+v, want %+v", c.what, usage, c.usage)
		}
	}
}

// TestErrors ends requests by errors of a choice, of the caller, and of the context.
func TestErrors(t *testing.T) {
	failed := errors.New("failed")
	never := make(chan struct{})
	ended := make(chan error, 8)
	m := model(t, enginetest.Options{
		Ended: func(err error) { ended <- err },
		Reply: func(in enginetest.Input) enginetest.Script {
			steps := enginetest.Words("So it is.")
			if in.Generation.Sampling.Seed == 1 {
				steps = append(steps, enginetest.Step{Err: failed})
			} else {
				steps = append(steps, enginetest.Step{Wait: never})
			}
			return enginetest.Script{Steps: steps}
		},
	})
	ctx, cancel := context.WithCancelCause(context.Background())
	gone := errors.New("gone")
	for _, c := range []struct {
		what    string
		choices int
		emit    func(turn.Event) error
		want    error
	}{
		{"a choice", 2, func(turn.Event) error { return nil }, failed},
		{"the caller", 1, func(turn.Event) error { return gone }, gone},
		{"the context", 1, func(turn.Event) error { cancel(engine.ErrDeadline); return nil }, engine.ErrDeadline},
	} {
		u, err := turn.Run(ctx, m, &turn.Request{Choices: c.choices, Generation: engine.Generation{Prompt: engine.Text{String: "Hi"}}}, c.emit)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
		if u.Prompt != 2 || u.Generated == 0 {
			t.Errorf("%s: %+v", c.what, u)
		}
		for range c.choices {
			<-ended
		}
	}
}

// TestPanic checks that a panic of a model reaches the caller's goroutine, and ends the other choices.
func TestPanic(t *testing.T) {
	never := make(chan struct{})
	m := model(t, enginetest.Options{Reply: func(in enginetest.Input) enginetest.Script {
		if in.Generation.Sampling.Seed == 1 {
			panic("of the model")
		}
		return enginetest.Script{Steps: []enginetest.Step{{Wait: never}}}
	}})
	defer func() {
		if p := recover(); p != "of the model" {
			t.Errorf("recovered %v", p)
		}
	}()
	_, err := turn.Run(context.Background(), m, &turn.Request{Choices: 2, Generation: engine.Generation{Prompt: engine.Text{String: "Hi"}}}, func(turn.Event) error { return nil })
	t.Errorf("no panic: %v", err)
}
