package cuda

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/batchtest"
	"github.com/pianola-engine/pianola/internal/cuda/fake"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// sequences is a tiny model for 20 sequences, with batch programs for 8 and 20 rows.
func sequences(tb testing.TB) model {
	tb.Helper()
	return tinyWith(tb, "llama", compiler.Options{Context: 300, Sequences: 20, Pages: 60, LogProbs: true})
}

// useSequences does what use does, with a pooled table.
func useSequences(d *Device) error {
	id, err := d.NewSession()
	if err != nil {
		return err
	}
	if err := d.Reserve(id, 300); err != nil {
		return err
	}
	b := batchtest.NewChain(d.table, id, 0, 3, 2)
	_, kv := kvSlot(d.table)
	b.Moves = []replay.Move{{Slot: kv, To: 4096, From: 0, Size: 4096}}
	if _, err := submit(d, &b.Submission); err != nil {
		return err
	}
	b = batchtest.NewChain(d.table, id, 4, 5)
	b.Runs[0].Count = 2
	ticket, err := d.Submit(&b.Submission)
	if err != nil {
		return err
	}
	d.Cancel(ticket)
	if _, err := d.Wait(ticket); err != nil {
		return err
	}
	if err := errors.Join(d.Write(id, kv, 0, make([]byte, 64)), d.Read(id, kv, 0, make([]byte, 64))); err != nil {
		return err
	}
	return d.CloseSession(id)
}

// kvSlot returns a slot of KV pages.
func kvSlot(t *table.Table) (*table.Slot, uint32) {
	s, i, _ := t.Slot(table.SlotKV)
	return s, i
}

