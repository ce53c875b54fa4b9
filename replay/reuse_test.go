package replay_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// logits returns the logits of the pending token.
func logits(t testing.TB, s *replay.Session) []float32 {
	t.Helper()
	l := make([]float32, 512) // the tiny models' vocabulary
	if err := s.Logits(l); err != nil {
		t.Fatal(err)
	}
	return l
}

// kvBytes returns the memory of the KV caches of all sessions.
func kvBytes(m *replay.Model) uint64 { return m.Memory().Kinds[table.SlotKV].Active }

// testGrowth decodes across the lengths at which caches grow. Tokens and logits must equal
// those of a session that reserved the whole context, and the memory must be that of the rows
// in use.
func testGrowth(t *testing.T, loaded loader) {
	m := loaded(t, "llama", 64, compiler.Options{})
	context := int(m.Table().Header.Context)
	var whole uint64
	for i := range m.Table().Slots {
		if s := &m.Table().Slots[i]; s.Kind == table.SlotKV {
			whole += s.Size
		}
	}
	empty := m.Memory()
	all := session(t, m, replay.SessionOptions{Chain: 50, Reserve: context})
	reserved := kvBytes(m)
	if reserved < whole {
		t.Errorf("room for the context takes %d bytes, its caches have %d", reserved, whole)
	}
	const n = 290
	want := generate(t, all, prompt(20), n)
	wantLogits := logits(t, all)
	if err := all.Close(); err != nil {
		t.Fatal(err)
	}
	if got := m.Memory(); got.Sessions != empty.Sessions || kvBytes(m) != 0 {
		t.Errorf("%+v after closing, %+v before", got, empty)
	}
	s := session(t, m, replay.SessionOptions{Chain: 50})
	got := generate(t, s, prompt(20), 80)
	small := kvBytes(m)
	if small == 0 || small > whole*3/4 {
		t.Errorf("100 of %d positions take %d bytes, all of them %d", context, small, whole)
	}
	for len(got) < n {
		tokens, _, err := s.Chain(t.Context(), n-len(got))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, tokens...)
	}
	if !slices.Equal(got, want) || !slices.Equal(logits(t, s), wantLogits) {
		t.Errorf("%v, want %v", got, want)
	}
	if k := m.Memory().Kinds[table.SlotKV]; k.Active <= small || k.Active > reserved || k.Peak < reserved {
		t.Errorf("310 positions take %+v, 100 took %d and all %d", k, small, whole)
	}
}

// follow reprompts a session, decodes n tokens, and returns them and the numbers of tokens
// prefilled and reused.
func follow(t *testing.T, s *replay.Session, ids []int32, n int) (out []int32, prefilled, reused int) {
	t.Helper()
	before := s.Stats()
	next, _, err := s.Reprompt(context.Background(), ids)
	if err != nil {
		t.Fatal(err)
	}
	out = []int32{next}
	for len(out) < n {
		tokens, _, err := s.Chain(context.Background(), n-len(out))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, tokens...)
	}
	after := s.Stats()
	return out, after.Prefilled - before.Prefilled, after.Reused - before.Reused
}

