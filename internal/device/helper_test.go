package device_test

import (
	"context"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

var bg = context.Background()

// own is the fake device's state of a session.
type own struct {
	slot   []byte
	freed  int
	room   int // positions with rows
	copied int
	held   chan bool // if not nil, each token of a job sends to it and then waits to receive
}

type job = device.Job[*own]

// fake is a device in memory. Its executor records whose job runs and counts the job's tokens.
type fake struct {
	device.Base[*own]
	queue   *device.Queue[*own]
	execute func(j *job) (replay.Result, error) // replaces count
	warm    []replay.Run
	slots   int // bytes of a session's slot, at least 16

	loadErr, warmErr, openErr, freeErr, growErr, copyErr, sendErr, fetchErr error

	mu     sync.Mutex
	ran    []replay.SessionID
	open   []*own
	closes int // calls of Unload
	left   int // sessions passed to Unload
}

type backend struct{ *fake }

func newFake() *fake {
	d := &fake{}
	d.queue = device.New("fake", backend{d})
	d.Base = d.queue.Base()
	return d
}

// loaded returns a device with a table; the device is closed when the test ends.
func loaded(tb testing.TB) *fake {
	tb.Helper()
	d := newFake()
	if err := d.Load(bg, small(), nil, replay.LoadOptions{}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := d.Close(); err != nil {
			tb.Error(err)
		}
	})
	return d
}

// small returns a table with one program of two commands and one program with several rows.
func small() *table.Table {
	return &table.Table{
		Header: table.Header{Context: 64, Device: "fake", Chip: "fake"},
		Slots: []table.Slot{
			{Name: "tokens", Kind: table.SlotTokens, Scope: table.ScopeSession, Size: 16},
			{Name: "w", Kind: table.SlotWeight, Scope: table.ScopeModel, Size: 16},
		},
		Cmds:     make([]table.Cmd, 3),
		Labels:   []string{"a", "b", "c"},
		Programs: []table.Program{{Name: "decode", Count: 2, MaxRows: 1}, {Name: "prefill", First: 2, Count: 1, MaxRows: 8}},
	}
}

func (d backend) Load(context.Context, *table.Table, replay.Source, replay.LoadOptions) (replay.Memory, error) {
	if d.loadErr != nil {
		return replay.Memory{}, d.loadErr
	}
	d.queue.Go(func() {
		for j := d.queue.Next(); j != nil; j = d.queue.Next() {
			d.mu.Lock()
			d.ran = append(d.ran, j.Submission.Session)
			d.mu.Unlock()
			if d.execute != nil {
				j.Finish(d.execute(j))
			} else {
				j.Finish(count(j))
			}
		}
	})
	return replay.Memory{Weights: 100, Mapped: 20, Executor: 3}, nil
}

// count executes a job, one token at a time, until it is cancelled.
func count(j *job) (r replay.Result, err error) {
	for _, run := range j.Submission.Runs {
		for range run.Count {
			if j.Cancelled() {
				return r, nil
			}
			r.Count++
			if held := j.Session.held; held != nil {
				held <- true
				<-held
			}
		}
	}
	return r, nil
}

func (d backend) Warm(run func(...replay.Run) error) error {
	if len(d.warm) > 0 {
		if err := run(d.warm...); err != nil {
			return err
		}
		if err := run(); err != nil {
			return err
		}
	}
	return d.warmErr
}

func (d backend) Unload(left []*own) error {
	d.closes++
	d.left = len(left)
	for _, s := range left {
		s.freed++
	}
	return nil
}

func (d backend) Open() (*own, uint64, error) {
	s := &own{slot: make([]byte, max(16, d.slots))}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = append(d.open, s)
	return s, 16, d.openErr
}

func (d backend) Free(s *own) error {
	if d.freeErr == nil {
		s.freed++
	}
	return d.freeErr
}

// Grow allocates multiples of 8 positions, 10 bytes each. While it grows, it uses 5 more bytes
// for each old position.
func (d backend) Grow(s *own, positions int) (device.Room, error) {
	if d.growErr != nil {
		return device.Room{}, d.growErr
	}
	old := s.room
	s.room = (positions + 7) &^ 7
	return device.Room{Positions: s.room, Bytes: uint64(10 * s.room), Most: uint64(10*s.room + 5*old)}, nil
}

// Room returns what Grow allocates.
func (d backend) Room(positions int) device.Room {
	n := (positions + 7) &^ 7
	return device.Room{Positions: n, Bytes: uint64(10 * n)}
}

func (d backend) Shrink(s *own, positions int) (device.Room, error) {
	if d.growErr != nil {
		return device.Room{}, d.growErr
	}
	room := d.Room(positions)
	s.room = room.Positions
	return room, nil
}

func (d backend) Copy(to, from *own, positions int) error {
	copy(to.slot, from.slot)
	to.copied = positions
	return d.copyErr
}

func (d backend) Send(s *own, moves []replay.Move, writes []replay.Transfer) error {
	for _, m := range moves {
		copy(s.slot[m.To:][:m.Size], s.slot[m.From:])
	}
	for _, w := range writes {
		copy(s.slot[w.Offset:], w.Bytes)
	}
	return d.sendErr
}

func (d backend) Fetch(s *own, reads []replay.Transfer) error {
	for _, r := range reads {
		copy(r.Bytes, s.slot[r.Offset:])
	}
	return d.fetchErr
}

func session(tb testing.TB, d *fake) replay.SessionID {
	tb.Helper()
	id, err := d.NewSession()
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

// hold makes each token of a session's jobs send to the returned channel and wait.
func hold(tb testing.TB, d *fake, id replay.SessionID) chan bool {
	tb.Helper()
	gate := make(chan bool)
	if err := d.queue.Hold(id, func(s *own) error { s.held = gate; return nil }); err != nil {
		tb.Fatal(err)
	}
	return gate
}

// tokens returns a submission of n tokens.
func tokens(id replay.SessionID, n int) *replay.Submission {
	return &replay.Submission{Session: id, Runs: []replay.Run{{Count: uint32(n), Step: table.Step{KVLen: 1, Rows: 1}}}}
}

func submit(tb testing.TB, d *fake, sub *replay.Submission) replay.Ticket {
	tb.Helper()
	t, err := d.Submit(sub)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func second[T any](_ T, err error) error { return err }
