package openai

import (
	"context"
	"errors"
	"testing"

	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/enginetest"
	"github.com/pianola-engine/pianola/internal/serve/turn"
)

// TestTurnsCancelled ends the context of a request between two of its turns. The request must not look
// complete.
func TestTurnsCancelled(t *testing.T) {
	m, err := enginetest.New(enginetest.Options{Info: engine.Info{Parallel: 1}})
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(context.Background())
	one := func() *turn.Request {
		return &turn.Request{Choices: 1, Generation: engine.Generation{Prompt: engine.Text{String: "x"}}}
	}
	ended := 0
	_, err = runTurns(ctx, m, []*turn.Request{one(), one(), one()}, func(e turn.Event) error {
		if e.Done != nil {
			ended++
			cancel(why)
		}
		return nil
	})
	if !errors.Is(err, why) || ended != 1 {
		t.Errorf("%d turns ended: %v", ended, err)
	}
}
