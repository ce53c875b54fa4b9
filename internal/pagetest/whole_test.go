package pagetest

import (
	"context"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	server "github.com/pianola-engine/pianola/internal/serve"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/enginetest"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
)

// TestWholeService uses the page with the service's own API, and a model behind it that reasons, calls
// a tool, and has characters of several tokens.
func TestWholeService(t *testing.T) {
	const said = "<think>They greet.</think>Hello **there**,"
	steps := append(enginetest.Words(said), enginetest.Step{Text: " gr\xc3"}, enginetest.Step{Text: "\xbc\xc3\x9fe."})
	m, err := enginetest.New(enginetest.Options{Reply: func(enginetest.Input) enginetest.Script { return enginetest.Script{Steps: steps} }})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Options{
		Models: []fleet.Entry{{ID: "org/scripted", Path: "scripted"}},
		Load:   func(context.Context, fleet.Entry) (engine.Model, error) { return m, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, s.Handler(), "/")
	b.await("document.querySelectorAll('#model option').length === 1 && document.querySelectorAll('.model-state').length === 1")
	settings := []chromedp.Action{}
	for id, value := range map[string]string{
		"temperature": "0.5", "top_k": "40", "top_p": "0.9", "min_p": "0.05", "repetition_penalty": "1.1", "presence_penalty": "0.2", "frequency_penalty": "0.3",
		"max_tokens": "100", "seed": "7", "reasoning_effort": "high", "system": "Be kind.",
	} {
		settings = append(settings, chromedp.SetValue("#"+id, value))
	}
	b.do(settings...)
	b.ask("Hello")
	b.ended(1)
	if got := eval[string](b, lastText+" + '|' + document.querySelector('.reasoning-text').textContent + '|' + document.querySelector('.text strong').textContent"); got != "Hello there, grüße.|They greet.|there" {
		t.Errorf("the answer is %q", got)
	}
	if stats := eval[string](b, "document.querySelector('.stats').textContent"); !strings.Contains(stats, "reasoning)") || strings.Contains(stats, "incomplete") {
		t.Errorf("the figures are %s", stats)
	}
	b.do(chromedp.Click(`//button[text()="Tokens"]`))
	tokens := eval[[]string](b, "[...document.querySelectorAll('.tokens [role=option]')].map(e => e.textContent)")
	if text := strings.Join(tokens, "|"); !strings.Contains(text, "Hello|·**there**,") || !strings.Contains(text, "They|·greet.") {
		t.Errorf("the tokens are %s", text)
	}
	b.await("document.querySelector('.model-state dd').textContent === 'ready'")
}
