package pianola

import (
	"context"
	"strings"
	"sync"
)

// Generation is what BatchGenerate generates after a prompt.
type Generation struct {
	Text   string
	Tokens []Token
	// Err is the reason for which the generation is not complete, or nil; the errors are those of
	// Session.Generate and NewSession.
	Err error
}

// BatchGenerate generates after each prompt, in a session of its own, and returns the generations in
// the order of the prompts. o applies to all of them. With Options.Parallel the generations run
// together; otherwise they run one after another. An error of one prompt does not end the others.
func (m *Model) BatchGenerate(ctx context.Context, prompts []string, o GenerateOptions) []Generation {
	all := make([]Generation, len(prompts))
	together := make(chan struct{}, max(1, m.together))
	var running sync.WaitGroup
	for i, prompt := range prompts {
		together <- struct{}{}
		running.Go(func() {
			all[i] = m.generation(ctx, prompt, o)
			<-together
		})
	}
	running.Wait()
	return all
}

// generation generates after one prompt.
func (m *Model) generation(ctx context.Context, prompt string, o GenerateOptions) (g Generation) {
	s, err := m.NewSession(SessionOptions{})
	if err != nil {
		return Generation{Err: err}
	}
	defer s.Close()
	var text strings.Builder
	for token, err := range s.Generate(ctx, prompt, o) {
		if err != nil {
			g.Err = err
			break
		}
		g.Tokens = append(g.Tokens, token)
		text.WriteString(token.Text)
	}
	g.Text = text.String()
	return g
}
