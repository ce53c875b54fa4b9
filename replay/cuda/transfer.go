package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

const (
	// stageBytes is the size of each of a stage's buffers.
	stageBytes = 1 << 20
	// joinBytes is the largest distance between two ranges that are read as one. A copy takes about as
	// long as the transfer of twice as many bytes.
	joinBytes = 32 << 10
)

// stage has the pinned memory through which the transfers of a pooled table's submissions go. Its
// methods accept nil, for the sessions of other tables.
type stage struct {
	drv     *driver.Driver
	out, in []byte
	sent    driver.Event // recorded after the last copy from out, and after the last move
	begun   bool         // sent has been recorded and nobody has waited for it
	follows bool         // sent has been recorded and the executor's stream does not wait for it yet
	order   []int        // indices of reads, sorted
	spans   []span       // ranges that are being read
}

// span is a range that contains the sorted reads from first to end-1, in the buffer from at on.
type span struct{ first, end, at int }

// newStage returns the stage of a session, which is nil unless the table is pooled.
func (d *Device) newStage(o *owned) (s *stage, err error) {
	if !d.pooled {
		return nil, nil
	}
	s = &stage{drv: d.drv}
	if s.out, err = o.pinned(stageBytes); err == nil {
		s.in, err = o.pinned(stageBytes)
	}
	if err == nil {
		s.sent, err = o.event(false)
	}
	if err != nil {
		return nil, fmt.Errorf("cuda: memory for transfers: %w", err)
	}
	return s, nil
}

// settle waits for the copies that have been submitted.
func (s *stage) settle() error {
	if s == nil || !s.begun {
		return nil
	}
	s.begun = false
	return s.drv.EventSynchronize(s.sent)
}

// follow makes a stream wait for the copies that have been submitted.
func (s *stage) follow(stream driver.Stream) error {
	if s == nil || !s.follows {
		return nil
	}
	s.follows = false
	return s.drv.StreamWaitEvent(stream, s.sent)
}

// Send submits the copies of a pooled table's session, for which the next submission waits on the GPU.
// For other sessions it waits for them.
func (d backend) Send(s *session, moves []replay.Move, writes []replay.Transfer) (err error) {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave(&err)
	if s.stage == nil {
		err = d.each(s, writes, d.send)
	} else if err = s.stage.settle(); err == nil {
		err = d.submit(s, moves, writes)
	}
	if err != nil {
		err = fmt.Errorf("cuda: %w", err)
	}
	return err
}

// submit submits the copies of a pooled table's session.
func (d *Device) submit(s *session, moves []replay.Move, writes []replay.Transfer) (err error) {
	st := s.stage
	d.current.mu.Lock()
	for i := range moves {
		m := &moves[i]
		if err = d.drv.MemcpyDtoDAsync(s.mem[m.Slot]+driver.Ptr(m.To), s.mem[m.Slot]+driver.Ptr(m.From), m.Size, d.transfer); err != nil {
			break
		}
	}
	d.current.mu.Unlock()
	used := 0
	if err == nil {
		err = d.each(s, writes, func(to driver.Ptr, p []byte) error {
			for len(p) > 0 {
				if used == len(st.out) {
					if err := d.drv.StreamSynchronize(d.transfer); err != nil {
						return err
					}
					used = 0
				}
				n := copy(st.out[used:], p)
				if err := d.drv.MemcpyHtoDAsync(to, st.out[used:][:n], d.transfer); err != nil {
					return err
				}
				used, p, to = used+n, p[n:], to+driver.Ptr(n)
			}
			return nil
		})
	}
	// Record the event after an error too: some copies may have been submitted.
	st.begun, st.follows = true, true
	return errors.Join(err, d.drv.EventRecord(st.sent, d.transfer))
}

