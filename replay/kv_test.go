package replay_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/replay"
)

// kvKinds are the element types of caches besides float16.
var kvKinds = []struct {
	name string
	o    compiler.Options
}{
	{"q8_0", compiler.Options{KV: "q8_0"}},
	{"q8_0 with sinks", compiler.Options{KV: "q8_0", KVSinks: 4, KVWindow: 40}},
}

// withKind returns a loader of models with a given type of cache.
func withKind(loaded loader, kind compiler.Options) loader {
	return func(t testing.TB, name string, chunk int, o compiler.Options) *replay.Model {
		t.Helper()
		o.KV, o.KVSinks, o.KVWindow = kind.KV, kind.KVSinks, kind.KVWindow
		return loaded(t, name, chunk, o)
	}
}

// testKVKinds grows, forks and saves caches of every type.
func testKVKinds(t *testing.T, loaded loader) {
	for _, kind := range kvKinds {
		with := withKind(loaded, kind.o)
		t.Run(kind.name, func(t *testing.T) {
			if kind.o.KVWindow == 0 { // else there is little to grow
				t.Run("Growth", func(t *testing.T) { testGrowth(t, with) })
			}
			t.Run("Fork", func(t *testing.T) { fork(t, with, "llama") })
			t.Run("Snapshot", func(t *testing.T) { snapshot(t, with, "llama") })
		})
	}
}

// TestRepromptKinds shortens contexts with caches of every type. Rows that the cache still
// holds must be reused; if rows that the rest needs are lost, everything must be prefilled.
func TestRepromptKinds(t *testing.T) {
	for _, kind := range kvKinds {
		with := withKind(loadedOnCPU, kind.o)
		t.Run(kind.name, func(t *testing.T) {
			if kind.o.KVWindow == 0 {
				testReprompt(t, with)
			} else {
				repromptRotating(t, with, "llama")
			}
		})
	}
}

// TestRollover decodes past the end of the context, in chains of several lengths, and forks
// and saves contexts after a rollover. Then Reprompt with the whole text must prefill
// everything except its common beginning with the new context.
func TestRollover(t *testing.T) {
	const size, sinks, window = 96, 4, 40
	m := loadedOnCPU(t, "llama", 32, compiler.Options{Context: size, KV: "q8_0"})
	roll := replay.Rollover{Sinks: sinks, Window: window}
	var want []int32
	var wantLogits []float32
	for _, chain := range []int{96, 1, 7} {
		s := session(t, m, replay.SessionOptions{Chain: chain, Rollover: roll})
		got := generate(t, s, prompt(60), 150)
		if want == nil {
			want, wantLogits = got, logits(t, s)
		}
		if !slices.Equal(got, want) || !slices.Equal(logits(t, s), wantLogits) {
			t.Errorf("chains of %d: %v, want %v", chain, got, want)
		}
		// The prompt prefills 60 positions. At each of the 3 rollovers, sinks+window positions
		// are prefilled again.
		if st := s.Stats(); st.Prefilled != 60+3*(sinks+window) || s.Len() != 60+149-3*(size-sinks-window) {
			t.Errorf("chains of %d: %+v and %d positions", chain, st, s.Len())
		}
	}
	s := session(t, m, replay.SessionOptions{Chain: 7, Rollover: roll})
	first := generate(t, s, prompt(60), 80)
	f, err := s.Fork()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	r, err := m.Restore(&b, replay.SessionOptions{Chain: 30, Rollover: roll})
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []*replay.Session{f, s, r} {
		got := slices.Clone(first)
		for len(got) < len(want) {
			tokens, _, err := to.Chain(context.Background(), len(want)-len(got))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, tokens...)
		}
		if !slices.Equal(got, want) || !slices.Equal(logits(t, to), wantLogits) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	if err := errors.Join(f.Close(), r.Close()); err != nil {
		t.Error(err)
	}
	// The context still begins like the whole prompt, up to the first dropped token, token 5.
	whole := append(prompt(60), want[:20]...)
	out, prefilled, reused := follow(t, s, whole, 10)
	alone, _, _ := follow(t, session(t, m, replay.SessionOptions{}), whole, 10)
	if reused != sinks || prefilled != len(whole)-sinks || !slices.Equal(out, alone) {
		t.Errorf("a whole prompt: %d tokens prefilled and %d reused of %d; %v, alone %v", prefilled, reused, len(whole), out, alone)
	}
	if _, _, err := s.Reprompt(context.Background(), prompt(size+1)); !errors.Is(err, replay.ErrContextFull) || s.Len() != len(whole)+9 {
		t.Errorf("a whole prompt past the context: %v, %d positions", err, s.Len())
	}
}

// TestRolloverDraws samples past the end of the context. After a rollover a position must draw
// differently. The draws must not depend on the chain length, forks or restored snapshots, and
// must start again with another prompt.
func TestRolloverDraws(t *testing.T) {
	m := loadedOnCPU(t, "qwen3", 64, compiler.Options{Context: 64})
	// Almost equal logits: the token at each position is determined by the draw.
	set := replay.Sampling{Temperature: 100, Seed: 3}
	draw := func(s *replay.Session, n int) (out []int32) {
		t.Helper()
		for len(out) < n {
			tokens, _, err := s.Chain(t.Context(), n-len(out))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, tokens...)
		}
		return out
	}
	begin := func(chain int) *replay.Session {
		t.Helper()
		s := session(t, m, replay.SessionOptions{Chain: chain, Rollover: replay.Rollover{Sinks: 2, Window: 30}})
		if err := s.SetSampling(set); err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := begin(5)
	first := generate(t, s, prompt(20), 40)
	f, err := s.Fork()
	if err != nil {
		t.Fatal(err)
	}
	want := draw(s, 80)
	if got := draw(f, 80); !slices.Equal(got, want) {
		t.Errorf("a fork draws %v, want %v", got, want)
	}
	if got := generate(t, begin(64), prompt(20), 120)[40:]; !slices.Equal(got, want) {
		t.Errorf("chains of 64 draw %v, want %v", got, want)
	}
	// The first rollover is after 44 tokens, the following ones after 32 tokens each.
	if same := common(want[5:37], want[37:69]); same > 8 {
		t.Errorf("%d of 32 draws are those of the same positions before: %v", same, want)
	}
	var b bytes.Buffer
	if err := f.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	r, err := m.Restore(&b, replay.SessionOptions{Rollover: replay.Rollover{Sinks: 2, Window: 30}})
	if err == nil {
		err = r.SetSampling(set)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, want := draw(r, 50), draw(s, 50); !slices.Equal(got, want) {
		t.Errorf("a restored session draws %v, want %v", got, want)
	}
	again, _, _ := follow(t, s, prompt(20), 40)
	if !slices.Equal(again, first) {
		t.Errorf("the first prompt once more draws %v, want %v", again, first)
	}
	if err := errors.Join(f.Close(), r.Close()); err != nil {
		t.Error(err)
	}
}

// common returns the number of equal leading elements of a and b.
func common(a, b []int32) (n int) {
	for i := range a {
		if a[i] == b[i] {
			n++
		}
	}
	return n
}
