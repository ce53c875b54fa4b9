package replay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
)

// parallelModel returns a tiny model for many sequences on the CPU.
func parallelModel(t testing.TB, name string, o compiler.Options, lo replay.LoadOptions) *replay.Model {
	t.Helper()
	dev, err := cpu.New(cpu.Options{Threads: min(2, runtime.GOMAXPROCS(0))})
	if err != nil {
		t.Fatal(err)
	}
	return parallelOn(t, dev, "cpu", name, o, lo)
}

// parallelOn returns a tiny model for many sequences on a device.
func parallelOn(t testing.TB, dev replay.Device, chip, name string, o compiler.Options, lo replay.LoadOptions) *replay.Model {
	t.Helper()
	tab, dir := compiledFor(t, chip, name, 48, o)
	mapped, err := dir.Map()
	if err != nil {
		t.Fatal(err)
	}
	m, err := replay.Load(context.Background(), dev, tab, mapped, lo)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), mapped.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

// script is what a caller does with a session: prompts, the tokens that follow, and how they are chosen.
type script struct {
	parts []scriptPart
	fork  bool // continue a fork after the first part
}

type scriptPart struct {
	ids      []int32
	n        int
	sampling replay.Sampling
	whole    bool // Reprompt
	drafts   bool // speculate, in a model for many sequences
}

// result is a token with the log-probability that the model gave it.
type result struct {
	id      int32
	logProb float32
}

// play runs a script on a session and returns the tokens.
func (sc *script) play(ctx context.Context, s *replay.Session, r *rand.Rand) (all []result, err error) {
	defer func() { err = errors.Join(err, s.Close()) }()
	for i, p := range sc.parts {
		if i == 1 && sc.fork {
			f, err := s.Fork()
			if err != nil {
				return nil, err
			}
			_, _, err = s.Chain(ctx, 5)
			if err = errors.Join(err, s.Close()); err != nil {
				return nil, errors.Join(err, f.Close())
			}
			s = f
		}
		err := s.Hold(func(s *replay.Session) error {
			some, err := p.play(ctx, s, r)
			all = append(all, some...)
			return err
		})
		if err != nil {
			return all, fmt.Errorf("part %d: %w", i, err)
		}
	}
	return all, nil
}

func (p *scriptPart) play(ctx context.Context, s *replay.Session, r *rand.Rand) (all []result, err error) {
	if err := errors.Join(s.SetSampling(p.sampling), s.SetSpeculation(p.drafts && r != nil)); err != nil {
		return nil, err
	}
	add := func(ids []int32) error {
		for i, id := range ids {
			of, _, ok := s.LogProbs(i, nil)
			if ok != (p.sampling.LogProbs > 0) || ok && of.ID != id {
				return fmt.Errorf("log-probabilities of token %d: %v %v", id, of, ok)
			}
			all = append(all, result{id, of.LogProb})
		}
		return nil
	}
	prompt := s.Prompt
	if p.whole {
		prompt = s.Reprompt
	}
	next, _, err := prompt(ctx, p.ids)
	if err != nil {
		return nil, err
	}
	if err := add([]int32{next}); err != nil {
		return nil, err
	}
	for len(all) < p.n {
		limit := p.n - len(all)
		if r != nil && r.IntN(3) == 0 {
			limit = 1 + r.IntN(limit)
		}
		ids, _, err := s.Chain(ctx, limit)
		if err != nil {
			return nil, err
		}
		if len(ids) > limit {
			return nil, fmt.Errorf("%d tokens of %d", len(ids), limit)
		}
		before := s.Len() - len(ids)
		if err := add(ids); err != nil {
			return nil, err
		}
		if r != nil && len(ids) > 1 && r.IntN(4) == 0 { // take some back
			keep := r.IntN(len(ids))
			if err := s.Rewind(before + keep); err != nil {
				return nil, err
			}
			all = all[:len(all)-len(ids)+keep]
		}
	}
	return all, nil
}

