package pianola_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"

	"github.com/pianola-engine/pianola"
)

// Errors are values to test for with errors.Is, or types to find with errors.As.
func Example_errors() {
	explain := func(err error) string {
		var device *pianola.DeviceError
		var budget *pianola.BudgetError
		var limit *pianola.LimitError
		var roll *pianola.RollError
		var sampling *pianola.SamplingError
		var token *pianola.TokenError
		var tokenizer *pianola.TokenizerSizeError
		var tap *pianola.TapError
		switch {
		case err == nil:
			return "no error"
		case errors.Is(err, pianola.ErrContextFull):
			return "the context is full: start a new session, or set SessionOptions.Rollover"
		case errors.Is(err, pianola.ErrEmptyPrompt), errors.Is(err, pianola.ErrNothingPending):
			return "give a prompt"
		case errors.Is(err, pianola.ErrBusy):
			return "wait for the other call, or use a second session"
		case errors.Is(err, pianola.ErrClosed):
			return "closed"
		case errors.Is(err, pianola.ErrNoLogitsProgram), errors.Is(err, pianola.ErrNoHiddenProgram),
			errors.Is(err, pianola.ErrNoLogProbs), errors.Is(err, pianola.ErrNoSampler), errors.Is(err, pianola.ErrNoVerify):
			return "set an option of TableOptions"
		case errors.Is(err, pianola.ErrSpeculateSampled), errors.Is(err, pianola.ErrStopString):
			return "change GenerateOptions"
		case errors.Is(err, pianola.ErrNoTokenizer), errors.Is(err, pianola.ErrNoChatTemplate):
			return "the model's files lack a part"
		case errors.Is(err, pianola.ErrNoPlan):
			return "use another device"
		case errors.Is(err, pianola.ErrNotSnapshot), errors.Is(err, pianola.ErrSnapshotVersion), errors.Is(err, pianola.ErrSnapshotModel),
			errors.Is(err, pianola.ErrSnapshotTable), errors.Is(err, pianola.ErrSnapshotDamaged):
			return "prefill the context again"
		case errors.As(err, &device):
			return "device " + string(device.Device)
		case errors.As(err, &budget):
			return fmt.Sprintf("%d sessions need %d of %d bytes: reduce the context to %d", budget.Sessions, budget.Need, budget.Have, budget.Longest)
		case errors.As(err, &limit):
			return fmt.Sprintf("%s: %d of %d bytes", limit.Kind, limit.Need, limit.Limit)
		case errors.As(err, &roll):
			return "compile the roll again without the option " + roll.Option
		case errors.As(err, &sampling):
			return fmt.Sprintf("%s %v %s", sampling.Field, sampling.Value, sampling.What)
		case errors.As(err, &token):
			return fmt.Sprintf("token %d of the prompt: %d is not below %d", token.Index, token.ID, token.Vocab)
		case errors.As(err, &tokenizer):
			return fmt.Sprintf("%d tokens for %d rows", tokenizer.Tokens, tokenizer.Rows)
		case errors.As(err, &tap):
			return "change the pattern " + tap.Pattern
		}
		return "other"
	}
	ctx := context.Background()
	_, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU, Mode: pianola.ModeRecord})
	fmt.Println(explain(err))
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	_, _, err = s.Chain(ctx, 1)
	fmt.Println(explain(err))
	_, _, err = s.Prompt(ctx, []int32{-1})
	fmt.Println(explain(err))
	fmt.Println(explain(s.SetSampling(pianola.Sampling{Temperature: -1})))
	_, err = s.Embed(ctx, []string{"x"}, pianola.EmbedOptions{})
	fmt.Println(explain(err))
	// Output:
	// device cpu
	// give a prompt
	// token 0 of the prompt: -1 is not below 4096
	// temperature -1 is not in 0..100
	// set an option of TableOptions
}

// A chat with a tool. The example supplies a template, because the test model has none.
func ExampleChatTool() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	templates, err := m.ChatTemplates()
	fmt.Println(len(templates), "templates", err)
	o := pianola.ChatOptions{
		Source: "{% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}{{ m.content }}\n{% endfor %}",
		Tools:  []pianola.ChatTool{{Name: "now", Description: "the time", Parameters: json.RawMessage(`{"type": "object"}`)}},
	}
	c, err := s.NewChat(o, pianola.ChatMessage{Role: "system", Content: "package main"})
	if err != nil {
		log.Fatal(err)
	}
	send := func(role, text string) (err error) {
		for _, err = range c.Send(ctx, pianola.GenerateOptions{MaxTokens: 4}, pianola.ChatMessage{Role: role, Content: text}) {
		}
		return err
	}
	if err := send("user", "func main() {"); err != nil {
		log.Fatal(err)
	}
	// The program may parse a call itself.
	c.Amend(pianola.ChatMessage{Role: "assistant", ToolCalls: []pianola.ChatToolCall{{ID: "1", Name: "now", Arguments: json.RawMessage("{}")}}})
	fmt.Println(c.Messages()[2].ToolCalls[0].Name)

	var refused *pianola.ChatTemplateError
	if errors.As(send("robot", "x"), &refused) {
		fmt.Println(refused.Raised, "in line", refused.Line)
	}
	var special *pianola.SpecialTextError
	if errors.As(send("user", "<|end_of_text|>"), &special) {
		fmt.Println(special.Token, "in message", special.Message)
	}
	c.Reset()
	fmt.Println(len(c.Messages()))
	// Output:
	// 0 templates <nil>
	// now
	// no robots in line 1
	// <|end_of_text|> in message 3
	// 1
}
