package replay_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// speculating returns a session that has prefilled ids and uses speculative decoding. Random
// models do not repeat themselves, so the test overwrites the token ring: it replaces ids with
// tokens that will follow, except for some. Decoding does not depend on these entries, because
// their K and V are already in the caches.
func speculating(t testing.TB, m *replay.Model, o replay.SessionOptions, ids, follow []int32) *replay.Session {
	t.Helper()
	s := session(t, m, o)
	next, _, err := s.Prompt(context.Background(), ids)
	if err != nil || next != follow[0] {
		t.Fatalf("%d follows the prompt, want %d: %v", next, follow[0], err)
	}
	var ring []byte
	for i, id := range follow[:len(ids)] {
		if i%29 == 20 {
			id ^= 1
		}
		ring = binary.LittleEndian.AppendUint32(ring, uint32(id))
	}
	_, tokens, _ := m.Table().Slot(table.SlotTokens)
	if err := errors.Join(m.Device().Write(s.ID(), tokens, 0, ring), s.SetSpeculation(true)); err != nil {
		t.Fatal(err)
	}
	return s
}

// testSpeculate checks that speculative decoding gives the tokens of plain decoding for all
// chain lengths, and with rotating caches that are longer and shorter than a draft.
func testSpeculate(t *testing.T, loaded loader) {
	rejected := 0
	for _, c := range []struct {
		model        string
		chunk, draft int
	}{{"qwen3", 64, 3}, {"mistral", 32, 4}, {"mistral", 2, 7}} {
		m := loaded(t, c.model, c.chunk, compiler.Options{Draft: c.draft, Context: 110})
		ids := prompt(50)
		n := int(m.Table().Header.Context) - len(ids) + 1
		want := generate(t, session(t, m, replay.SessionOptions{Chain: 16}), ids, n)
		for _, chain := range []int{1, 10, 64} {
			s := speculating(t, m, replay.SessionOptions{Chain: chain}, ids, want)
			if got := more(t, s, n-1); !slices.Equal(got, want[1:]) {
				t.Errorf("%+v: chains of %d: %v\nwant %v", c, chain, got, want[1:])
			}
			if _, _, err := s.Chain(context.Background(), 1); !errors.Is(err, replay.ErrContextFull) {
				t.Errorf("%+v: chains of %d: past the end: %v", c, chain, err)
			}
			st := s.Stats()
			if verifies := chain > c.draft; st.Accepted > st.Drafted || verifies != (st.Accepted > 0) {
				t.Errorf("%+v: chains of %d: accepted %d of %d", c, chain, st.Accepted, st.Drafted)
			}
			rejected += st.Drafted - st.Accepted
			t.Logf("%+v: chains of %d: accepted %d of %d, %d submissions", c, chain, st.Accepted, st.Drafted, st.Submissions)
		}
	}
	if rejected == 0 {
		t.Error("no draft was wrong")
	}
}

// testSpeculateLogits checks that chains with verify leave exactly the tokens and the
// logits of plain decoding.
func testSpeculateLogits(t *testing.T, loaded loader) {
	m := loaded(t, "qwen3", 32, compiler.Options{Draft: 3, Context: 64})
	ids := prompt(20)
	plain := session(t, m, replay.SessionOptions{Chain: 16})
	all := generate(t, plain, ids, 20)
	s := speculating(t, m, replay.SessionOptions{Chain: 16}, ids, all)
	if got := more(t, s, 19); !slices.Equal(got, all[1:]) || s.Stats().Accepted == 0 {
		t.Errorf("%v, want %v; accepted %d", got, all[1:], s.Stats().Accepted)
	}
	var logits, want [512]float32
	if err := errors.Join(s.Logits(logits[:]), plain.Logits(want[:])); err != nil {
		t.Fatal(err)
	}
	if logits != want {
		t.Error("they leave other logits")
	}
}

