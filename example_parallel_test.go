package pianola_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"sync"
	"time"

	"github.com/pianola-engine/pianola"
)

// Goroutines that generate at the same time share each reading of the weights. Some calls are not
// supported with Options.Parallel; a service refuses further requests if too many wait.
func Example_parallel() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU, Parallel: 4, Spill: pianola.SpillOptions{Memory: 64 << 20}, Table: pianola.TableOptions{Context: 256, AllLogits: true, Hidden: true}})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	explain := func(err error) string {
		var overload *pianola.OverloadError
		var refused *pianola.ParallelError
		switch {
		case errors.As(err, &overload):
			return fmt.Sprintf("try again later: %d calls wait, at most %d may, for %v so far", overload.Waiting, overload.Limit, overload.Wait)
		case errors.Is(err, pianola.ErrNoPages):
			return "the prompt needs more pages than the model has"
		case errors.Is(err, pianola.ErrDeadline):
			return "the first token cannot come in time"
		case errors.As(err, &refused):
			return "not with Options.Parallel: " + refused.What
		}
		return fmt.Sprint(err)
	}
	texts := make([]string, 3)
	var all sync.WaitGroup
	for i := range texts {
		all.Go(func() {
			s, err := m.NewSession(pianola.SessionOptions{})
			if err != nil {
				log.Fatal(err)
			}
			defer s.Close()
			for token, err := range s.Generate(ctx, "func main() {", pianola.GenerateOptions{MaxTokens: 8}) {
				if err != nil {
					log.Fatal(explain(err))
				}
				texts[i] += token.Text
			}
		})
	}
	all.Wait()
	fmt.Println(texts[0] == texts[1] && texts[1] == texts[2])

	// BatchGenerate does the same for a list of prompts.
	var list []pianola.Generation = m.BatchGenerate(ctx, []string{"func main() {", ""}, pianola.GenerateOptions{MaxTokens: 8})
	fmt.Println(list[0].Text == texts[0], explain(list[1].Err))

	// Lists of prompts can be scored and embedded, too.
	scores, err := m.Classify(ctx, []string{"func main()", "package"}, []string{" {", " main"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(scores[0][0].LogLikelihood > scores[0][1].LogLikelihood, scores[1][1].LogLikelihood > scores[1][0].LogLikelihood)
	vectors, err := m.Embed(ctx, []string{"func main()", "func main()"}, pianola.EmbedOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(vectors[0][0] == vectors[1][0])

	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	fmt.Println(explain(s.Profile(ctx, nil)))

	// A call may have a deadline and a priority. The pages of a pinned prompt stay for later calls.
	var prefix pianola.PrefixCache = pianola.PrefixPinned // or PrefixOn, PrefixOff
	request := pianola.RequestOptions{Within: time.Nanosecond, Priority: 1, Prefix: prefix}
	for _, err := range s.Generate(ctx, "func main() {", pianola.GenerateOptions{Request: request}) {
		fmt.Println(explain(err))
	}
	fmt.Println(s.SetRequest(pianola.RequestOptions{Prefix: pianola.PrefixOff}), pianola.PrefixOn)

	// The programs of the model's batches can be profiled.
	var times []time.Duration
	err = m.ProfileBatch(func(program string, rows int, commands []time.Duration) { times = slices.Clone(commands) })
	if err != nil {
		log.Fatal(err)
	}
	if _, _, err := s.Prompt(ctx, []int32{5, 6, 7}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(times) > 0, m.ProfileBatch(nil))

	var load pianola.Load = m.Load()
	fmt.Println(load.Running, load.Waiting, load.UsedPages <= load.Pages)
	// Output:
	// true
	// true <nil>
	// true true
	// true
	// not with Options.Parallel: profiling a session
	// the first token cannot come in time
	// <nil> on
	// true <nil>
	// 0 0 true
}
