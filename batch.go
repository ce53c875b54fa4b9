package pianola

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pianola-engine/pianola/internal/cost"
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

// Classify scores each label as the continuation of each prompt, as Session.Classify does, in sessions of
// its own. With Options.Parallel the prompts are scored together. The errors are those of
// Session.Classify and NewSession.
func (m *Model) Classify(ctx context.Context, prompts, labels []string) ([][]LabelScore, error) {
	return each(ctx, m, prompts, func(ctx context.Context, s *Session, i int) ([]LabelScore, error) {
		return s.classify(ctx, i, prompts[i], labels)
	})
}

// Embed returns one vector for each text, as Session.Embed does, in sessions of its own. With
// Options.Parallel the texts are computed together. The errors are those of Session.Embed and
// NewSession.
func (m *Model) Embed(ctx context.Context, texts []string, o EmbedOptions) ([][]float32, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return each(ctx, m, texts, func(ctx context.Context, s *Session, i int) ([]float32, error) {
		return s.embed(ctx, i, texts[i], o)
	})
}

// errOther is the cause for which the calls of a list end when one of them has failed.
var errOther = errors.New("pianola: another call of the list has failed")

// each calls f with a session and the index of each text, as many at a time as run together, and returns the
// results in the order of the texts. An error ends all calls.
func each[T any](ctx context.Context, m *Model, texts []string, f func(context.Context, *Session, int) (T, error)) ([]T, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	all := make([]T, len(texts))
	errs := make([]error, max(1, min(m.together, len(texts)))) // of the goroutines
	var next atomic.Int64
	var running sync.WaitGroup
	for worker := range errs {
		running.Go(func() {
			errs[worker] = m.work(func(s *Session) (err error) {
				for i := int(next.Add(1)) - 1; i < len(texts) && err == nil; i = int(next.Add(1)) - 1 {
					all[i], err = f(ctx, s, i)
				}
				return err
			})
			if errs[worker] != nil {
				cancel(errOther)
			}
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, errOther) {
			return nil, err
		}
	}
	return all, nil
}

// work calls f with a session, which it closes.
func (m *Model) work(f func(s *Session) error) error {
	s, err := m.NewSession(SessionOptions{})
	if err != nil {
		return err
	}
	return errors.Join(f(s), s.Close())
}

// steps returns the predicted times of submissions to a model with Options.Parallel, with which the
// scheduler plans the first ones, or nil if there is no prediction for its table.
func (m *Model) steps(on *target) *cost.Steps {
	if !m.parallel() {
		return nil
	}
	c := *on.chip
	if d, ok := m.dev.(interface{ Threads() int }); ok {
		c.Cores = d.Threads()
	}
	steps, err := cost.StepsOf(m.t, &c)
	if err != nil {
		return nil
	}
	return steps
}
