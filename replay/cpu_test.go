package replay_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// loader returns a tiny model on a device.
type loader func(t testing.TB, name string, chunk int, o compiler.Options) *replay.Model

// sessionTests are the tests for every device that computes.
var sessionTests = []struct {
	name string
	run  func(t *testing.T, loaded loader)
}{
	{"Chunks", testChunks},
	{"DecodeIsPrefill", testDecodeIsPrefill},
	{"AllLogits", testAllLogits},
	{"RepromptRows", testRepromptRows},
	{"Stop", testStop},
	{"Allocations", testAllocations},
	{"LogProbs", testLogProbs},
	{"Cancel", testCancel},
	{"CancelledPrompt", testCancelledPrompt},
	{"ConcurrentSessions", testConcurrentSessions},
	{"Profile", testProfile},
	{"ProfilePrompt", testProfilePrompt},
	{"Growth", testGrowth},
	{"Reprompt", testReprompt},
	{"RepromptRotating", testRepromptRotating},
	{"Fork", testFork},
	{"Snapshot", testSnapshot},
	{"Speculate", testSpeculate},
	{"SpeculateLogits", testSpeculateLogits},
	{"SpeculateState", testSpeculateState},
	{"SpeculateStop", testSpeculateStop},
	{"SpeculateCancel", testSpeculateCancel},
	{"KVKinds", testKVKinds},
	{"KV", testKV},
	{"Release", testRelease},
	{"Taps", testTaps},
	{"CloseModel", testCloseModel},
}

func TestCPU(t *testing.T) {
	for _, c := range sessionTests {
		loaded := loadedOnTeam
		if slices.Contains(anyMode, c.name) {
			loaded = loadedOnCPU
		}
		t.Run(c.name, func(t *testing.T) { c.run(t, loaded) })
	}
}

// loadedOnTeam loads a tiny model on the CPU device with as many threads as processors.
func loadedOnTeam(t testing.TB, name string, chunk int, o compiler.Options) *replay.Model {
	t.Helper()
	return loadedOnThreads(t, 0, name, chunk, o)
}

// loadedOnCPU loads a tiny model on the CPU device for tests that do not concern its threads. A
// sample uses one thread: go test runs several packages at once, and threads that wait for a thread
// without a processor waste time.
func loadedOnCPU(t testing.TB, name string, chunk int, o compiler.Options) *replay.Model {
	t.Helper()
	return loadedOnThreads(t, exhaustive.Pick(0, 1), name, chunk, o)
}