// randomScript returns a script with prompts that often begin like others.
func randomScript(r *rand.Rand, vocab int, speculate bool) *script {
	ids := func(n int) []int32 {
		list := make([]int32, n)
		same := r.IntN(2) == 0
		for i := range list {
			if list[i] = int32((7*i + 3) % vocab); !same || i > n/2 {
				list[i] = int32(r.IntN(vocab))
			}
		}
		return list
	}
	sc := &script{fork: r.IntN(3) == 0}
	for i := range 1 + r.IntN(3) {
		p := scriptPart{ids: ids(1 + r.IntN(60)), n: 1 + r.IntN(12), whole: i > 0 && r.IntN(4) == 0}
		switch r.IntN(4) {
		case 0:
			p.sampling = replay.Sampling{Temperature: 0.8, TopK: 20, Seed: r.Uint64N(9)}
		case 1:
			p.sampling = replay.Sampling{Temperature: 1, RepeatPenalty: 1.2, Seed: 3, LogProbs: 2, LogitBias: map[int32]float64{5: 3}}
		case 2:
			p.sampling = replay.Sampling{LogProbs: 1}
		}
		if p.drafts = speculate && r.IntN(2) == 0; p.drafts {
			p.n *= 4
		}
		sc.parts = append(sc.parts, p)
	}
	return sc
}

// TestParallelInvariance plays random scripts on sessions of a model for many sequences, from many
// goroutines and with few pages. Each gets the tokens and log-probabilities that it gets alone from a
// table for batching. The scheduler is the same for all models, so most scripts are for the first one.
func TestParallelInvariance(t *testing.T) {
	for i, c := range []struct {
		name string
		o    compiler.Options
	}{
		{"llama", compiler.Options{}}, {"llama", compiler.Options{KV: "q8_0"}}, {"gemma2", compiler.Options{}}, {"gemma2", compiler.Options{KV: "q8_0"}},
		{"../variants/lfm2", compiler.Options{}}, {"../variants/qwen3_5_one", compiler.Options{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := exhaustive.Pick(500, 60)
			if i > 0 {
				n = exhaustive.Pick(120, 60)
			}
			testInvariance(t, n, c.o, func(o compiler.Options) *replay.Model {
				if o.Sequences == 0 {
					return loadedOnThreads(t, min(2, runtime.GOMAXPROCS(0)), c.name, 48, o)
				}
				return parallelModel(t, c.name, o, replay.LoadOptions{Queue: 1000})
			})
		})
	}
}

// TestParallelShortChunks plays random scripts on a device that limits the rows of a chunk.
func TestParallelShortChunks(t *testing.T) {
	testInvariance(t, 8, compiler.Options{}, func(o compiler.Options) *replay.Model {
		if o.Sequences == 0 {
			return loadedOnThreads(t, 1, "llama", 48, o)
		}
		dev, err := cpu.New(cpu.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		most := func(_, position int) int { return max(1, 7-position/16) }
		return parallelOn(t, paced{dev, most}, "cpu", "llama", o, replay.LoadOptions{Queue: 100})
	})
}

// testInvariance plays n random scripts on a model for many sequences and on a table for batching, which
// open opens.
func testInvariance(t *testing.T, n int, o compiler.Options, open func(o compiler.Options) *replay.Model) {
	o.Context, o.LogProbs, o.Batching = 256, true, true
	reference := open(o)
	o.Sequences, o.Pages = 6, 14
	m := open(o)
	r := rand.New(rand.NewPCG(5, 6))
	var all sync.WaitGroup
	for i := range n {
		sc := randomScript(r, int(m.Table().Header.Vocab), speculates(t, m))
		want, err := sc.play(t.Context(), session(t, reference, replay.SessionOptions{}), nil)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
			s, err := m.NewSession(replay.SessionOptions{ChainTime: time.Duration(1+r.IntN(20)) * time.Millisecond, Priority: r.IntN(3), NoReuse: r.IntN(4) == 0})
			if err != nil {
				t.Error(err)
				return
			}
			got, err := sc.play(t.Context(), s, r)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("script %d: %v\n%v, want\n%v", i, err, got, want)
			}
		})
	}
	all.Wait()
	if o := m.Occupancy(); o.Running+o.Waiting+o.UsedPages > 0 || o.FoundTokens == 0 {
		t.Errorf("after all scripts: %+v", o)
	}
}

// speculates reports whether sessions of a model for many sequences can speculate.
func speculates(t testing.TB, m *replay.Model) bool {
	t.Helper()
	var refused *replay.ParallelError
	err := session(t, m, replay.SessionOptions{}).SetSpeculation(true)
	if err != nil && !errors.As(err, &refused) {
		t.Fatal(err)
	}
	return err == nil
}

