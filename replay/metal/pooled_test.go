//go:build softmetal

package metal_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/batchtest"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// sequences is a tiny model for 10 sequences, with batch programs for 8 and 10 rows.
func sequences(t *testing.T) model {
	t.Helper()
	return compiled(t, "tiny/llama", 128, compiler.Options{Sequences: 10, Sampler: compiler.SamplerNone})
}

// prepared returns a device with a session whose recordings are made.
func prepared(t *testing.T, o metal.Options, m model) (*metal.Device, replay.SessionID) {
	t.Helper()
	d := load(t, o, m)
	id, err := d.NewSession()
	if err == nil {
		err = d.Reserve(id, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d, id
}

// TestBatchChain decodes chains of batches whose rows end at different tokens, some by a stop id. What
// follows the last row's end is not executed.
func TestBatchChain(t *testing.T) {
	m := sequences(t)
	for _, mode := range metal.Modes() {
		checked(t)
		d, id := prepared(t, options(t, mode), m)
		b := batchtest.NewChain(m.t, id, 3, 3, 5, 2)
		free := b.Ring(4, 6)
		res, err := submit(d, &b.Submission)
		if err != nil || res.Count != 10 || res.Stopped || res.Elapsed <= 0 {
			t.Fatalf("%s: %+v, %v", mode, res, err)
		}
		for r, n := range []uint32{3, 5, 2} {
			if got := b.Row(r); got.Count != n || got.TokenIndex != n || got.KVLen != n+1 || got.Stop != sequence.StopUntil || got.Sequence != uint32(3+r) {
				t.Errorf("%s, row %d: %+v", mode, r, got)
			}
		}
		third, alike := free[4*3:][:4], 1
		for !bytes.Equal(free[4*alike:][:4], third) {
			alike++
		}
		b = batchtest.NewChain(m.t, id, 4, 40)
		b.Stop(4, third)
		before := soft.Dispatches()
		if res, err := submit(d, &b.Submission); err != nil || res.Count != alike || b.Row(0).Stop != sequence.StopID {
			t.Errorf("%s, a stop id: %+v, %+v, %v, want %d tokens", mode, res, b.Row(0), err, alike)
		}
		// Of the tokens after the stop, only the patches run.
		p := &m.t.Programs[b.Runs[0].Program]
		if n := soft.Dispatches() - before; mode == "record" && n > alike*int(p.Count+1)+40 {
			t.Errorf("%d commands for %d tokens of %d", n, alike, p.Count)
		}
		if res, err := submit(d, &batchtest.NewChain(m.t, id, 5, 2).Submission); err != nil || res.Count != 2 {
			t.Errorf("%s: after a stop: %+v, %v", mode, res, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestPooledCalls counts Metal calls. Everything is recorded when the session is prepared, whatever rows,
// sequences and positions follow; a chain whose cost is known is one command buffer, however many rows it has.
func TestPooledCalls(t *testing.T) {
	checked(t)
	m := sequences(t)
	for _, mode := range metal.Modes() {
		d, id := prepared(t, whole(t, mode), m)
		for i, c := range [][]int{{0, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 4}, {2, 5, 1}, {0, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}} {
			b := batchtest.NewChain(m.t, id, c[0], c[1:]...)
			calls, _, _ := counted(t, d, &b.Submission)
			for _, name := range []string{"newIndirectCommandBufferWithDescriptor:maxCommandCount:options:", "indirectComputeCommandAtIndex:", "newBufferWithLength:options:"} {
				if calls[name] != 0 {
					t.Errorf("%s, submission %d: %d calls of %s", mode, i, calls[name], name)
				}
			}
			// The first two make the cost of a token of each program known.
			if i >= 2 && calls["commit"] != 1 {
				t.Errorf("%s, submission %d: %d command buffers for %d tokens of %d rows", mode, i, calls["commit"], b.Runs[0].Count, b.Rows)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestPooledBound checks that the command buffers of a chain of batches are as few as the time bound allows.
func TestPooledBound(t *testing.T) {
	checked(t)
	m := sequences(t)
	for _, mode := range metal.Modes() {
		o := options(t, mode)
		d, id := prepared(t, o, m)
		var one time.Duration
		for range 2 {
			res, err := submit(d, &batchtest.NewChain(m.t, id, 0, 1, 1).Submission)
			if err != nil {
				t.Fatal(err)
			}
			one = res.Elapsed
		}
		const n = 12
		b := batchtest.NewChain(m.t, id, 0, n, n)
		calls, _, _ := counted(t, d, &b.Submission)
		fit := max(1, int(o.ChainTime/2/one)) // tokens
		if got, most := calls["commit"], 4*((n+fit-1)/fit)+2; got < 1 || got > most {
			t.Errorf("%s: %d command buffers for %d tokens of %v, want at most %d", mode, got, n, one, most)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestPooledPieces decodes a batch whose tokens take longer than a command buffer may. They are cut between
// commands, and the tokens are the same.
func TestPooledPieces(t *testing.T) {
	m := sequences(t)
	for _, mode := range metal.Modes() {
		checked(t)
		var got [2][]byte
		for i, bound := range []time.Duration{time.Minute, 2 * time.Millisecond} {
			o := options(t, mode)
			o.ChainTime = bound
			d, id := prepared(t, o, m)
			for range 2 { // the first makes the cost known
				b := batchtest.NewChain(m.t, id, 2, 4, 3)
				got[i] = b.Ring(2, 5)
				calls, _, _ := counted(t, d, &b.Submission)
				if b.Row(0).Count != 4 || b.Row(1).Count != 3 || i == 1 && calls["commit"] <= 4 {
					t.Errorf("%s, %v: %+v, %d command buffers", mode, bound, b.Row(0), calls["commit"])
				}
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		if !bytes.Equal(got[0], got[1]) {
			t.Errorf("%s: tokens %d in pieces, %d whole", mode, got[1], got[0])
		}
	}
}

// TestPooledMoves copies pages between submissions. A sequence continues with the copy as the first one did.
func TestPooledMoves(t *testing.T) {
	checked(t)
	m := sequences(t)
	d, id := prepared(t, options(t, "record"), m)
	const n, at = 8, 5
	b := batchtest.NewChain(m.t, id, 1, n)
	want := b.Ring(1, n+1)
	if _, err := submit(d, &b.Submission); err != nil {
		t.Fatal(err)
	}
	l := batchtest.Layout(m.t)
	copied := batchtest.NewChain(m.t, id, 6, n)
	for i := range m.t.Slots {
		if s := &m.t.Slots[i]; s.Kind == table.SlotKV {
			page := s.Size / uint64(l.Pages)
			copied.Moves = append(copied.Moves, replay.Move{Slot: uint32(i), To: 12 * page, From: 2 * page, Size: page})
		}
	}
	_, ring, _ := m.t.Slot(table.SlotTokens)
	_, step, _ := m.t.Slot(table.SlotStep)
	var row [sequence.RowBytes]byte
	(&sequence.Row{Sequence: 6, Position: at, KVLen: at + 1, TokenIndex: at, Until: n}).Put(&row)
	copied.Writes = append(copied.Writes, replay.Transfer{Slot: step, Offset: l.RowAt(0), Bytes: row[:]},
		replay.Transfer{Slot: ring, Offset: batchtest.RingAt(m.t, 6, 0), Bytes: want[:4*(at+1)]})
	got := copied.Ring(6, n+1)
	if res, err := submit(d, &copied.Submission); err != nil || res.Count != n-at || !bytes.Equal(got, want) {
		t.Errorf("%+v, %v\n%d, want\n%d", res, err, got, want)
	}
	if mem := d.Memory(); mem.Kinds[table.SlotKV].Active == 0 || mem.Kinds[table.SlotKV].Active > mem.Sessions {
		t.Errorf("%+v", mem)
	}
}

// TestPooledCancel cancels chains of batches at several times. Row records and tokens must agree.
func TestPooledCancel(t *testing.T) {
	m := sequences(t)
	const n = 20
	for _, mode := range metal.Modes() {
		checked(t)
		d, id := prepared(t, options(t, mode).ForTest(2, false, true), m)
		b := batchtest.NewChain(m.t, id, 0, n, n)
		want := b.Ring(1, n+1)
		start := time.Now()
		if _, err := submit(d, &b.Submission); err != nil {
			t.Fatal(err)
		}
		all := time.Since(start)
		for _, after := range []time.Duration{0, all / 4, all / 2} {
			b := batchtest.NewChain(m.t, id, 0, n, n)
			got := b.Ring(1, n+1)
			ticket, err := d.Submit(&b.Submission)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(after)
			d.Cancel(ticket)
			res, err := d.Wait(ticket)
			if err != nil || res.Stopped || res.Count > 2*n {
				t.Fatalf("%s: %+v, %v", mode, res, err)
			}
			if res.Count == 0 {
				continue // it may not have begun: then nothing is read
			}
			if k := int(b.Row(1).Count); 2*k != res.Count || !bytes.Equal(got[:4*(k+1)], want[:4*(k+1)]) {
				t.Errorf("%s: %+v after %d tokens", mode, b.Row(1), res.Count)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestPooledFaults makes each Metal call of a chain of batches fail in turn. Nothing may stay alive.
func TestPooledFaults(t *testing.T) {
	m := sequences(t)
	for _, mode := range metal.Modes() {
		checked(t)
		o := options(t, mode)
		failing := 0 // calls of the last chain that may fail
		run := func() error {
			d, err := metal.New(o)
			if err != nil {
				return err
			}
			if err := d.Load(bg, m.t, m.src, replay.LoadOptions{}); err != nil {
				return errors.Join(err, d.Close())
			}
			id, err := d.NewSession()
			if err == nil {
				before := soft.Fallible()
				_, err = submit(d, &batchtest.NewChain(m.t, id, 0, 2, 1).Submission)
				failing = soft.Fallible() - before
			}
			if err == nil {
				err = d.CloseSession(id)
			}
			return errors.Join(err, d.Close())
		}
		before := soft.Fallible()
		if err := run(); err != nil {
			t.Fatal(err)
		}
		calls := soft.Fallible() - before
		objects, size := soft.Live()
		for n := calls - failing + 1; n <= calls; n++ {
			for _, code := range []int{2, 11} {
				soft.FailAt(n, code)
				err := run()
				call := soft.Failed()
				soft.FailAt(0, 0)
				if call == "" {
					continue
				}
				fault(t, fmt.Sprintf("%s, call %d, %s, code %d", mode, n, call, code), call, code, err)
				if o, b := soft.Live(); o != objects || b != size {
					t.Fatalf("%s, %s: %d objects and %d bytes are left", mode, call, o-objects, b-size)
				}
			}
		}
	}
}