// Fetch waits for the copies.
func (d backend) Fetch(s *session, reads []replay.Transfer) (err error) {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave(&err)
	if s.stage != nil {
		err = d.collect(s, reads)
	} else {
		err = d.each(s, reads, func(from driver.Ptr, p []byte) error {
			if err := d.drv.MemcpyDtoHAsync(p, from, d.transfer); err != nil {
				return err
			}
			return d.drv.StreamSynchronize(d.transfer)
		})
	}
	if err != nil {
		err = fmt.Errorf("cuda: %w", err)
	}
	return err
}

// each calls f with the address and the bytes of each part of transfers.
func (d *Device) each(s *session, list []replay.Transfer, f func(at driver.Ptr, p []byte) error) error {
	for i := range list {
		t := &list[i]
		err := d.caches.Parts(t.Slot, s.room, t.Offset, len(t.Bytes), func(part device.Part) error {
			if d.fixed(d.table, int(t.Slot), table.ScopeSession) {
				d.current.mu.Lock()
				defer d.current.mu.Unlock()
			}
			return f(s.mem[t.Slot]+driver.Ptr(part.Offset), t.Bytes[part.From:part.To])
		})
		if err != nil {
			return fmt.Errorf("slot %s: %w", d.table.Slots[t.Slot].Name, err)
		}
	}
	return nil
}

// collect executes the reads of a pooled table's session. It reads ranges that are near each other as
// one, and waits as rarely as its buffer allows.
func (d *Device) collect(s *session, reads []replay.Transfer) error {
	d.current.mu.Lock()
	defer d.current.mu.Unlock()
	st := s.stage
	st.sort(reads)
	used := 0
	for first := 0; first < len(st.order); {
		end, size := st.group(reads, first)
		if size > len(st.in)-used {
			if err := st.scatter(reads, d.transfer); err != nil {
				return err
			}
			used = 0
		}
		r := &reads[st.order[first]]
		to := r.Bytes // a range that is larger than the buffer
		if size <= len(st.in) {
			to = st.in[used:][:size]
			st.spans = append(st.spans, span{first, end, used})
			used += size
		}
		if err := d.drv.MemcpyDtoHAsync(to, s.mem[r.Slot]+driver.Ptr(r.Offset), d.transfer); err != nil {
			return fmt.Errorf("slot %s: %w", d.table.Slots[r.Slot].Name, err)
		}
		first = end
	}
	return st.scatter(reads, d.transfer)
}

// sort sorts the indices of reads by their places, and forgets the spans of others.
func (s *stage) sort(reads []replay.Transfer) {
	s.order, s.spans = s.order[:0], s.spans[:0]
	for i := range reads {
		s.order = append(s.order, i)
	}
	slices.SortFunc(s.order, func(a, b int) int {
		return cmp.Or(cmp.Compare(reads[a].Slot, reads[b].Slot), cmp.Compare(reads[a].Offset, reads[b].Offset))
	})
}

// group returns the end of the longest list of sorted reads, beginning with first, that lie near each
// other and fit in the buffer together, and the size of the range that contains them.
func (s *stage) group(reads []replay.Transfer, first int) (end, size int) {
	r := &reads[s.order[first]]
	size = len(r.Bytes)
	for end = first + 1; end < len(s.order); end++ {
		next := &reads[s.order[end]]
		if next.Slot != r.Slot || next.Offset-r.Offset > uint64(size+joinBytes) {
			break
		}
		larger := max(size, int(next.Offset-r.Offset)+len(next.Bytes))
		if larger > len(s.in) {
			break
		}
		size = larger
	}
	return end, size
}

// scatter waits for the copies to the buffer and gives the reads their bytes.
func (s *stage) scatter(reads []replay.Transfer, stream driver.Stream) error {
	if err := s.drv.StreamSynchronize(stream); err != nil {
		return err
	}
	for _, sp := range s.spans {
		base := reads[s.order[sp.first]].Offset
		for _, i := range s.order[sp.first:sp.end] {
			copy(reads[i].Bytes, s.in[sp.at+int(reads[i].Offset-base):])
		}
	}
	s.spans = s.spans[:0]
	return nil
}
