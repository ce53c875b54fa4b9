package e2e_test

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
)

var (
	soakTime   = flag.Duration("soak", 3*time.Second, "how long TestSoak keeps a model at full load")
	soakDevice = flag.String("soak-device", string(pianola.DeviceCPU), "the device of TestSoak")
	soakModel  = flag.String("soak-model", "testdata/gopher-q8_0.gguf", "the model of TestSoak")
)

// request is a request of TestSoak with the result that it has alone.
type request struct {
	ids  []int32
	o    pianola.GenerateOptions
	want []string
}

// soak is the state of TestSoak.
type soak struct {
	m        *pianola.Model
	requests []request

	done, cancelled, tokens atomic.Int64
	lost                    atomic.Int64 // requests with an error, or with other tokens than alone
}

// TestSoak keeps a model for many sequences at full load: more callers than it decodes at once, prompts with
// and without common beginnings, too few pages for all, cancelled calls and slow loops. Each request must
// have the tokens and log-probabilities that it has alone. In the second half of the time the memory must not
// grow, and in the end no page may be in use and no goroutine left.
func TestSoak(t *testing.T) {
	table := pianola.TableOptions{Context: 512, Batching: true, LogProbs: true}
	alone := open(t, *soakModel, pianola.Options{Device: pianola.Device(*soakDevice), Table: table})
	s := soak{requests: soakRequests(t, alone)}
	if err := alone.Close(); err != nil {
		t.Fatal(err)
	}
	routines := runtime.NumGoroutine()
	table.Pages = 60
	s.m = open(t, *soakModel, pianola.Options{Device: pianola.Device(*soakDevice), Parallel: 16, Queue: 64, Table: table})
	opened := runtime.NumGoroutine()

	ctx, stop := context.WithTimeout(t.Context(), *soakTime)
	defer stop()
	begin := time.Now()
	var callers sync.WaitGroup
	for i := range 40 {
		callers.Go(func() { s.call(ctx, t, rand.New(rand.NewPCG(uint64(i), 18))) })
	}
	heaps := heapSizes(ctx, 20)
	callers.Wait()
	seconds := time.Since(begin).Seconds()

	done, tokens := s.done.Load(), s.tokens.Load()
	t.Logf("%.0f s: %d requests, %d of them cancelled, %d tokens; %.1f requests and %.0f tokens a second; lost: %d; heap in MB: %.1f",
		seconds, done, s.cancelled.Load(), tokens, float64(done)/seconds, float64(tokens)/seconds, s.lost.Load(), heaps)
	if s.lost.Load() > 0 || done == 0 {
		t.Errorf("%d requests, lost: %d", done, s.lost.Load())
	}
	if l := s.m.Load(); l.Running+l.Waiting+l.UsedPages > 0 {
		t.Errorf("after the last request: %+v", l)
	}
	if n := len(heaps); n >= 10 && slices.Max(heaps[n/2:]) > 1.1*slices.Max(heaps[:n/2])+4 {
		t.Errorf("the heap grows: %.1f MB", heaps)
	}
	for range 100 {
		if runtime.NumGoroutine() <= opened {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > opened {
		t.Errorf("%d goroutines, %d before the first request", n, opened)
	}
	if err := s.m.Close(); err != nil {
		t.Error(err)
	}
	for range 100 {
		if runtime.NumGoroutine() <= routines {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines after Close, %d before Open", runtime.NumGoroutine(), routines)
}

// soakRequests returns requests with their results on a model that serves one at a time.
func soakRequests(t *testing.T, m *pianola.Model) (list []request) {
	t.Helper()
	r := rand.New(rand.NewPCG(18, 1))
	common := randomIDs(r, 200)
	for i := range 48 {
		ids := randomIDs(r, 1+r.IntN(150))
		if i%3 == 0 {
			ids = slices.Concat(common[:1+r.IntN(len(common))], ids[:len(ids)/3+1])
		}
		o := pianola.GenerateOptions{MaxTokens: 1 + r.IntN(60)}
		if i%2 == 0 {
			o.Sampling = pianola.Sampling{Temperature: 0.8, TopP: 0.9, Seed: uint64(i), LogProbs: i % 5}
		}
		q := request{ids: ids, o: o}
		q.want = parallelTokens(t, t.Context(), m, ids, o, -1, 0)
		list = append(list, q)
	}
	return list
}

// randomIDs returns n random tokens that are not special.
func randomIDs(r *rand.Rand, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = 300 + r.Int32N(3000)
	}
	return ids
}

// call sends one request after another until the context ends.
func (s *soak) call(ctx context.Context, t *testing.T, r *rand.Rand) {
	for ctx.Err() == nil {
		q := &s.requests[r.IntN(len(s.requests))]
		stop := -1
		if r.IntN(4) == 0 {
			stop = r.IntN(len(q.want))
		}
		if err := s.send(q, stop, r); err != nil {
			s.lost.Add(1)
			t.Error(err)
		}
		s.done.Add(1)
	}
}

// send sends a request, which it cancels after the token with index stop, if that is not negative.
func (s *soak) send(q *request, stop int, r *rand.Rand) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	session, err := s.m.NewSession(pianola.SessionOptions{ChainTime: 5 * time.Millisecond, Priority: r.IntN(3)})
	if err != nil {
		return err
	}
	pause := time.Duration(0)
	if r.IntN(8) == 0 {
		pause = time.Millisecond
	}
	n := 0
	for tok, err := range session.GenerateIDs(ctx, q.ids, q.o) {
		if err != nil {
			if stop < 0 || !errors.Is(err, context.Canceled) {
				return errors.Join(err, session.Close())
			}
			break
		}
		if n >= len(q.want) || tokenText(tok) != q.want[n] {
			return errors.Join(errors.New("a request has other tokens than alone"), session.Close())
		}
		if n++; n == stop+1 {
			cancel()
			s.cancelled.Add(1)
			break
		}
		time.Sleep(pause)
	}
	s.tokens.Add(int64(n))
	if stop < 0 && n != len(q.want) {
		return errors.Join(errors.New("a request has fewer tokens than alone"), session.Close())
	}
	return session.Close()
}

// heapSizes returns the live heap in MB at n times until the context ends.
func heapSizes(ctx context.Context, n int) (sizes []float64) {
	end, _ := ctx.Deadline()
	step := time.Until(end) / time.Duration(n)
	for {
		select {
		case <-ctx.Done():
			return sizes
		case <-time.After(step):
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			sizes = append(sizes, float64(m.HeapAlloc)/1e6)
		}
	}
}