// testSpeculateState checks that a session that has speculated behaves like one that has
// decoded: its logits, a rewind, a fork, a snapshot, another prompt, stop ids.
func testSpeculateState(t *testing.T, loaded loader) {
	ctx := context.Background()
	m := loaded(t, "qwen3", 32, compiler.Options{Draft: 3})
	ids := prompt(60)
	all := generate(t, session(t, m, replay.SessionOptions{Chain: 16}), ids, 62)
	s := speculating(t, m, replay.SessionOptions{Chain: 16}, ids, all)
	if got := more(t, s, 24); !slices.Equal(got, all[1:25]) {
		t.Fatalf("%v, want %v", got, all[1:25])
	}
	var logits, want [512]float32
	plain := session(t, m, replay.SessionOptions{Chain: 1})
	generate(t, plain, ids, 25)
	if err := errors.Join(s.Logits(logits[:]), plain.Logits(want[:])); err != nil {
		t.Fatal(err)
	}
	if logits != want {
		t.Error("a chain that verifies leaves other logits")
	}
	var saved bytes.Buffer
	if err := s.Snapshot(&saved); err != nil {
		t.Fatal(err)
	}
	restored, err := m.Restore(&saved, replay.SessionOptions{Chain: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer restored.Close()
	if err := errors.Join(restored.Logits(logits[:]), restored.SetSpeculation(true)); err != nil || logits != want {
		t.Errorf("a snapshot has other logits: %v", err)
	}
	fork, err := s.Fork()
	if err != nil {
		t.Fatal(err)
	}
	defer fork.Close()
	for name, s := range map[string]*replay.Session{"itself": s, "fork": fork, "restored": restored} {
		before := s.Stats().Accepted
		if got := more(t, s, 22); !slices.Equal(got, all[25:47]) || s.Stats().Accepted == before {
			t.Errorf("%s: %v, want %v; accepted %d, before %d", name, got, all[25:47], s.Stats().Accepted, before)
		}
		if err := s.Rewind(len(ids) + 20); err != nil {
			t.Fatal(err)
		}
		if got := more(t, s, 40); !slices.Equal(got, all[21:61]) {
			t.Errorf("%s after a rewind: %v, want %v", name, got, all[21:61])
		}
		if _, _, err := s.Reprompt(ctx, ids); err != nil {
			t.Fatal(err)
		}
		if got := more(t, s, 40); !slices.Equal(got, all[1:41]) {
			t.Errorf("%s after another prompt: %v, want %v", name, got, all[1:41])
		}
	}
	if err := s.SetSampling(replay.Sampling{Temperature: 1}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Chain(ctx, 8); !errors.Is(err, replay.ErrSpeculateSampled) {
		t.Errorf("sampled: %v", err)
	}
	none := session(t, loaded(t, "qwen3", 32, compiler.Options{}), replay.SessionOptions{})
	if err := none.SetSpeculation(true); !errors.Is(err, replay.ErrNoVerify) {
		t.Errorf("without drafts: %v", err)
	}
}

// testSpeculateStop checks that a stop id ends a chain at any place in a draft.
func testSpeculateStop(t *testing.T, loaded loader) {
	m := loaded(t, "qwen3", 32, compiler.Options{Draft: 3})
	ids := prompt(45)
	all := generate(t, session(t, m, replay.SessionOptions{Chain: 16}), ids, 45)
	stopped := 0
	for at, id := range all {
		if at < 10 || slices.Index(all, id) != at {
			continue
		}
		s := speculating(t, m, replay.SessionOptions{Chain: 16, StopIDs: []int32{id}}, ids, all)
		var got []int32
		for stop := false; !stop && len(got) < len(all); {
			tokens, stops, err := s.Chain(context.Background(), len(all))
			if err != nil {
				t.Fatal(err)
			}
			got, stop = append(got, tokens...), stops
		}
		if !slices.Equal(got, all[1:at+1]) {
			t.Errorf("stopped by %d: %v, want %v", id, got, all[1:at+1])
		}
		if stopped++; stopped == 5 {
			break
		}
	}
}

// testSpeculateCancel cancels chains with verify: the tokens before and after the
// cancellation are those of plain decoding.
func testSpeculateCancel(t *testing.T, loaded loader) {
	m := loaded(t, "mistral", 32, compiler.Options{Draft: 3, Context: 210})
	ids := prompt(100)
	all := generate(t, session(t, m, replay.SessionOptions{Chain: 16}), ids, 100)
	s := speculating(t, m, replay.SessionOptions{Chain: 64}, ids, all)
	got := all[:1:1]
	for len(got) < 95 {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			cancel()
		}()
		tokens, _, err := s.Chain(ctx, 95-len(got))
		<-done
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		got = append(got, tokens...)
		got = append(got, more(t, s, min(9, 95-len(got)))...)
	}
	if !slices.Equal(got, all[:95]) {
		t.Errorf("%v, want %v", got, all[:95])
	}
}

// more returns the next n tokens.
func more(t testing.TB, s *replay.Session, n int) (out []int32) {
	t.Helper()
	for len(out) < n {
		tokens, _, err := s.Chain(context.Background(), n-len(out))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, tokens...)
	}
	return out
}
