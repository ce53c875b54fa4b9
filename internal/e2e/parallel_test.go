package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// TestParallel generates in many sessions of a model with Options.Parallel at once. Some loops end
// early, some calls are cancelled, some are slow. Each gets the tokens that a model for batching gives.
func TestParallel(t *testing.T) {
	for _, name := range []string{"tiny/llama", "tiny/gemma3_text", "variants/lfm2_moe", "variants/qwen3_5_moe_one"} {
		t.Run(name, func(t *testing.T) {
			table := pianola.TableOptions{Context: 256, Batching: true, LogProbs: true}
			alone := open(t, "testdata/"+name, pianola.Options{Device: pianola.DeviceCPU, Threads: teamThreads, Table: table})
			table.Pages = 12
			m := open(t, "testdata/"+name, pianola.Options{Device: pianola.DeviceCPU, Threads: teamThreads, Parallel: 5, Table: table})
			checkParallel(t, alone, m, 30, briefPrompt)
		})
	}
}

// TestParallelDeep generates behind prompts of up to 900 tokens in few pages.
func TestParallelDeep(t *testing.T) {
	table := pianola.TableOptions{Context: 1024, Batching: true, LogProbs: true}
	alone := open(t, "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU, Threads: teamThreads, Table: table})
	table.Pages = 30
	m := open(t, "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU, Threads: teamThreads, Parallel: 4, Table: table})
	checkParallel(t, alone, m, 8, 900)
}

// briefPrompt is the length of the longest prompts of checkParallel in most tests.
const briefPrompt = 120

// checkParallel generates n times at once on a model with Options.Parallel and compares the tokens with those of
// a model for batching. A prompt has at most longest tokens, and both models have room for 40 more.
func checkParallel(t *testing.T, alone, m *pianola.Model, n, longest int) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	var all sync.WaitGroup
	for i := range n {
		ids := make([]int32, 1+r.IntN(longest))
		for j := range ids {
			if ids[j] = int32(j + 1); i%2 == 0 || j > 70 {
				ids[j] = 1 + r.Int32N(400)
			}
		}
		o := pianola.GenerateOptions{MaxTokens: 1 + r.IntN(40)}
		if i%3 == 0 {
			o.Sampling = pianola.Sampling{Temperature: 0.9, Seed: 5, LogProbs: i % 2}
		}
		want := parallelTokens(t, t.Context(), alone, ids, o, -1, 0)
		stop, slow := -1, time.Duration(0)
		if i%4 == 0 {
			stop = len(want) / 2
		}
		if i%5 == 0 {
			slow = time.Millisecond
		}
		all.Go(func() {
			got := parallelTokens(t, t.Context(), m, ids, o, stop, slow)
			if stop >= 0 && len(want) > stop {
				want = want[:stop+1]
			}
			if !slices.Equal(got, want) {
				t.Errorf("generation %d: %v, want %v", i, got, want)
			}
		})
	}
	all.Wait()
	if l := m.Load(); l.Running+l.Waiting+l.UsedPages > 0 {
		t.Errorf("after %d generations: %+v", n, l)
	}
}

// parallelTokens returns the tokens and log-probabilities of a generation, as text. The loop ends after
// the token with index stop, if that is not negative, and waits after each token.
func parallelTokens(t *testing.T, ctx context.Context, m *pianola.Model, ids []int32, o pianola.GenerateOptions, stop int, slow time.Duration) (out []string) {
	s, err := m.NewSession(pianola.SessionOptions{ChainTime: 5 * time.Millisecond})
	if err != nil {
		t.Error(err)
		return nil
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for tok, err := range s.GenerateIDs(ctx, ids, o) {
		if err != nil {
			t.Error(err)
			break
		}
		out = append(out, tokenText(tok))
		if len(out) == stop+1 {
			break
		}
		time.Sleep(slow)
	}
	if s.Len() != len(ids)+len(out)-1 {
		t.Errorf("the context has %d positions after %d and %d tokens", s.Len(), len(ids), len(out))
	}
	return out
}

// tokenText returns a token and its log-probability as text.
func tokenText(tok pianola.Token) string { return fmt.Sprint(tok.ID, tok.LogProb) }

// cancelReading cancels a generation while its caller handles the third token and others are decoded ahead.
func cancelReading(t *testing.T, s *pianola.Session) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	cause := errors.New("enough")
	n, err := 0, error(nil)
	for _, err = range s.GenerateIDs(ctx, []int32{1, 2, 3}, pianola.GenerateOptions{MaxTokens: 400}) {
		if n++; n == 3 {
			time.Sleep(20 * time.Millisecond)
			cancel(cause)
		}
	}
	if !errors.Is(err, cause) || n != 4 || s.Len() != 5 { // the last token has no position yet
		t.Errorf("a cancelled generation: %v after %d tokens, %d positions", err, n, s.Len())
	}
}

// TestCancelReading cancels a generation of a session that decodes in chains of its own.
func TestCancelReading(t *testing.T) {
	m := open(t, "testdata/tiny/llama", pianola.Options{Device: pianola.DeviceCPU, Table: pianola.TableOptions{Context: 512}})
	s, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true, Chain: 64})
	if err != nil {
		t.Fatal(err)
	}
	cancelReading(t, s)
}