// testReprompt gives prompts that share parts with the context. Only the new part must be
// prefilled, and the tokens must equal those of a separate session.
func testReprompt(t *testing.T, loaded loader) {
	m := loaded(t, "qwen3", 16, compiler.Options{})
	s := session(t, m, replay.SessionOptions{Chain: 5})
	ids := prompt(40)
	var out []int32
	turn := func(name string, next []int32, wantReused int) {
		t.Helper()
		var prefilled, reused int
		ids = next
		out, prefilled, reused = follow(t, s, ids, 8)
		if reused != wantReused || prefilled != len(ids)-wantReused {
			t.Errorf("%s: %d tokens prefilled and %d reused of %d, want %d reused", name, prefilled, reused, len(ids), wantReused)
		}
		alone, _, _ := follow(t, session(t, m, replay.SessionOptions{Chain: 3}), ids, 8)
		if !slices.Equal(out, alone) {
			t.Errorf("%s: %v, alone %v", name, out, alone)
		}
	}
	turn("first", ids, 0)
	// The last of the eight tokens is pending and therefore has no K and V yet.
	turn("second turn", append(slices.Concat(ids, out), 77, 78, 79), len(ids)+7)
	changed := slices.Clone(ids)
	changed[25] = 99
	turn("changed middle", changed, 25)
	turn("the same", ids, len(ids)-1)
	turn("shorter", ids[:10], 9)
	turn("nothing in common", []int32{300, 301}, 0)
	if _, _, err := s.Reprompt(context.Background(), []int32{300, 1 << 20}); err == nil || s.Len() != 9 {
		t.Errorf("a bad token: %v, the context has %d positions", err, s.Len())
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := s.Reprompt(ctx, ids); !errors.Is(err, context.Canceled) || s.Len() != 9 {
		t.Errorf("cancelled: %v, the context has %d positions", err, s.Len())
	}
}

// testRepromptRotating goes back in a rotating cache: rows that it keeps are reused;
// otherwise everything is prefilled.
func testRepromptRotating(t *testing.T, loaded loader) { repromptRotating(t, loaded, "mistral") }

func repromptRotating(t *testing.T, loaded loader, name string) {
	m := loaded(t, name, 32, compiler.Options{})
	slack, rows := m.Table().KVSlack(), m.Table().KVCapacity()
	if slack != 32 || rows >= 120 {
		t.Fatalf("the cache has %d rows and a slack of %d", rows, slack)
	}
	ids := prompt(120)
	for _, c := range []struct{ back, reused int }{{20, 100}, {32, 88}, {33, 0}, {80, 0}} {
		s := session(t, m, replay.SessionOptions{Chain: 5})
		follow(t, s, ids, 1)
		changed := slices.Clone(ids)
		changed[len(ids)-c.back] = 400
		out, _, reused := follow(t, s, changed, 40)
		alone, _, _ := follow(t, session(t, m, replay.SessionOptions{Chain: 40}), changed, 40)
		if reused != c.reused || !slices.Equal(out, alone) {
			t.Errorf("%d positions back: %d reused, want %d; %v, alone %v", c.back, reused, c.reused, out, alone)
		}
	}
	// After two steps back, the rows are reused only as far as after one, because the rows
	// between them are overwritten.
	s := session(t, m, replay.SessionOptions{})
	follow(t, s, ids, 1)
	if err := errors.Join(s.Rewind(100), s.Rewind(90)); err != nil {
		t.Error(err)
	}
	if err := s.Rewind(80); err == nil {
		t.Error("rewinding 40 positions in three steps was taken")
	}
}

// testFork forks a session in the middle: each session continues as if alone, and none
// observes the others.
func testFork(t *testing.T, loaded loader) { fork(t, loaded, "llama", "mistral") }

func fork(t *testing.T, loaded loader, names ...string) {
	for _, name := range names {
		m := loaded(t, name, 32, compiler.Options{})
		s := session(t, m, replay.SessionOptions{Chain: 7})
		first := generate(t, s, prompt(90), 30)
		f, err := s.Fork()
		if err != nil {
			t.Fatal(err)
		}
		other, err := f.Fork()
		if err != nil {
			t.Fatal(err)
		}
		if f.Len() != s.Len() || !slices.Equal(logits(t, f), logits(t, s)) {
			t.Errorf("%s: the fork has %d positions of %d, or other logits", name, f.Len(), s.Len())
		}
		go1 := generate(t, s, []int32{5, 6}, 40)
		go2 := generate(t, f, []int32{50, 60}, 40)
		alone := session(t, m, replay.SessionOptions{Chain: 30})
		again := append(prompt(90), first...)
		want1, _, _ := follow(t, alone, append(slices.Clone(again), 5, 6), 40)
		want2, _, _ := follow(t, session(t, m, replay.SessionOptions{}), append(slices.Clone(again), 50, 60), 40)
		if !slices.Equal(go1, want1) || !slices.Equal(go2, want2) {
			t.Errorf("%s: %v and %v, alone %v and %v", name, go1, go2, want1, want2)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if got := generate(t, other, []int32{5, 6}, 40); !slices.Equal(got, want1) {
			t.Errorf("%s: a fork of a fork: %v, want %v", name, got, want1)
		}
		if err := errors.Join(f.Close(), other.Close()); err != nil {
			t.Error(err)
		}
		if _, err := f.Fork(); !errors.Is(err, replay.ErrClosed) {
			t.Errorf("%s: forking a closed session: %v", name, err)
		}
	}
}

// testSnapshot writes a snapshot and continues from it in another session, with the same
// logits and tokens.
func testSnapshot(t *testing.T, loaded loader) { snapshot(t, loaded, "llama", "mistral") }

func snapshot(t *testing.T, loaded loader, names ...string) {
	for _, name := range names {
		m := loaded(t, name, 32, compiler.Options{})
		s := session(t, m, replay.SessionOptions{Chain: 7})
		var empty bytes.Buffer
		if err := s.Snapshot(&empty); err != nil {
			t.Fatal(err)
		}
		generate(t, s, prompt(300), 20)
		var b bytes.Buffer
		if err := s.Snapshot(&b); err != nil {
			t.Fatal(err)
		}
		b.WriteString("behind")
		r, err := m.Restore(&b, replay.SessionOptions{Chain: 40})
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != "behind" {
			t.Errorf("%s: %d of the bytes after the snapshot are left", name, b.Len())
		}
		if r.Len() != s.Len() || !slices.Equal(logits(t, r), logits(t, s)) {
			t.Errorf("%s: %d positions of %d, or other logits", name, r.Len(), s.Len())
		}
		got, want := generate(t, r, []int32{9}, 60), generate(t, s, []int32{9}, 60)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		none, err := m.Restore(&empty, replay.SessionOptions{})
		if err != nil || none.Len() != 0 {
			t.Fatalf("%s: an empty context: %v", name, err)
		}
		if _, _, err := none.Chain(context.Background(), 1); !errors.Is(err, replay.ErrNothingPending) {
			t.Errorf("%s: a chain in an empty context: %v", name, err)
		}
		if err := none.Close(); err != nil {
			t.Error(err)
		}
	}
}

// testCloseModel closes a model while sessions decode and others are created: all calls end
// with ErrClosed.
func testCloseModel(t *testing.T, loaded loader) {
	m := loaded(t, "llama", 32, compiler.Options{})
	var wg sync.WaitGroup
	started := make(chan bool, 4)
	for range 4 {
		wg.Go(func() {
			tell := sync.OnceFunc(func() { started <- true })
			defer tell()
			for {
				s, err := m.NewSession(replay.SessionOptions{Chain: 400})
				if err == nil {
					_, _, err = s.Prompt(context.Background(), prompt(9))
				}
				tell()
				if err == nil {
					_, _, err = s.Chain(context.Background(), 400)
				}
				if err == nil {
					err = s.Close()
				}
				if err != nil {
					if err != replay.ErrClosed {
						t.Errorf("%v, want ErrClosed", err)
					}
					return
				}
			}
		})
	}
	for range 4 {
		<-started
	}
	wg.Go(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if _, err := m.NewSession(replay.SessionOptions{}); err != replay.ErrClosed {
		t.Errorf("a new session: %v", err)
	}
	if m.Memory() != (replay.Memory{}) {
		t.Errorf("%+v is still allocated", m.Memory())
	}
}