func loadedOnThreads(t testing.TB, threads int, name string, chunk int, o compiler.Options) *replay.Model {
	t.Helper()
	dev, err := cpu.New(cpu.Options{Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	return loadedOn(t, dev, "cpu", name, chunk, o)
}

// loadedOn loads a tiny model, compiled for a chip, on a device. The test's cleanup closes the
// device.
func loadedOn(t testing.TB, dev replay.Device, chipName, name string, chunk int, o compiler.Options) *replay.Model {
	t.Helper()
	tab, dir := compiledFor(t, chipName, name, chunk, o)
	return loadedFrom(t, dev, tab, dir, replay.LoadOptions{})
}

// loadedWith loads a table on the CPU device.
func loadedWith(t testing.TB, tab *table.Table, dir *weights.Directory, o replay.LoadOptions) *replay.Model {
	t.Helper()
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	return loadedFrom(t, dev, tab, dir, o)
}

// loadedFrom loads a table with the weights of a directory on a device. The test's cleanup closes both.
func loadedFrom(t testing.TB, dev replay.Device, tab *table.Table, dir *weights.Directory, o replay.LoadOptions) *replay.Model {
	t.Helper()
	mapped, err := dir.Map()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(dev.Close(), mapped.Close()); err != nil {
			t.Error(err)
		}
	})
	m, err := replay.Load(context.Background(), dev, tab, mapped, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func session(t testing.TB, m *replay.Model, o replay.SessionOptions) *replay.Session {
	t.Helper()
	s, err := m.NewSession(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// generate returns n tokens after a prompt.
func generate(t testing.TB, s *replay.Session, ids []int32, n int) []int32 {
	t.Helper()
	ctx := context.Background()
	next, _, err := s.Prompt(ctx, ids)
	if err != nil {
		t.Fatal(err)
	}
	out := []int32{next}
	for len(out) < n {
		tokens, stopped, err := s.Chain(ctx, n-len(out))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, tokens...)
		if stopped {
			break
		}
	}
	return out
}

// testChunks checks that logits do not depend on the division of a prompt into chunks, also
// with a rotating cache, and that a prompt in several parts gives the same logits as the whole.
func testChunks(t *testing.T, loaded loader) {
	for _, name := range []string{"mistral", "qwen3"} {
		ids := prompt(120)
		var want []float32
		for _, chunk := range exhaustive.Pick([]int{512, 120, 64, 7, 1}, []int{512, 64, 7}) {
			s := session(t, loaded(t, name, chunk, compiler.Options{}), replay.SessionOptions{})
			if _, _, err := s.Prompt(context.Background(), ids); err != nil {
				t.Fatal(err)
			}
			got := make([]float32, 512)
			if err := s.Logits(got); err != nil {
				t.Fatal(err)
			}
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: chunks of %d give other logits", name, chunk)
			}
		}
	}
}

// testDecodeIsPrefill prefills the greedy tokens of a chain as a prompt. The next tokens must
// be the same as in the chain.
func testDecodeIsPrefill(t *testing.T, loaded loader) {
	m := loaded(t, "mistral", 32, compiler.Options{})
	all := generate(t, session(t, m, replay.SessionOptions{Chain: 10}), prompt(5), 90)
	again := generate(t, session(t, m, replay.SessionOptions{Chain: 3}), append(prompt(5), all[:60]...), 30)
	if !slices.Equal(all[60:], again) {
		t.Errorf("decoded %v, after a prompt of the same tokens %v", all[60:], again)
	}
}

// testAllLogits compares the logits of every row with those of prompts that end at the row.
func testAllLogits(t *testing.T, loaded loader) {
	m := loaded(t, "qwen2", 16, compiler.Options{AllLogits: true})
	ids := prompt(45)
	rows := make([][]float32, len(ids))
	s := session(t, m, replay.SessionOptions{})
	err := s.AllLogits(context.Background(), ids, func(row int, logits []float32) error {
		rows[row] = slices.Clone(logits)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 2, 16, 17, 33, 45} {
		one := session(t, m, replay.SessionOptions{})
		if _, _, err := one.Prompt(context.Background(), ids[:n]); err != nil {
			t.Fatal(err)
		}
		want := make([]float32, 512)
		if err := one.Logits(want); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(rows[n-1], want) {
			t.Errorf("row %d differs from a prompt of %d", n-1, n)
		}
	}
	// Another session's submissions in between must not change a row.
	wide := loaded(t, "qwen2", 64, compiler.Options{AllLogits: true})
	long := prompt(100)
	var alone, between [][]float32
	for _, to := range []*[][]float32{&alone, &between} {
		s, other := session(t, wide, replay.SessionOptions{}), session(t, wide, replay.SessionOptions{})
		if err := s.AllLogits(context.Background(), long, func(row int, logits []float32) error {
			*to = append(*to, slices.Clone(logits))
			if to == &between && row%25 == 0 {
				_, _, err := other.Prompt(context.Background(), prompt(40))
				return err
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		*to = append(*to, make([]float32, 512))
		if err := s.Logits((*to)[100]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range alone {
		if !slices.Equal(alone[i], between[i]) {
			t.Fatalf("row %d is another after a prompt of another session", i)
		}
	}
	// Decoding must continue at the end of the prompt.
	if a, b := generate(t, s, []int32{7}, 5), len(ids)+1+1+4; s.Len() != b {
		t.Errorf("%d positions after %v, want %d", s.Len(), a, b)
	}
	stop := errors.New("enough")
	s2 := session(t, m, replay.SessionOptions{})
	if err := s2.AllLogits(context.Background(), ids, func(int, []float32) error { return stop }); !errors.Is(err, stop) || s2.Len() != 0 {
		t.Errorf("got %v with %d positions, want the visitor's error and none", err, s2.Len())
	}
	if err := session(t, loaded(t, "qwen2", 16, compiler.Options{}), replay.SessionOptions{}).AllLogits(context.Background(), ids, nil); !errors.Is(err, replay.ErrNoLogitsProgram) {
		t.Errorf("got %v, want ErrNoLogitsProgram", err)
	}
}

// testStop makes a token of the greedy sequence a stop id. The device must end the chain with
// it.
func testStop(t *testing.T, loaded loader) {
	m := loaded(t, "llama", 64, compiler.Options{})
	free := generate(t, session(t, m, replay.SessionOptions{Chain: 64}), prompt(9), 60)
	at := slices.IndexFunc(free, func(id int32) bool { return slices.Index(free, id) > 5 })
	if at < 0 {
		t.Fatal("no token first occurs after the fifth")
	}
	for _, chain := range []int{1, 4, 64} {
		s := session(t, m, replay.SessionOptions{Chain: chain, StopIDs: []int32{9999, free[at]}})
		got := generate(t, s, prompt(9), 60)
		if !slices.Equal(got, free[:at+1]) {
			t.Errorf("chain %d: %v, want %v", chain, got, free[:at+1])
		}
	}
	s := session(t, m, replay.SessionOptions{StopIDs: free[:1]})
	if _, stopped, err := s.Prompt(context.Background(), prompt(9)); err != nil || !stopped {
		t.Errorf("a stop id after the prompt: stopped is %t, %v", stopped, err)
	}
	// The stop flag must not affect the next submission.
	if tokens, _, err := s.Chain(context.Background(), 1); err != nil || len(tokens) != 1 {
		t.Errorf("after a stop: %v, %v", tokens, err)
	}
}

// testAllocations checks that chains of 64 tokens allocate nothing.
func testAllocations(t *testing.T, loaded loader) {
	allocations(t, loaded(t, "qwen3", 64, compiler.Options{}), replay.Sampling{})
}

func allocations(t *testing.T, m *replay.Model, o replay.Sampling) {
	t.Helper()
	s := session(t, m, replay.SessionOptions{Chain: 64})
	if err := s.SetSampling(o); err != nil {
		t.Fatal(err)
	}
	generate(t, s, prompt(5), 70)
	ctx := context.Background()
	var before, after runtime.MemStats
	best := ^uint64(0)
	for range 20 { // the runtime's own background work may allocate
		if err := s.Reset(); err != nil {
			t.Fatal(err)
		}
		generate(t, s, prompt(5), 6)
		runtime.ReadMemStats(&before)
		tokens, _, err := s.Chain(ctx, 64)
		runtime.ReadMemStats(&after)
		if err != nil || len(tokens) != 64 {
			t.Fatal(len(tokens), err)
		}
		if best = min(best, after.Mallocs-before.Mallocs+after.TotalAlloc-before.TotalAlloc); best == 0 {
			break
		}
	}
	if best != 0 {
		t.Errorf("%+v: a chain of 64 tokens allocated: %d", o, best)
	}
}

// testCancel cancels a long generation. It must return within the time bound with the tokens so
// far, and the session must remain usable.
func testCancel(t *testing.T, loaded loader) {
	m := loaded(t, "llama", 64, compiler.Options{})
	const n = 480
	want := generate(t, session(t, m, replay.SessionOptions{Chain: 64}), prompt(9), n)
	// Other load on the machine may delay attempts, in CI for a minute, but not all of them.
	for attempt := 1; ; attempt++ {
		took := cancelled(t, m, want)
		if took <= replay.DefaultChainTime {
			return
		}
		if attempt == 20 {
			t.Fatalf("cancelling took %v, the bound is %v", took, replay.DefaultChainTime)
		}
		time.Sleep(time.Duration(attempt) * 200 * time.Millisecond)
	}
}

// cancelled generates want, with a cancellation in the middle, and returns the time that the
// cancellation took, or an hour if everything had been generated before.
func cancelled(t *testing.T, m *replay.Model, want []int32) time.Duration {
	t.Helper()
	n := len(want)
	// Reserve the caches, because growing cannot be cancelled.
	s := session(t, m, replay.SessionOptions{Chain: n, Reserve: int(m.Table().Header.Context)})
	next, _, err := s.Prompt(context.Background(), prompt(9))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var at time.Time
	timer := time.AfterFunc(5*time.Millisecond, func() { at = time.Now(); cancel() })
	defer timer.Stop()
	tokens, _, err := s.Chain(ctx, n)
	if err == nil { // the timer was late
		return time.Hour
	}
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("%d tokens, error %v, want context.Canceled", len(tokens), err)
	}
	took := time.Since(at)
	got := append([]int32{next}, tokens...)
	if len(got) >= n || !slices.Equal(got, want[:len(got)]) {
		t.Errorf("%d tokens before the cancellation, which are not those of a free run", len(got))
	}
	for len(got) < n {
		tokens, _, err := s.Chain(context.Background(), n-len(got))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, tokens...)
	}
	if !slices.Equal(got, want) {
		t.Error("after a cancellation the session continues with wrong tokens")
	}
	if _, _, err := s.Chain(ctx, 1); err == nil {
		t.Error("a cancelled context decoded")
	}
	return took
}

// testCancelledPrompt checks that a cancelled prompt leaves the context unchanged.
func testCancelledPrompt(t *testing.T, loaded loader) {
	m := loaded(t, "llama", 64, compiler.Options{})
	s := session(t, m, replay.SessionOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := s.Prompt(ctx, prompt(100)); !errors.Is(err, context.Canceled) || s.Len() != 0 {
		t.Errorf("got %v with %d positions", err, s.Len())
	}
	want := generate(t, session(t, m, replay.SessionOptions{}), prompt(9), 20)
	if got := generate(t, s, prompt(9), 20); !slices.Equal(got, want) {
		t.Errorf("after a cancelled prompt: %v, want %v", got, want)
	}
}

// testConcurrentSessions runs sessions of one model at the same time and closes one of them
// while it decodes.
func testConcurrentSessions(t *testing.T, loaded loader) {
	m := loaded(t, "qwen2", 64, compiler.Options{})
	want := generate(t, session(t, m, replay.SessionOptions{}), prompt(12), 100)
	var wg sync.WaitGroup
	for i := range 4 {
		s := session(t, m, replay.SessionOptions{Chain: 1 + 5*i})
		wg.Go(func() {
			if got := generate(t, s, prompt(12), 100); !slices.Equal(got, want) {
				t.Errorf("session %d has other tokens", i)
			}
		})
	}
	s := session(t, m, replay.SessionOptions{Chain: 200})
	wg.Go(func() {
		_, _, err := s.Prompt(context.Background(), prompt(3))
		for err == nil {
			_, _, err = s.Chain(context.Background(), 200)
		}
		if !errors.Is(err, replay.ErrClosed) && !errors.Is(err, replay.ErrContextFull) {
			t.Errorf("a session closed in the middle ended with %v", err)
		}
	})
	time.Sleep(time.Millisecond)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func testProfile(t *testing.T, loaded loader) {
	m := loaded(t, "llama", 64, compiler.Options{})
	s := session(t, m, replay.SessionOptions{})
	generate(t, s, prompt(3), 2)
	p, _, _ := m.Table().Program(table.ProgramDecode)
	times := make([]time.Duration, p.Count)
	if err := s.Profile(context.Background(), times); err != nil {
		t.Fatal(err)
	}
	for i, d := range times {
		if d <= 0 {
			t.Errorf("command %d (%s) took %v", i, m.Table().Label(i), d)
		}
	}
	if err := s.Profile(context.Background(), times[1:]); err == nil {
		t.Error("too few times were taken")
	}
	before := s.Len()
	if d, err := s.Dry(50); err != nil || d <= 0 || s.Len() != before {
		t.Errorf("a dry run took %v, %v, and moved the context to %d", d, err, s.Len())
	}
}

// testProfilePrompt profiles prompts of several chunks in an empty context and after a pending
// token. The following tokens must be the same as after Prompt.
func testProfilePrompt(t *testing.T, loaded loader) {
	m := loaded(t, "mistral", 32, compiler.Options{})
	o := replay.SessionOptions{Chain: 5}
	a, b := session(t, m, o), session(t, m, o)
	var times [2][]time.Duration
	for i, name := range []string{table.ProgramPrefill, table.ProgramHead} {
		p, _, _ := m.Table().Program(name)
		times[i] = make([]time.Duration, p.Count)
	}
	ctx := context.Background()
	for _, n := range []int{75, 1, 32} {
		if _, _, err := a.Prompt(ctx, prompt(n)); err != nil {
			t.Fatal(err)
		}
		before := slices.Concat(times[0], times[1])
		if err := b.ProfilePrompt(ctx, prompt(n), times[0], times[1]); err != nil {
			t.Fatal(err)
		}
		for i, d := range slices.Concat(times[0], times[1]) {
			if d <= before[i] {
				t.Errorf("%d tokens: command %d of prefill and head took %v", n, i, d-before[i])
			}
		}
		if a.Len() != b.Len() {
			t.Fatalf("%d positions after a profiled prompt, want %d", b.Len(), a.Len())
		}
		want, _, err := a.Chain(ctx, 5)
		if err != nil {
			t.Fatal(err)
		}
		want = slices.Clone(want)
		if got, _, err := b.Chain(ctx, 5); err != nil || !slices.Equal(got, want) {
			t.Errorf("%d tokens: %v, %v follow a profiled prompt, want %v", n, got, err, want)
		}
	}

	before := b.Len()
	gone, cancel := context.WithCancel(ctx)
	cancel()
	for _, c := range []struct {
		ctx           context.Context
		ids           []int32
		prefill, head []time.Duration
	}{
		{ctx, prompt(3), times[0][1:], times[1]}, {ctx, prompt(3), times[0], nil}, {ctx, []int32{-1}, times[0], times[1]}, {ctx, nil, times[0], times[1]},
		{ctx, prompt(b.Context()), times[0], times[1]}, {gone, prompt(3), times[0], times[1]},
	} {
		if err := b.ProfilePrompt(c.ctx, c.ids, c.prefill, c.head); err == nil || b.Len() != before {
			t.Errorf("%d ids, %d and %d times: %v, %d positions", len(c.ids), len(c.prefill), len(c.head), err, b.Len())
		}
	}
}