// TestParallelSpeculate speculates in several sessions of a model for many sequences, some of which sample. Each
// gets the tokens and log-probabilities that it gets alone without speculation, and ends with a stop id inside
// a draft.
func TestParallelSpeculate(t *testing.T) {
	sampled := int64(0)
	for _, name := range []string{"gemma3_text", "phi3", "../variants/mistral_w7"} {
		t.Run(name, func(t *testing.T) {
			o := compiler.Options{Context: 256, LogProbs: true, Batching: true}
			alone := loadedOnThreads(t, min(2, runtime.GOMAXPROCS(0)), name, 48, o)
			o.Sequences, o.Pages = 6, 20
			dev, err := cpu.New(cpu.Options{Threads: min(2, runtime.GOMAXPROCS(0))})
			if err != nil {
				t.Fatal(err)
			}
			sampled += testParallelSpeculate(t, alone, parallelOn(t, steady{dev}, "cpu", name, o, replay.LoadOptions{Cost: steady{}}))
		})
	}
	if sampled == 0 {
		t.Error("no session that samples has drafted")
	}
}

// steady is a device whose submissions all take the same time, and the prediction of that.
type steady struct{ replay.Device }

// Wait implements replay.Device.
func (s steady) Wait(t replay.Ticket) (replay.Result, error) {
	r, err := s.Device.Wait(t)
	r.Elapsed = time.Second
	return r, err
}

// Decode implements replay.Cost.
func (steady) Decode(rows, depth int) time.Duration { return time.Second }

// Prefill implements replay.Cost.
func (steady) Prefill(position, rows int) time.Duration { return time.Second }

// testParallelSpeculate implements TestParallelSpeculate with a model for one sequence and one for many. It returns
// the number of drafted tokens of the sessions that sample.
func testParallelSpeculate(t *testing.T, alone, m *replay.Model) (sampled int64) {
	var all sync.WaitGroup
	var drafted, accepted, drawn atomic.Int64
	for i := range 9 {
		ids := prompt(12 + i)
		for len(ids) < 60 {
			ids = append(ids, ids[:12+i]...)
		}
		sampling := replay.Sampling{LogProbs: i % 2}
		if i%3 == 2 { // cold, so that some drafts are right
			sampling = replay.Sampling{Temperature: 0.05, TopK: 3, Seed: uint64(i)}
		}
		p := scriptPart{sampling: sampling, ids: ids, n: 150}
		want, err := p.play(t.Context(), session(t, alone, replay.SessionOptions{}), nil)
		if err != nil {
			t.Fatal(err)
		}
		p.drafts = i%5 != 3
		all.Go(func() {
			s := session(t, m, replay.SessionOptions{ChainTime: 10 * time.Second})
			var got []result
			err := s.Hold(func(s *replay.Session) (err error) {
				got, err = p.play(t.Context(), s, rand.New(rand.NewPCG(uint64(i), 7)))
				return err
			})
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("session %d: %v\n%v, want\n%v", i, err, got, want)
			}
			drafted.Add(int64(s.Stats().Drafted))
			accepted.Add(int64(s.Stats().Accepted))
			if !sampling.Greedy() {
				drawn.Add(int64(s.Stats().Drafted))
			}
			if p.drafts && sampling.Greedy() {
				checkStop(t, m, ids, want)
			}
		})
	}
	all.Wait()
	if d, a := drafted.Load(), accepted.Load(); a == 0 || a == d {
		t.Errorf("accepted %d of %d drafted tokens", a, d)
	}
	if o := m.Occupancy(); o.Running+o.Waiting > 0 || o.DraftedTokens < int(drafted.Load()) || o.AcceptedTokens < int(accepted.Load()) {
		t.Errorf("after all sessions: %+v", o)
	}
	return drawn.Load()
}

// checkStop speculates in a session with one of the tokens of want, which follow ids, as a stop id. The session
// must end with that token.
func checkStop(t *testing.T, m *replay.Model, ids []int32, want []result) {
	stop := want[len(want)*2/3].id
	s := session(t, m, replay.SessionOptions{StopIDs: []int32{stop}, ChainTime: 10 * time.Second})
	if err := s.SetSpeculation(true); err != nil {
		t.Error(err)
		return
	}
	next, stopped, err := s.Prompt(t.Context(), ids)
	got := []int32{next}
	for err == nil && !stopped {
		var some []int32
		some, stopped, err = s.Chain(t.Context(), len(want))
		got = append(got, some...)
	}
	n := 1 + slices.IndexFunc(want, func(r result) bool { return r.id == stop })
	if err != nil || len(got) != n || !slices.EqualFunc(got, want[:n], func(id int32, r result) bool { return id == r.id }) {
		t.Errorf("with the stop id %d: %v\n%v, want\n%v", stop, err, got, want[:n])
	}
}

