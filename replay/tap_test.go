package replay_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// watch returns a tap that shows every command of a table to f with its float32 results.
func watch(t *testing.T, tab *table.Table, f func(program string, cmd int, step table.Step, values [][]float32)) *replay.Tap {
	t.Helper()
	tap := &replay.Tap{Cmds: make([]bool, len(tab.Cmds))}
	of := make([]*table.Program, len(tab.Cmds))
	for i := range tab.Programs {
		p := &tab.Programs[i]
		for c := range p.Count {
			tap.Cmds[p.First+c], of[p.First+c] = true, p
		}
	}
	tap.Show = func(cmd int, step *table.Step, read replay.Reader) error {
		all, err := tab.Written(cmd, of[cmd], step)
		if err != nil {
			return err
		}
		env, err := tab.EnvAt(cmd, of[cmd], step)
		if err != nil {
			return err
		}
		if row, ok := env.Value("behind"); ok && row > 0 && row >= uint64(step.Rows) {
			all = nil // an inactive row
		}
		var values [][]float32
		for _, w := range all {
			b := make([]byte, w.Size())
			if err := read(w.Slot, w.Offset, b); err != nil {
				return err
			}
			v := make([]float32, len(b)/4)
			for i := range v {
				v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
			}
			values = append(values, v)
		}
		f(of[cmd].Name, cmd, *step, values)
		return nil
	}
	return tap
}

// testTaps taps every command of a prompt, of chains and of speculative decoding. The tokens must be
// those without taps, each token must show each command of its program once and in order, and the
// logits that the tap reads must be those of the session.
func testTaps(t *testing.T, loaded loader) {
	m := loaded(t, "llama", 16, compiler.Options{Context: 128, Draft: 4})
	ids := []int32{5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8} // two chunks
	want := generate(t, session(t, m, replay.SessionOptions{Chain: 4}), ids, 9)
	tab := m.Table()
	for _, speculate := range []bool{false, true} {
		s := session(t, m, replay.SessionOptions{Chain: 4})
		if err := s.SetSpeculation(speculate); err != nil {
			t.Fatal(err)
		}
		var order []int
		var last []float32
		seen := map[string]int{}
		err := s.SetTap(watch(t, tab, func(program string, cmd int, step table.Step, values [][]float32) {
			order = append(order, cmd)
			seen[program]++
			for _, v := range values {
				if i := slices.IndexFunc(v, func(x float32) bool { return x != x }); i >= 0 {
					t.Errorf("command %d (%s): value %d of %d is NaN", cmd, tab.Label(cmd), i, len(v))
				}
			}
			if tab.Label(cmd) == "out.logits" {
				last = slices.Clone(values[0])
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		if got := generate(t, s, ids, 9); !slices.Equal(got, want) {
			t.Errorf("speculation %v: %v with a tap, %v without", speculate, got, want)
		}
		for name, n := range seen {
			p, _, _ := tab.Program(name)
			if name != "verify" && n%int(p.Count) != 0 || name == "prefill" && n != 2*int(p.Count) || name == "decode" && !speculate && n != 8*int(p.Count) {
				t.Errorf("speculation %v: %d commands of %s, which has %d", speculate, n, name, p.Count)
			}
		}
		if seen["verify"] > 0 && !speculate || len(order) == 0 {
			t.Errorf("speculation %v: %v", speculate, seen)
		}
		for i := 1; i < len(order); i++ { // programs follow each other; in one, commands are in order
			if order[i] != order[i-1]+1 && !slices.ContainsFunc(tab.Programs, func(p table.Program) bool { return int(p.First) == order[i] }) {
				t.Fatalf("command %d follows command %d", order[i], order[i-1])
			}
		}
		if !speculate {
			if got := logits(t, s); !slices.Equal(got, last) {
				t.Error("the tap reads other logits than the session")
			}
		}
		if err := s.SetTap(nil); err != nil {
			t.Fatal(err)
		}
		n := len(order)
		if generate(t, s, []int32{3}, 3); len(order) != n {
			t.Error("commands were shown after the tap was removed")
		}
	}
	testTapEnds(t, m, ids)
}

// testTapEnds ends tapped submissions by a stop token, by errors and by a cancelled context.
func testTapEnds(t *testing.T, m *replay.Model, ids []int32) {
	tab := m.Table()
	out := generate(t, session(t, m, replay.SessionOptions{Chain: 8}), ids, 6)
	stop := out[3]
	s := session(t, m, replay.SessionOptions{Chain: 8, StopIDs: []int32{stop}})
	tokens := 0
	p, _, _ := tab.Program(table.ProgramDecode)
	count := watch(t, tab, func(program string, cmd int, _ table.Step, _ [][]float32) {
		if cmd == int(p.First) {
			tokens++
		}
	})
	if err := s.SetTap(count); err != nil {
		t.Fatal(err)
	}
	next, stopped, err := s.Prompt(t.Context(), ids)
	if err != nil || next != out[0] || stopped {
		t.Fatal(next, stopped, err)
	}
	got, stopped, err := s.Chain(t.Context(), 8)
	if at := slices.Index(out, stop); err != nil || !stopped || len(got) != at || tokens != at {
		t.Errorf("%v, stopped %v, %d tokens were computed, %v; without a tap %v", got, stopped, tokens, err, out)
	}

	s = session(t, m, replay.SessionOptions{Chain: 8})
	enough := errors.New("enough")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, c := range []struct {
		show func() error
		want func(error) bool
	}{
		{func() error { return enough }, func(err error) bool { return errors.Is(err, enough) }},
		{func() error { panic("lunch") }, func(err error) bool { return err != nil && strings.Contains(err.Error(), "lunch") }},
		{func() error { cancel(); time.Sleep(50 * time.Millisecond); return nil }, func(err error) bool { return errors.Is(err, context.Canceled) }},
	} {
		tap := &replay.Tap{Cmds: make([]bool, len(tab.Cmds)), Show: func(int, *table.Step, replay.Reader) error { return c.show() }}
		tap.Cmds[p.First+1] = true
		if err := s.SetTap(nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Reset(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Prompt(t.Context(), ids); err != nil {
			t.Fatal(err)
		}
		if err := s.SetTap(tap); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Chain(ctx, 8); !c.want(err) {
			t.Errorf("%v", err)
		}
	}
	if err := s.SetTap(nil); err != nil {
		t.Fatal(err)
	}
	if got := generate(t, s, ids, 6); !slices.Equal(got, out) && s.Len() == len(ids)+5 {
		t.Errorf("afterwards: %v, want %v", got, out)
	}
}