// TestParallelEnds checks the errors of a model with Options.Parallel: of a cancelled generation, of
// Close during a generation, and of options that it does not support.
func TestParallelEnds(t *testing.T) {
	m := open(t, "testdata/tiny/llama", pianola.Options{Device: pianola.DeviceCPU, Parallel: 2, Table: pianola.TableOptions{Context: 512}})
	s, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true})
	if err != nil {
		t.Fatal(err)
	}
	cancelReading(t, s)
	before := s.Len()
	if _, _, err := s.Prompt(t.Context(), []int32{5, 6}); err != nil || s.Len() != before+3 {
		t.Errorf("a prompt after a cancelled generation: %d positions after %d, %v", s.Len(), before, err)
	}
	if c := s.Counters(); c.Request == 0 || c.BatchRows == 0 || c.Submissions == 0 {
		t.Errorf("%+v", c)
	}
	n := 0
	for _, err = range s.GenerateIDs(t.Context(), []int32{1, 2, 3}, pianola.GenerateOptions{}) {
		if n++; n == 2 {
			go func() { _ = s.Close() }()
			time.Sleep(5 * time.Millisecond)
		}
	}
	if !errors.Is(err, pianola.ErrClosed) && !errors.Is(err, pianola.ErrContextFull) {
		t.Errorf("a generation whose session is closed: %v after %d tokens", err, n)
	}
	for what, o := range map[string]pianola.Options{
		"RealTime": {RealTime: true}, "drafts": {Table: pianola.TableOptions{Draft: 4}}, "Sequences": {Table: pianola.TableOptions{Sequences: 7}},
	} {
		o.Device, o.Parallel = pianola.DeviceCPU, 2
		if _, err := pianola.Open(t.Context(), testmodels.Path(t, "testdata/tiny/llama"), o); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestParallelLoad checks Model.Load and the errors of calls that a model with Options.Parallel cannot
// serve.
func TestParallelLoad(t *testing.T) {
	m := open(t, "testdata/tiny/llama", pianola.Options{Device: pianola.DeviceCPU, Parallel: 1, Queue: 1, Table: pianola.TableOptions{Context: 512, Pages: 5}})
	var over *pianola.OverloadError
	n := 0
	for range 20 { // a busy system may run all 12 calls one after another
		var all sync.WaitGroup
		errs := make(chan error, 12)
		for range 12 {
			all.Go(func() {
				s, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true})
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Close()
				for _, err := range s.GenerateIDs(t.Context(), []int32{1, 2, 3}, pianola.GenerateOptions{MaxTokens: 200}) {
					if err != nil {
						errs <- err
					}
				}
			})
		}
		all.Wait()
		close(errs)
		for err := range errs {
			if n++; !errors.As(err, &over) || over.Limit != 1 {
				t.Errorf("an overload: %v", err)
			}
		}
		if n > 0 {
			break
		}
	}
	if n == 0 {
		t.Error("12 calls at once are no overload")
	}
	if l := m.Load(); l.Running+l.Waiting+l.UsedPages > 0 || l.Pages != 5 || l.PromptTokens == 0 {
		t.Errorf("%+v", l)
	}
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Prompt(t.Context(), make([]int32, 400)); !errors.Is(err, pianola.ErrNoPages) {
		t.Errorf("a prompt for more pages than there are: %v", err)
	}
}