// TestParallelRefused checks that what a model for many sequences does not support is refused by name.
func TestParallelRefused(t *testing.T) {
	m := parallelModel(t, "llama", compiler.Options{Context: 128, Sequences: 2}, replay.LoadOptions{})
	for what, o := range map[string]replay.SessionOptions{
		"SessionOptions.Chain": {Chain: 4}, "SessionOptions.Reserve": {Reserve: 5},
	} {
		var e *replay.ParallelError
		if _, err := m.NewSession(o); !errors.As(err, &e) || e.What != what {
			t.Errorf("%s: %v", what, err)
		}
	}
	s := session(t, m, replay.SessionOptions{})
	if _, _, err := s.Prompt(t.Context(), prompt(5)); err != nil {
		t.Fatal(err)
	}
	_, dry := s.Dry(1)
	_, kv := s.KV(0)
	document, err := os.ReadFile(filepath.Join("..", "docs", "PARALLEL.md"))
	if err != nil {
		t.Fatal(err)
	}
	recurrent := session(t, parallelModel(t, "../variants/lfm2", compiler.Options{Context: 128, Sequences: 2}, replay.LoadOptions{}), replay.SessionOptions{})
	for i, err := range []error{
		recurrent.SetSpeculation(true),
		s.SetTap(&replay.Tap{}), s.Profile(t.Context(), nil), s.ProfilePrompt(t.Context(), nil, nil, nil), dry, kv,
	} {
		var e *replay.ParallelError
		if !errors.As(err, &e) || !strings.Contains(string(document), "| "+e.What+" |") {
			t.Errorf("call %d: %v, which docs/PARALLEL.md does not list", i, err)
		}
	}
	if err := errors.Join(recurrent.SetSpeculation(false), s.SetSpeculation(true), s.SetTap(nil)); err != nil {
		t.Error(err)
	}
}

// TestParallelRollover lets contexts roll over in many sessions at once, with few pages. Each gets the tokens
// that it gets alone from a model for batching.
func TestParallelRollover(t *testing.T) {
	for _, name := range []string{"llama", "gemma3_text", "../variants/qwen3_5_equal"} {
		t.Run(name, func(t *testing.T) {
			o := compiler.Options{Context: 100, Batching: true, LogProbs: true}
			alone := parallelModel(t, name, o, replay.LoadOptions{})
			o.Sequences, o.Pages = 3, 5
			m := parallelModel(t, name, o, replay.LoadOptions{})
			var all sync.WaitGroup
			for i := range 9 {
				so := replay.SessionOptions{Rollover: replay.Rollover{Sinks: 5 * (i % 3), Window: 20 + i}}
				sampling := replay.Sampling{}
				if i%2 > 0 {
					sampling = replay.Sampling{Temperature: 0.9, Seed: uint64(i), LogProbs: i % 4}
				}
				sc := script{fork: i%3 == 1, parts: []scriptPart{
					{ids: prompt(10 + i), n: 150 + i, sampling: sampling},
					{ids: prompt(40), n: 250, sampling: sampling}, // rolls over for the prompt, too
					{ids: prompt(30), n: 300, sampling: sampling, whole: true},
				}}
				want, err := sc.play(t.Context(), session(t, alone, so), rand.New(rand.NewPCG(uint64(i), 1)))
				if err != nil {
					t.Fatal(err)
				}
				all.Go(func() {
					s, err := m.NewSession(so)
					if err != nil {
						t.Error(err)
						return
					}
					got, err := sc.play(t.Context(), s, rand.New(rand.NewPCG(uint64(i), 2)))
					if err != nil || !slices.Equal(got, want) {
						t.Errorf("script %d: %v\n%v, want\n%v", i, err, got, want)
					}
				})
			}
			all.Wait()
			if o := m.Occupancy(); o.Running+o.Waiting+o.UsedPages > 0 {
				t.Errorf("%+v", o)
			}
		})
	}
}

// TestParallelChains decodes single tokens directly after prompts. Each chain has its token, although the prompt's
// request ends while Chain is called.
func TestParallelChains(t *testing.T) {
	m := parallelModel(t, "llama", compiler.Options{Context: 128, Sequences: 4}, replay.LoadOptions{})
	var all sync.WaitGroup
	for range 8 {
		s := session(t, m, replay.SessionOptions{})
		all.Go(func() {
			for range 40 {
				if _, _, err := s.Reprompt(t.Context(), prompt(4)); err != nil {
					t.Error(err)
					return
				}
				if tokens, _, err := s.Chain(t.Context(), 1); err != nil || len(tokens) != 1 {
					t.Errorf("tokens %d, %v", tokens, err)
					return
				}
			}
		})
	}
	all.Wait()
}
