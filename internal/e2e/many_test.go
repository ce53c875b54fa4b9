package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// generations is the length of TestManySessions. Ten thousand generations take minutes with
// the race detector:
//
//	go test -race -run TestManySessions -timeout 60m -generations 10000 .
var generations = flag.Int("generations", 300, "number of generations in TestManySessions")

// longest is the number of tokens in a generation of TestManySessions.
const longest = 16

// alone is a prompt with the tokens that follow it in a separate session.
type alone struct {
	prompt, out []int32
	o           pianola.GenerateOptions
}

// TestManySessions generates in 8 sessions of one model at once, from whole prompts with
// common beginnings. At random it cancels, stops early, forks, saves, restores and closes.
// Every token must equal the one that a separate session generates, and all memory must be
// released.
func TestManySessions(t *testing.T) {
	for _, name := range []string{"llama", "mistral"} {
		t.Run(name, func(t *testing.T) {
			// With small chunks the KV caches of mistral have fewer rows than the context.
			m := open(t, "testdata/tiny/"+name, pianola.Options{Roll: smallChunks(t, name), AnyChip: true, Threads: teamThreads})
			if rotates := m.Table().KVCapacity() < int(m.Table().Header.Context); rotates != (name == "mistral") {
				t.Fatalf("the caches have %d rows", m.Table().KVCapacity())
			}
			known := manyAlone(t, m)
			settle := func() (pianola.Memory, uint64, int) {
				runtime.GC()
				var s runtime.MemStats
				runtime.ReadMemStats(&s)
				return m.Memory(), s.HeapAlloc, runtime.NumGoroutine()
			}
			before, heap, goroutines := settle()
			var left, ops atomic.Int64
			left.Store(int64(*generations / 2))
			counts := make([]atomic.Int64, len(manyNames))
			var wg sync.WaitGroup
			for worker := range 8 {
				wg.Go(func() {
					w := &manyWorker{t: t, m: m, known: known, counts: counts, r: rand.New(rand.NewPCG(uint64(worker), 1))}
					defer w.close()
					for left.Add(-1) >= 0 && !t.Failed() {
						w.generate()
						ops.Add(1)
					}
				})
			}
			wg.Wait()
			for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > goroutines && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond) // wait for timers and cancellations
			}
			after, heapAfter, goroutinesAfter := settle()
			if after.Sessions != before.Sessions || after.Kinds[table.SlotKV].Active != before.Kinds[table.SlotKV].Active {
				t.Errorf("memory %+v, before %+v", after, before)
			}
			if heapAfter > heap+4<<20 || goroutinesAfter > goroutines {
				t.Errorf("at the end %d bytes of heap and %d goroutines, at the start %d and %d", heapAfter, goroutinesAfter, heap, goroutines)
			}
			for i, name := range manyNames {
				t.Logf("%s: %d", name, counts[i].Load())
			}
			t.Logf("%d generations, peak of KV caches %d bytes", ops.Load(), after.Kinds[table.SlotKV].Peak)
		})
	}
}

// smallChunks returns a roll of a tiny model with prefill chunks of 32 rows.
func smallChunks(t *testing.T, name string) []byte {
	dir, err := weights.OpenDirectory(testmodels.Path(t, filepath.Join("testdata", "tiny", name)))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := arch.Builtin().Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := chip.Lookup("cpu")
	if err != nil {
		t.Fatal(err)
	}
	c.PrefillChunk = 32
	tab, err := compiler.Compile(compiler.Input{Config: cfg, Tensors: dir, Chip: c})
	if err != nil {
		t.Fatal(err)
	}
	b, err := tab.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// manyAlone returns prompts with common beginnings and the tokens that follow them.
func manyAlone(t *testing.T, m *pianola.Model) (known []alone) {
	r := rand.New(rand.NewPCG(1, 2))
	random := func(n int) (ids []int32) {
		for range n {
			ids = append(ids, int32(r.IntN(512)))
		}
		return ids
	}
	roots := [][]int32{random(12), random(150)} // the long prompt makes the caches rotate
	for i := range 24 {
		p := slices.Clone(roots[i%2][:r.IntN(len(roots[i%2]))])
		a := alone{prompt: append(p, random(1+r.IntN(20))...), o: pianola.GenerateOptions{MaxTokens: longest, Whole: true}}
		if i%3 == 0 {
			a.o.Sampling = pianola.Sampling{Temperature: 1, TopK: 40, Seed: uint64(i)}
		}
		s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true, Chain: 1 + i%5})
		a.out = ids(t, s, a.prompt, a.o)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		known = append(known, a)
	}
	return known
}

