package replay_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// kvActive returns the bytes of the KV caches of all sessions.
func kvActive(m *replay.Model) uint64 { return m.Memory().Kinds[table.SlotKV].Active }

// testRelease releases the caches of idle sessions between prompts, chains, rewinds, forks and
// snapshots, with rings and without. The tokens must be those without a release, since the table is
// for batching, and the memory must be given back.
func testRelease(t *testing.T, loaded loader) {
	for _, name := range []string{"llama", "mistral"} { // mistral has rings
		release(t, loaded(t, name, 16, compiler.Options{Context: 512, Batching: true}), name == "llama")
	}
}

func release(t *testing.T, m *replay.Model, frees bool) {
	follow := func(release func()) (all []int32) {
		t.Helper()
		add := func(s *replay.Session, tokens []int32) {
			all = append(all, tokens...)
			for _, x := range logits(t, s)[:8] {
				all = append(all, int32(math.Float32bits(x)))
			}
		}
		s := session(t, m, replay.SessionOptions{Chain: 7})
		all = generate(t, s, prompt(300), 20)
		release()
		more, _, err := s.Chain(t.Context(), 5)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, more...)
		release()
		f, err := s.Fork()
		if err != nil {
			t.Fatal(err)
		}
		var saved bytes.Buffer
		if err := f.Snapshot(&saved); err != nil {
			t.Fatal(err)
		}
		release()
		r, err := m.Restore(&saved, replay.SessionOptions{Chain: 7})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []*replay.Session{f, s, r} {
			add(s, generate(t, s, []int32{9, 8}, 8))
			release()
			if err := s.Rewind(s.Len() - 2); err != nil {
				t.Fatal(err)
			}
			add(s, generate(t, s, []int32{9}, 4))
		}
		release()
		next, _, err := s.Reprompt(t.Context(), prompt(200))
		if err != nil {
			t.Fatal(err)
		}
		add(s, []int32{next})
		release()
		if kv, err := s.KV(m.Table().KVCaches()[0].Slot); err != nil || kv[0][s.Len()-1] == nil {
			t.Errorf("the cache after a release: %v", err)
		}
		if err := errors.Join(f.Close(), r.Close(), s.Close()); err != nil {
			t.Error(err)
		}
		return all
	}
	want := follow(func() {})
	released := uint64(0)
	got := follow(func() {
		n, err := m.ReleaseIdle(0)
		if err != nil {
			t.Error(err)
		}
		released += n
	})
	if !slices.Equal(got, want) || frees && released == 0 {
		t.Errorf("%d bytes are released; the tokens are %v, without a release %v", released, got, want)
	}
	if got := follow(func() {
		if _, err := m.ReleaseIdle(time.Hour); err != nil {
			t.Error(err)
		}
	}); !slices.Equal(got, want) {
		t.Errorf("rows are trimmed: %v, want %v", got, want)
	}
	m.ResetPeaks()
	if u := m.Memory().Kinds[table.SlotKV]; u.Peak != u.Active {
		t.Errorf("%+v after the peaks were reset", u)
	}
}

// TestReleaseBusy checks that a session in use keeps its cache, and a held one.
func TestReleaseBusy(t *testing.T) {
	m := loadedOnCPU(t, "llama", 16, compiler.Options{Context: 512})
	s := session(t, m, replay.SessionOptions{})
	generate(t, s, prompt(100), 3)
	before := kvActive(m)
	err := s.Hold(func(*replay.Session) error {
		n, err := m.ReleaseIdle(0)
		if n != 0 || kvActive(m) != before {
			t.Errorf("%d bytes of a held session are released", n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := m.ReleaseIdle(time.Hour); n != 0 || err != nil {
		t.Errorf("%d bytes of a session that was just used are released, %v", n, err)
	}
	if n, err := m.ReleaseIdle(0); n == 0 || err != nil || kvActive(m) >= before {
		t.Errorf("%d bytes are released, %v", n, err)
	}
}

// TestKVLimit opens more sessions than the limit of KV caches has room for. Those that are idle
// longest must lose their caches, a session alone that needs more must get a *LimitError, and the
// limit must never be exceeded.
func TestKVLimit(t *testing.T) {
	tab, dir := compiled(t, "llama", 16, compiler.Options{Context: 512, Batching: true})
	whole := uint64(0)
	for _, c := range tab.KVCaches() {
		whole += c.Size()
	}
	limit := whole * 3 / 4
	m := loadedWith(t, tab, dir, replay.LoadOptions{KVLimit: limit})
	within := func() {
		t.Helper()
		if n := kvActive(m); n > limit {
			t.Errorf("%d bytes of KV caches, the limit is %d", n, limit)
		}
	}
	alone := generate(t, session(t, m, replay.SessionOptions{}), prompt(200), 30)
	var all []*replay.Session
	for range 4 {
		s := session(t, m, replay.SessionOptions{Chain: 5})
		if got := generate(t, s, prompt(200), 20); !slices.Equal(got, alone[:20]) {
			t.Errorf("%v, want %v", got, alone[:20])
		}
		within()
		all = append(all, s)
	}
	for _, s := range all {
		next := alone[20:]
		for len(next) > 0 {
			got, _, err := s.Chain(t.Context(), len(next))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, next[:len(got)]) {
				t.Errorf("%v, want %v", got, next)
			}
			next = next[len(got):]
		}
		within()
	}
	s := session(t, m, replay.SessionOptions{})
	_, _, err := s.Prompt(t.Context(), prompt(500))
	var over *replay.LimitError
	if !errors.As(err, &over) || over.Kind != table.SlotKV || over.Limit != limit || over.Need <= limit || s.Len() != 0 {
		t.Errorf("a prompt over the limit: %v, %d positions", err, s.Len())
	}
	within()
	if got := generate(t, s, prompt(200), 5); !slices.Equal(got, alone[:5]) {
		t.Errorf("afterwards: %v, want %v", got, alone[:5])
	}
}
