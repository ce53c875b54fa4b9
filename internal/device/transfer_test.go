package device_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// TestTransfers submits moves, writes and reads. They are executed in this order, writes even if the
// submission is cancelled before it begins.
func TestTransfers(t *testing.T) {
	d := loaded(t)
	id := session(t, d)
	if err := d.Write(id, 0, 0, []byte("abcdefgh")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 12)
	sub := tokens(id, 1)
	sub.Moves = []replay.Move{{Slot: 0, To: 8, From: 0, Size: 4}}
	sub.Writes = []replay.Transfer{{Slot: 0, Offset: 2, Bytes: []byte("XY")}, {Slot: 0, Offset: 9, Bytes: []byte("Z")}}
	sub.Reads = []replay.Transfer{{Slot: 0, Offset: 8, Bytes: got[8:]}, {Slot: 0, Offset: 0, Bytes: got[:8]}}
	if _, err := d.Wait(submit(t, d, sub)); err != nil || string(got) != "abXYefghaZcd" {
		t.Errorf("%q, %v", got, err)
	}
	gate := hold(t, d, id)
	first := submit(t, d, tokens(id, 1))
	other := session(t, d)
	text := make([]byte, 2)
	sub = tokens(other, 1)
	sub.Writes, sub.Reads = []replay.Transfer{{Slot: 0, Bytes: []byte("ok")}}, []replay.Transfer{{Slot: 0, Bytes: text}}
	second := submit(t, d, sub)
	d.Cancel(second)
	if r, err := d.Wait(second); err != nil || r.Count != 0 || string(text) != "\x00\x00" {
		t.Errorf("a cancelled submission: %+v, %v, it read %q", r, err, text)
	}
	if err := d.Read(other, 0, 0, text); err != nil || string(text) != "ok" {
		t.Errorf("a cancelled submission wrote %q, %v", text, err)
	}
	<-gate
	gate <- true
	if _, err := d.Wait(first); err != nil {
		t.Error(err)
	}
}

// TestTransferFaults submits transfers that leave their slots, and transfers that fail.
func TestTransferFaults(t *testing.T) {
	d := loaded(t)
	id := session(t, d)
	b := make([]byte, 4)
	for what, sub := range map[string]replay.Submission{
		"slot 2":                   {Writes: []replay.Transfer{{Slot: 2, Bytes: b}}},
		"not have session scope":   {Reads: []replay.Transfer{{Slot: 1, Bytes: b}}},
		"is past its 16":           {Writes: []replay.Transfer{{Offset: 13, Bytes: b}}},
		"has no bytes":             {Reads: []replay.Transfer{{Offset: 16}}},
		"offset 9 + 8 bytes":       {Moves: []replay.Move{{To: 9, Size: 8}}},
		"offset 17 + 0 bytes":      {Moves: []replay.Move{{From: 17}}},
		"offset 1 + 1844674407370": {Moves: []replay.Move{{To: 1, Size: 1<<64 - 1}}},
		"the ranges overlap":       {Moves: []replay.Move{{To: 4, From: 7, Size: 4}}},
		"sequence 1 of 1":          {Runs: []replay.Run{{Count: 1, Step: table.Step{KVLen: 1, Rows: 1, Sequence: 1}}}},
	} {
		sub.Session = id
		if _, err := d.Submit(&sub); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	sub := tokens(id, 1)
	sub.Writes, sub.Reads = []replay.Transfer{{Bytes: b}}, []replay.Transfer{{Bytes: b}}
	d.sendErr = errors.New("no writes")
	if _, err := d.Submit(sub); err != d.sendErr {
		t.Errorf("writes fail: %v", err)
	}
	d.sendErr, d.fetchErr = nil, errors.New("no reads")
	if r, err := d.Wait(submit(t, d, sub)); err != d.fetchErr || r.Count != 0 {
		t.Errorf("reads fail: %+v, %v", r, err)
	}
	d.fetchErr = nil
	if r, err := d.Wait(submit(t, d, sub)); err != nil || r.Count != 1 {
		t.Errorf("after that: %+v, %v", r, err)
	}
}

// TestPooled checks what the queue does for a pooled table: runs name its sequences, the warm-up has a row,
// and the KV pages count as KV caches.
func TestPooled(t *testing.T) {
	d := newFake()
	tab := small()
	l := sequence.Layout{Sequences: 3, Pages: 2, Rows: 1, Table: 1, Kinds: 1}
	tab.Header.Options = l.Words()
	tab.Slots[0] = table.Slot{Name: "step", Kind: table.SlotStep, Scope: table.ScopeSession, Size: l.Size()}
	tab.Slots = append(tab.Slots, table.Slot{Name: "kv", Kind: table.SlotKV, Scope: table.ScopeSession, Size: 1 << 20})
	d.slots = int(l.Size())
	d.warm = []replay.Run{device.WarmRun(tab, 0)}
	if err := d.Load(bg, tab, nil, replay.LoadOptions{}); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if row := sequence.Parse((*[sequence.RowBytes]byte)(d.open[0].slot[l.RowAt(0):])); row.KVLen != 1 || row.Until != 1 {
		t.Errorf("the warm-up's row is %+v", row)
	}
	id := session(t, d)
	if m := d.Memory(); m.Kinds[table.SlotKV].Active != 1<<20 {
		t.Errorf("%+v", m)
	}
	run := func(sequence uint32) replay.Run {
		return replay.Run{Count: 1, Step: table.Step{KVLen: 1, Rows: 1, Sequence: sequence}}
	}
	for _, c := range []struct {
		runs []replay.Run
		want string
	}{{[]replay.Run{run(2), run(2)}, ""}, {[]replay.Run{run(3)}, "sequence 3 of 3"}, {[]replay.Run{run(0), run(1)}, "run 1 belongs to sequence 1 and run 0 to sequence 0"}} {
		ticket, err := d.Submit(&replay.Submission{Session: id, Runs: c.runs})
		if err == nil {
			_, err = d.Wait(ticket)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if err := d.CloseSession(id); err != nil || d.Memory().Kinds[table.SlotKV].Active != 0 {
		t.Errorf("%v, %+v after closing", err, d.Memory())
	}
}

// TestFixedCapacity checks that a session of a table whose caches do not grow is prepared once.
func TestFixedCapacity(t *testing.T) {
	tab := small()
	tab.Header.Context = 5000
	if c := device.NewCaches(tab); c.Capacity(1) != 5000 || len(c.Capacities()) != 1 {
		t.Errorf("%d, %v", c.Capacity(1), c.Capacities())
	}
}