// manyNames lists the events that can end or accompany a generation.
var manyNames = []string{"whole", "cancelled", "broken off", "closed", "forks", "restores"}

const (
	manyWhole = iota
	manyCancelled
	manyBroken
	manyClosed
	manyForks
	manyRestores
)

// manyWorker is the state of one goroutine of TestManySessions.
type manyWorker struct {
	t      *testing.T
	m      *pianola.Model
	known  []alone
	counts []atomic.Int64
	r      *rand.Rand
	s      *pianola.Session
}

func (w *manyWorker) close() {
	if w.s != nil {
		if err := w.s.Close(); err != nil {
			w.t.Error(err)
		}
	}
	w.s = nil
}

// fail ends the test with a worker's error unless it is nil.
func (w *manyWorker) fail(err error) {
	if err != nil {
		w.t.Error(err)
	}
}

// generate performs one generation, possibly after a fork or a restore.
func (w *manyWorker) generate() {
	if w.s == nil {
		s, err := w.m.NewSession(pianola.SessionOptions{IgnoreStops: true, Chain: w.r.IntN(8)})
		if err != nil {
			w.t.Error(err)
			return
		}
		w.s = s
	}
	switch w.r.IntN(10) {
	case 0:
		w.fork()
	case 1:
		w.restore()
	case 2:
		w.close()
		return
	}
	if w.s != nil {
		w.run(w.s, &w.known[w.r.IntN(len(w.known))])
	}
}

// fork generates in the session and in a fork at the same time, and continues with the fork.
func (w *manyWorker) fork() {
	f, err := w.s.Fork()
	if err != nil {
		w.t.Error(err)
		return
	}
	w.counts[manyForks].Add(1)
	old := &manyWorker{t: w.t, m: w.m, known: w.known, counts: w.counts, r: rand.New(rand.NewPCG(w.r.Uint64(), 3)), s: w.s}
	w.s = f
	var wg sync.WaitGroup
	wg.Go(func() {
		old.run(old.s, &w.known[old.r.IntN(len(w.known))])
		old.close()
	})
	w.run(w.s, &w.known[w.r.IntN(len(w.known))])
	wg.Wait()
}

// restore continues in a new session with the context of the old one.
func (w *manyWorker) restore() {
	var b bytes.Buffer
	if err := w.s.Snapshot(&b); err != nil {
		w.t.Error(err)
		return
	}
	w.close()
	s, err := w.m.Restore(&b, pianola.SessionOptions{IgnoreStops: true, Chain: w.r.IntN(8)})
	if err != nil {
		w.t.Error(err)
		return
	}
	w.counts[manyRestores].Add(1)
	w.s = s
}

// run generates until the end or an interruption and compares the tokens. If the session is
// closed, the worker forgets it.
func (w *manyWorker) run(s *pianola.Session, a *alone) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	end, soon, stop := manyWhole, time.Duration(w.r.IntN(4000))*time.Microsecond, 1+w.r.IntN(longest)
	var timer *time.Timer
	switch w.r.IntN(8) {
	case 0, 1:
		end, timer = manyCancelled, time.AfterFunc(soon, cancel)
	case 2:
		end = manyBroken
	case 3:
		end, timer = manyClosed, time.AfterFunc(soon, func() { w.fail(s.Close()) })
	}
	var got []int32
	var last error
	for tok, err := range s.GenerateIDs(ctx, a.prompt, a.o) {
		if last = err; err != nil {
			break
		}
		if got = append(got, tok.ID); end == manyBroken && len(got) == stop {
			break
		}
	}
	if timer != nil && timer.Stop() && last == nil {
		end = manyWhole // the generation was complete before the interruption
	}
	want := map[int]error{manyCancelled: context.Canceled, manyClosed: pianola.ErrClosed}[end]
	switch {
	case last != nil && !errors.Is(last, want) || want == nil && last != nil:
		w.t.Errorf("%s: %v", manyNames[end], last)
	case len(got) > len(a.out) || !slices.Equal(got, a.out[:len(got)]) || last == nil && end == manyWhole && len(got) != longest:
		w.t.Errorf("%s: %v, alone %v", manyNames[end], got, a.out)
	}
	w.counts[end].Add(1)
	if end == manyClosed {
		w.fail(s.Close())
		w.s = nil
	}
}