// TestBatchGenerate compares the generations of a list of prompts with those of a session, with and
// without Options.Parallel. The error of one prompt does not change the others.
func TestBatchGenerate(t *testing.T) {
	prompts := []string{"func main() {", "package", "", "type Reader interface", "func main() {"}
	table := pianola.TableOptions{Context: 48, Batching: true}
	o := pianola.GenerateOptions{MaxTokens: 20, Sampling: pianola.Sampling{Temperature: 0.8, Seed: 3}}
	for _, parallel := range []int{0, 3} {
		m := open(t, "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU, Threads: teamThreads, Parallel: parallel, Table: table})
		long := strings.Repeat("func main() { ", 40)
		got := m.BatchGenerate(t.Context(), append(slices.Clone(prompts), long), o)
		if err := got[len(prompts)].Err; !errors.Is(err, pianola.ErrContextFull) {
			t.Errorf("parallel %d: a prompt that is too long: %v", parallel, err)
		}
		for i, prompt := range prompts {
			s := newSession(t, m, pianola.SessionOptions{})
			var want strings.Builder
			n := 0
			for token, err := range s.Generate(t.Context(), prompt, o) {
				if err != nil {
					t.Fatal(err)
				}
				want.WriteString(token.Text)
				n++
			}
			if g := got[i]; g.Err != nil || g.Text != want.String() || len(g.Tokens) != n {
				t.Errorf("parallel %d, prompt %q: %q, %v, want %q", parallel, prompt, g.Text, g.Err, want.String())
			}
		}
	}
}

// TestParallelLeaks leaves generations at random.
func TestParallelLeaks(t *testing.T) {
	o := pianola.Options{Device: pianola.DeviceCPU, Parallel: 4, Queue: 1 << 20, Table: pianola.TableOptions{Context: 512, Pages: 20}}
	for _, name := range []string{"tiny/llama", "variants/qwen3_5_one"} {
		checkLeaks(t, open(t, "testdata/"+name, o), 8, 6)
	}
}

// checkLeaks forks, cancels and ends generations at random, n times in each of some goroutines. Afterwards no page
// is in use, and the memory is what it was.
func checkLeaks(t *testing.T, m *pianola.Model, goroutines, n int) {
	t.Helper()
	before := m.Memory()
	var all sync.WaitGroup
	for worker := range goroutines {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(worker), 3))
			for range n {
				if err := leaves(t.Context(), m, r); err != nil && !errors.Is(err, errEnough) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if l, after := m.Load(), m.Memory(); l.Running+l.Waiting+l.UsedPages > 0 || after != before {
		t.Errorf("%+v, memory %+v, before %+v", l, after, before)
	}
}

// errEnough is the cause of a cancelled generation.
var errEnough = errors.New("enough")

// leaves starts a generation that is left, cancelled or forked at a random token.
func leaves(ctx context.Context, m *pianola.Model, r *rand.Rand) (err error) {
	s, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true, ChainTime: time.Duration(1+r.IntN(10)) * time.Millisecond})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ids := make([]int32, 1+r.IntN(200))
	for i := range ids {
		ids[i] = int32(i + 1)
	}
	stop, how, n := 1+r.IntN(30), r.IntN(4), 0
	for _, err := range s.GenerateIDs(ctx, ids, pianola.GenerateOptions{MaxTokens: 40}) {
		if err != nil {
			return err
		}
		if n++; n < stop {
			continue
		}
		if how < 2 {
			break
		}
		cancel(errEnough)
	}
	if how != 1 {
		return nil
	}
	f, err := s.Fork()
	if err != nil {
		return err
	}
	_, _, err = f.Chain(context.Background(), 5)
	return errors.Join(err, f.Close())
}
