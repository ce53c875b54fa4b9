// Package null implements a device that computes nothing. It records the submissions that it
// receives and counts their commands and tokens. Instead of sampling tokens, it writes the tokens
// that a script returns. It runs on any machine.
//
// The package depends only on tables and on package replay.
package null

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/pianola-engine/pianola/internal/speculate"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Device records submissions. The zero value is ready for Load.
type Device struct {
	// Script returns the token that the device writes after the token at a position. If Script is
	// nil, the device writes token 0.
	Script func(position int) uint32

	mu       sync.Mutex
	t        *table.Table
	sessions map[replay.SessionID]map[uint32][]byte
	next     replay.SessionID
	ticket   replay.Ticket
	results  map[replay.Ticket]replay.Result
	closed   bool

	submissions []Record
	waits       int
}

// Record is one submission as the device received it.
type Record struct {
	Session replay.SessionID
	Runs    []replay.Run
	Dry     bool
}

// Counts are totals over all submissions.
type Counts struct {
	Submissions, Waits int
	Commands           int // commands that the submissions would have dispatched
	Tokens             int // tokens that their argmax commands would have written
}

var errClosed = errors.New("null: the device is closed")

// Info implements replay.Device.
func (d *Device) Info() replay.Info {
	return replay.Info{Device: "null", Name: "null", Modes: []string{"encode"}, Detail: "records, computes nothing", Moves: true}
}

// Load implements replay.Device. It does not read tensors.
func (d *Device) Load(_ context.Context, t *table.Table, _ replay.Source, _ replay.LoadOptions) error {
	if faults := t.Validate(); len(faults) > 0 {
		return fmt.Errorf("null: %w", faults[0])
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.t = t
	d.sessions = map[replay.SessionID]map[uint32][]byte{}
	d.results = map[replay.Ticket]replay.Result{}
	return nil
}

// NewSession implements replay.Device.
func (d *Device) NewSession() (replay.SessionID, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.t == nil {
		return 0, errClosed
	}
	slots := map[uint32][]byte{}
	for i, s := range d.t.Slots {
		if s.Scope == table.ScopeSession && s.Kind != table.SlotKV {
			slots[uint32(i)] = make([]byte, s.Size)
		}
	}
	d.next++
	d.sessions[d.next] = slots
	return d.next, nil
}

// Reserve implements replay.Device. The null device has no KV caches.
func (d *Device) Reserve(replay.SessionID, int) error { return nil }

// Fork implements replay.Device.
func (d *Device) Fork(id replay.SessionID, _ int) (replay.SessionID, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	from, ok := d.sessions[id]
	if !ok {
		return 0, fmt.Errorf("null: no session %d", id)
	}
	slots := map[uint32][]byte{}
	for i, b := range from {
		slots[i] = slices.Clone(b)
	}
	d.next++
	d.sessions[d.next] = slots
	return d.next, nil
}

// CloseSession implements replay.Device.
func (d *Device) CloseSession(id replay.SessionID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sessions, id)
	return nil
}

// slot returns the bytes [offset, offset+n) of a session's slot.
func (d *Device) slot(id replay.SessionID, slot uint32, offset uint64, n int) ([]byte, error) {
	b, ok := d.sessions[id][slot]
	if !ok {
		return nil, fmt.Errorf("null: session %d has no slot %d", id, slot)
	}
	if offset > uint64(len(b)) || uint64(n) > uint64(len(b))-offset {
		return nil, fmt.Errorf("null: slot %d: %d + %d bytes are past its %d", slot, offset, n, len(b))
	}
	return b[offset:][:n], nil
}

// Write implements replay.Device.
func (d *Device) Write(id replay.SessionID, slot uint32, offset uint64, p []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, err := d.slot(id, slot, offset, len(p))
	copy(b, p)
	return err
}

// Read implements replay.Device.
func (d *Device) Read(id replay.SessionID, slot uint32, offset uint64, p []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, err := d.slot(id, slot, offset, len(p))
	copy(p, b)
	return err
}