// prepared returns a device with a session whose recordings are made.
func prepared(tb testing.TB, drv *fake.Driver, mode string, m model) (*Device, replay.SessionID) {
	tb.Helper()
	d := load(tb, drv, mode, m)
	id, err := d.NewSession()
	if err == nil {
		err = d.Reserve(id, 1)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return d, id
}

// TestPooledKernels checks that Load refuses a pooled table without kernels for it.
func TestPooledKernels(t *testing.T) {
	drv := fake.New(t)
	m := fakeModules()
	m.Pooled = false
	d, err := New(Options{Library: drv.Path, Modules: m})
	if err != nil {
		t.Fatal(err)
	}
	tab := sequences(t)
	if err := d.Load(t.Context(), tab.t, tab.src, replay.LoadOptions{}); err == nil || !strings.Contains(err.Error(), "many sequences") {
		t.Errorf("%v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestBatchChain decodes chains of batches whose rows end at different tokens, some by a stop id. A chain
// ends soon after its last row.
func TestBatchChain(t *testing.T) {
	m := sequences(t)
	for _, mode := range Modes() {
		drv := fake.New(t)
		d, id := prepared(t, drv, mode, m)
		b := batchtest.NewChain(d.table, id, 3, 3, 6, 2)
		free := b.Ring(4, 8)
		res, err := submit(d, &b.Submission)
		if err != nil || res.Count != 11 || res.Stopped || res.Elapsed <= 0 {
			t.Fatalf("%s: %+v, %v", mode, res, err)
		}
		for r, n := range []uint32{3, 6, 2} {
			if got := b.Row(r); got.Count != n || got.TokenIndex != n || got.KVLen != n+1 || got.Stop != sequence.StopUntil || got.Sequence != uint32(3+r) {
				t.Errorf("%s, row %d: %+v", mode, r, got)
			}
		}
		// The third token of sequence 4 becomes a stop id of it.
		third := free[4*3:][:4]
		alike := 1
		for !bytes.Equal(free[4*alike:][:4], third) {
			alike++
		}
		b = batchtest.NewChain(d.table, id, 4, 200)
		b.Stop(4, third)
		before := drv.GraphLaunches()
		if res, err := submit(d, &b.Submission); err != nil || res.Count != alike || b.Row(0).Stop != sequence.StopID {
			t.Errorf("%s, a stop id: %+v, %+v, %v, want %d tokens", mode, res, b.Row(0), err, alike)
		}
		if n := drv.GraphLaunches() - before; mode != "encode" && (n < alike || n > alike+graphsAhead+flagEvery) {
			t.Errorf("%s: %d graphs are launched for %d of 200 tokens", mode, n, alike)
		}
		if res, err := submit(d, &batchtest.NewChain(d.table, id, 5, 4).Submission); err != nil || res.Count != 4 {
			t.Errorf("%s: after a stop: %+v, %v", mode, res, err)
		}
	}
}

// TestPooledCalls counts driver calls. Each program is recorded once, whatever the rows, sequences and
// positions; a submission waits for the GPU twice, and rows that lie near each other are read as one. The program of one
// row has graphs of several tokens, as ordinary decode has.
func TestPooledCalls(t *testing.T) {
	m := sequences(t)
	for _, mode := range []string{"record", "resident"} {
		drv := fake.New(t)
		d, id := prepared(t, drv, mode, m)
		for i, g := range d.recordings.of {
			if len(g) == 0 {
				t.Errorf("%s: program %s is not recorded", mode, m.t.Programs[i].Name)
			}
		}
		made := drv.Called()["cuGraphInstantiateWithFlags"]
		for _, c := range [][]int{{1, 4}, {0, 5, 1}, {2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}, {7, 2}, {0, 14}, {1, 14, 2}} {
			b := batchtest.NewChain(d.table, id, c[0], c[1:]...)
			for r := range b.Rows {
				b.Ring(c[0]+r, 4)
			}
			before := drv.Called()
			if _, err := submit(d, &b.Submission); err != nil {
				t.Fatal(err)
			}
			calls := drv.Called()
			for name := range calls {
				calls[name] -= before[name]
			}
			// Writes are copied one by one, and the step; reads are the records, the rings, the step and
			// the stop flag.
			count := int(b.Runs[0].Count)
			graphs, flags := count, (count-1)/flagEvery
			if b.Rows == 1 {
				graphs, flags = 0, (count-1)/graphTokens()[0]
				left := count
				for _, n := range graphTokens() {
					graphs, left = graphs+left/n, left%n
				}
			}
			if w, r := calls["cuMemcpyHtoDAsync"], calls["cuMemcpyDtoHAsync"]; w != len(b.Writes)+1 || r != 3+flags {
				t.Errorf("%s, %d rows: %d copies to the GPU, %d from it, for %d tokens", mode, b.Rows, w, r, count)
			}
			if calls["cuStreamSynchronize"] != 2 || calls["cuGraphLaunch"] != graphs {
				t.Errorf("%s, %d rows: %v", mode, b.Rows, calls)
			}
		}
		if n := drv.Called()["cuGraphInstantiateWithFlags"] - made; n != 0 {
			t.Errorf("%s: %d graphs are made again", mode, n)
		}
	}
}

// TestPooledExchange lets two sessions of a pooled table run in turn. Each must find the pages that it wrote, and
// only the second causes memory of its own.
func TestPooledExchange(t *testing.T) {
	drv := fake.New(t)
	d, first := prepared(t, drv, "record", sequences(t))
	slot, kv := kvSlot(d.table)
	pages := func(id replay.SessionID) []byte {
		b := make([]byte, slot.Size)
		if err := d.Read(id, kv, 0, b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	run := func(id replay.SessionID, sequence, tokens int) {
		if _, err := submit(d, &batchtest.NewChain(d.table, id, sequence, tokens).Submission); err != nil {
			t.Fatal(err)
		}
	}
	used := drv.Used()
	run(first, 3, 20)
	if more := drv.Used() - used; more != 0 {
		t.Errorf("the only session has %d bytes more", more)
	}
	second, err := d.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	want := pages(first)
	if none := pages(second); !bytes.Equal(none, make([]byte, len(none))) || bytes.Equal(none, want) {
		t.Error("the second session begins with pages, or the first has none")
	}
	run(second, 5, 7)
	other := pages(second)
	if !bytes.Equal(pages(first), want) || bytes.Equal(other, want) {
		t.Error("the pages of the first session have changed")
	}
	run(first, 3, 20)
	if !bytes.Equal(pages(first), want) || !bytes.Equal(pages(second), other) {
		t.Error("pages have changed")
	}
}

// TestPooledMoves copies pages between submissions of a chain: the copies see what was computed before, and
// what is computed afterwards sees the copies.
func TestPooledMoves(t *testing.T) {
	m := sequences(t)
	for _, eager := range []bool{false, true} {
		drv := fake.New(t)
		if eager {
			drv.SetEager()
		}
		d, id := prepared(t, drv, "record", m)
		b := batchtest.NewChain(d.table, id, 1, 20)
		want := b.Ring(1, 21)
		if _, err := submit(d, &b.Submission); err != nil {
			t.Fatal(err)
		}
		// Sequence 9 continues after 10 tokens with a copy of the page, among others.
		copied := batchtest.NewChain(d.table, id, 9, 20)
		l := batchtest.Layout(m.t)
		for i := range m.t.Slots {
			if s := &m.t.Slots[i]; s.Kind == table.SlotKV {
				page := s.Size / uint64(l.Pages)
				copied.Moves = append(copied.Moves, replay.Move{Slot: uint32(i), To: 18 * page, From: 2 * page, Size: page})
			}
		}
		_, ring, _ := m.t.Slot(table.SlotTokens)
		_, step, _ := m.t.Slot(table.SlotStep)
		var row [sequence.RowBytes]byte
		(&sequence.Row{Sequence: 9, Position: 10, KVLen: 11, TokenIndex: 10, Until: 20}).Put(&row)
		copied.Writes = append(copied.Writes, replay.Transfer{Slot: step, Offset: l.RowAt(0), Bytes: row[:]}, replay.Transfer{Slot: ring, Offset: batchtest.RingAt(m.t, 9, 0), Bytes: want[:44]})
		got := copied.Ring(9, 21)
		if res, err := submit(d, &copied.Submission); err != nil || res.Count != 10 || !bytes.Equal(got, want) {
			t.Errorf("eager %t: %+v, %v\n%d, want\n%d", eager, res, err, got, want)
		}
	}
}

// TestPooledTransfers writes and reads ranges that are larger than the buffers, and many small ones in any
// order.
func TestPooledTransfers(t *testing.T) {
	m := tinyWith(t, "llama", compiler.Options{Context: 300, Sequences: 20, Pages: 600})
	drv := fake.New(t)
	d, id := prepared(t, drv, "record", m)
	slot, kv := kvSlot(m.t)
	if slot.Size < 2*stageBytes {
		t.Fatal("the slot has", slot.Size, "bytes")
	}
	want := make([]byte, slot.Size)
	for i := range want {
		want[i] = byte(i * 7 >> (i % 5))
	}
	got := make([]byte, len(want))
	if err := errors.Join(d.Write(id, kv, 0, want), d.Read(id, kv, 0, got)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the whole slot differs, %v", err)
	}
	sub := &replay.Submission{Session: id}
	for i := range 500 {
		at, n := (i*7919*613)%(len(want)-5000), 1+(i*i)%4999
		if i%100 == 7 {
			at, n = i, stageBytes+i
		}
		sub.Reads = append(sub.Reads, replay.Transfer{Slot: kv, Offset: uint64(at), Bytes: make([]byte, n)})
	}
	if _, err := submit(d, sub); err != nil {
		t.Fatal(err)
	}
	for i, r := range sub.Reads {
		if !bytes.Equal(r.Bytes, want[r.Offset:][:len(r.Bytes)]) {
			t.Fatalf("read %d of %d bytes at %d differs", i, len(r.Bytes), r.Offset)
		}
	}
	mem := d.Memory()
	if int(mem.Weights+mem.Sessions+mem.Executor) != drv.Used() || mem.Kinds[table.SlotKV].Active != kvBytes(m.t) {
		t.Errorf("%+v, the driver has %d", mem, drv.Used())
	}
}

// TestPooledCancel cancels chains of batches at several times. Row records and tokens must agree.
func TestPooledCancel(t *testing.T) {
	m := sequences(t)
	const n = 60
	for _, mode := range Modes() {
		drv := fake.New(t)
		d, id := prepared(t, drv, mode, m)
		b := batchtest.NewChain(d.table, id, 0, n, n)
		want := b.Ring(1, n+1)
		drv.SetDelay(20)
		start := time.Now()
		if _, err := submit(d, &b.Submission); err != nil {
			t.Fatal(err)
		}
		whole := time.Since(start)
		for _, after := range []time.Duration{0, whole / 8, whole / 2} {
			b := batchtest.NewChain(d.table, id, 0, n, n)
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
				continue // it had not begun: nothing is read
			}
			if k := int(b.Row(1).Count); 2*k != res.Count || !bytes.Equal(got[:4*(k+1)], want[:4*(k+1)]) {
				t.Errorf("%s: %+v after %d tokens", mode, b.Row(1), res.Count)
			}
		}
		drv.SetDelay(0)
	}
}

// TestFaultsPooled is TestFaults for a pooled table.
func TestFaultsPooled(t *testing.T) {
	m := sequences(t)
	m.src = unreleased{m.src} // a release is no driver call
	for _, mode := range []string{"record", "encode"} {
		for _, code := range []int{2, 719} {
			drv := fake.New(t)
			if err := use(drv, mode, m); err != nil {
				t.Fatal(err)
			}
			faults(t, drv, mode, code, m, places(drv.Trace(), 1, drv.Calls()), exhaustive.Pick(1, 7), func() string { return "" })
		}
	}
}

// kvBytes returns the size of all slots of KV pages.
func kvBytes(t *table.Table) (size uint64) {
	for i := range t.Slots {
		if t.Slots[i].Kind == table.SlotKV {
			size += t.Slots[i].Size
		}
	}
	return size
}