// Submit implements replay.Device. For each replay of a program that chooses a token
// (table.FlagChooses) it writes the script's token to the token ring.
func (d *Device) Submit(s *replay.Submission) (replay.Ticket, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, errClosed
	}
	if _, ok := d.sessions[s.Session]; !ok {
		return 0, fmt.Errorf("null: no session %d", s.Session)
	}
	if len(s.Moves)+len(s.Writes)+len(s.Reads) > 0 || s.Tap != nil {
		return 0, errors.New("null: the moves, writes, reads and the tap of a submission are not supported")
	}
	d.submissions = append(d.submissions, Record{s.Session, slices.Clone(s.Runs), s.Dry})
	var res replay.Result
	for _, r := range s.Runs {
		if int(r.Program) >= len(d.t.Programs) {
			return 0, fmt.Errorf("null: no program %d", r.Program)
		}
		if s.Dry || !d.t.Programs[r.Program].Flags.Has(table.FlagChooses) {
			continue
		}
		step := r.Step
		if p := &d.t.Programs[r.Program]; p.Flags.Has(table.FlagAdvances) {
			for range r.Count {
				if r.Step.Until != 0 && step.TokenIndex >= r.Step.Until {
					break
				}
				if err := d.verify(s.Session, &step, &res, int(p.MaxRows)-1); err != nil {
					return 0, err
				}
			}
			continue
		}
		for range r.Count {
			if err := d.write(s.Session, int(step.TokenIndex+step.Rows)); err != nil {
				return 0, err
			}
			step.TokenIndex += step.Rows
			res.Count++
		}
	}
	d.ticket++
	d.results[d.ticket] = res
	return d.ticket, nil
}

// verify updates the token ring and the step as the program verify does: it accepts the drafted
// tokens that equal the script's tokens, and drafts the next ones.
func (d *Device) verify(id replay.SessionID, step *table.Step, res *replay.Result, draft int) error {
	at, n := int(step.TokenIndex), 0
	_, tokens, _ := d.t.Slot(table.SlotTokens)
	ring, err := d.slot(id, tokens, 0, int(d.t.Slots[tokens].Size))
	if err != nil {
		return err
	}
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(ring[4*i:]) }
	for right := true; right && n < int(step.Rows); n++ {
		drafted := word(at + n + 1)
		if err := d.write(id, at+n+1); err != nil {
			return err
		}
		right = word(at+n+1) == drafted
	}
	res.Count += n
	res.Drafted += int(step.Rows) - 1
	res.Accepted += n - 1
	step.TokenIndex += uint32(n)
	history := make([]uint32, at+n+1)
	for i := range history {
		history[i] = word(i)
	}
	step.Trust = uint32(speculate.Trust(step.Trust).Judge(int(step.Rows)-1, n-1))
	room := len(ring)/4 - len(history)
	if step.Until != 0 {
		room = max(0, min(room, int(step.Until)-len(history)))
	}
	next := make([]uint32, min(draft, room))
	next = next[:speculate.Draft(next, history, speculate.DraftMost, speculate.DraftLeast, speculate.Trust(step.Trust))]
	step.Rows, res.Trust = 1+uint32(len(next)), step.Trust
	for i, v := range next {
		binary.LittleEndian.PutUint32(ring[4*(len(history)+i):], v)
	}
	return nil
}

func (d *Device) write(id replay.SessionID, index int) error {
	_, tokens, _ := d.t.Slot(table.SlotTokens)
	b, err := d.slot(id, tokens, uint64(index)*4, 4)
	if err != nil {
		return err
	}
	v := uint32(0)
	if d.Script != nil {
		v = d.Script(index - 1)
	}
	binary.LittleEndian.PutUint32(b, v)
	return nil
}

// Cancel implements replay.Device. It does nothing: Submit executes the whole submission.
func (d *Device) Cancel(replay.Ticket) {}

// Wait implements replay.Device.
func (d *Device) Wait(t replay.Ticket) (replay.Result, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waits++
	res, ok := d.results[t]
	if !ok {
		return res, fmt.Errorf("null: no submission %d", t)
	}
	delete(d.results, t)
	return res, nil
}

// Memory implements replay.Device.
func (d *Device) Memory() replay.Memory { return replay.Memory{} }

// Close implements replay.Device.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.sessions = nil
	return nil
}

// Submissions returns the recorded submissions in order.
func (d *Device) Submissions() []Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.submissions)
}

// Counts returns the totals over all submissions.
func (d *Device) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := Counts{Submissions: len(d.submissions), Waits: d.waits}
	for _, s := range d.submissions {
		for _, r := range s.Runs {
			p := &d.t.Programs[r.Program]
			c.Commands += int(p.Count) * int(r.Count)
			if !s.Dry && p.Flags.Has(table.FlagChooses) {
				c.Tokens += int(r.Count)
			}
		}
	}
	return c
}
