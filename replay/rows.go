package replay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Errors for optional programs that the table lacks.
var (
	// ErrNoLogitsProgram is returned if the table was compiled without the program that
	// computes the logits of every row.
	ErrNoLogitsProgram = errors.New("replay: the table has no program for the logits of every row")
	// ErrNoHiddenProgram is returned if the table was compiled without the program that
	// keeps the last hidden states of every row.
	ErrNoHiddenProgram = errors.New("replay: the table has no program for the hidden states of every row")
)

var errPendingRows = errors.New("replay: the logits of every row need a context without a pending token")

// AllLogits appends ids to the context as Prompt does and calls visit with the logits of
// each row in order, [vocab]. They are valid during the call. An error of visit ends
// AllLogits and leaves the context unchanged.
func (s *Session) AllLogits(ctx context.Context, ids []int32, visit func(row int, logits []float32) error) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.done()
	if s.m.programs.logits < 0 {
		return ErrNoLogitsProgram
	}
	if s.par != nil {
		return s.allLogitsParallel(ctx, ids, visit)
	}
	if s.pending {
		return errPendingRows
	}
	if err := s.rows(ctx, s.m.logitsRows(), ids, 0, visit); err != nil {
		return err
	}
	return s.choose(ctx, len(ids))
}

// RepromptLogits replaces the context by ids, as Reprompt does, and calls visit with the
// logits of each row from row from of ids on, in order, [vocab]. They are valid during the
// call. Of the old context it keeps at most the rows before from. No token is pending after
// it.
//
// If ids cannot be a context, the context does not change. After any other error, including
// one of visit, the context is the part that was kept.
func (s *Session) RepromptLogits(ctx context.Context, ids []int32, from int, visit func(row int, logits []float32) error) error {
	return s.repromptRows(ctx, s.m.logitsRows(), ErrNoLogitsProgram, ids, from, visit)
}

// RepromptHidden is like RepromptLogits for the hidden states after the last norm, [width],
// which are the input of the head.
func (s *Session) RepromptHidden(ctx context.Context, ids []int32, from int, visit func(row int, hidden []float32) error) error {
	return s.repromptRows(ctx, s.m.hiddenRows(), ErrNoHiddenProgram, ids, from, visit)
}

// rowProgram is a program that computes float32 values for a block of a chunk's rows and
// leaves them in a slot, [block, width].
type rowProgram struct {
	program      int
	slot         uint32
	block, width int
}

func (m *Model) logitsRows() rowProgram {
	h := &m.t.Header
	return rowProgram{m.programs.logits, m.logits, int(h.LogitsRows), int(h.Vocab)}
}

func (m *Model) hiddenRows() rowProgram {
	h := &m.t.Header
	return rowProgram{m.programs.hidden, m.hidden, int(h.Chunk), int(h.Width)}
}

func (s *Session) repromptRows(ctx context.Context, p rowProgram, missing error, ids []int32, from int, visit func(row int, values []float32) error) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.done()
	if p.program < 0 {
		return missing
	}
	if err := s.check(ids, 0); err != nil {
		return err
	}
	if from < 0 || from >= len(ids) {
		return fmt.Errorf("replay: row %d is not in 0..%d", from, len(ids)-1)
	}
	if s.par != nil {
		return s.repromptRowsParallel(ctx, p, ids, from, visit)
	}
	keep, err := s.common(ids[:from])
	if err != nil {
		return err
	}
	s.keep(keep)
	err = s.rows(ctx, p, ids[keep:], from-keep, func(row int, values []float32) error { return visit(keep+row, values) })
	if err != nil {
		return err
	}
	s.setLen(s.n + len(ids) - keep)
	s.row = 0
	s.count(func(st *Stats) {
		st.Prefilled += len(ids) - keep
		st.Reused += keep
	})
	return nil
}

// rows prefills ids after the context, without making them part of it, and calls visit with
// the values that the program computes for each row from row from on.
func (s *Session) rows(ctx context.Context, p rowProgram, ids []int32, from int, visit func(row int, values []float32) error) error {
	if err := s.feed(ids); err != nil {
		return err
	}
	s.wrote(s.n + len(ids))
	done := false
	defer func() {
		if !done {
			s.lost()
		}
	}()
	defer s.watch(ctx)()
	block := min(p.block, len(ids)-from)
	values, buf := make([]float32, block*p.width), make([]byte, 4*block*p.width)
	for at, rows := 0, 0; at < len(ids); at += rows {
		rows = s.m.chunk(s.n+at, len(ids)-at)
		first := max(0, from-at)
		if first >= rows {
			s.clear()
			s.reach(s.n + at)
			s.add(s.m.prefill(rows), 1, s.n+at, rows, 0)
			if _, err := s.submit(); err != nil {
				return err
			}
			if err := s.interrupted(ctx); err != nil {
				return err
			}
			continue
		}
		for row := first; row < rows; row += block {
			n := min(block, rows-row)
			_, err := s.submitBehind(func(own bool) {
				s.clear()
				// Another session has overwritten the chunk's rows in scratch: compute them
				// again.
				if row == first || !own {
					s.reach(s.n + at)
					s.add(s.m.prefill(rows), 1, s.n+at, rows, 0)
				}
				s.add(p.program, 1, s.n+at, n, row)
			})
			if err != nil {
				return err
			}
			if err := s.interrupted(ctx); err != nil {
				return err
			}
			if err := s.readSlot(p.slot, 0, values[:n*p.width], buf); err != nil {
				return err
			}
			for i := range n {
				if err := visit(at+row+i, values[i*p.width:(i+1)*p.width]); err != nil {
					return err
				}
			}
		}
	}
	done = true
	return nil
}

// choose appends the n positions that have just been prefilled to the context and lets the
// head choose the next token.
func (s *Session) choose(ctx context.Context, n int) error {
	last, rows := s.m.lastChunk(s.n, n)
	defer s.watch(ctx)()
	_, err := s.submitBehind(func(own bool) {
		s.clear()
		if !own {
			s.reach(s.n + last)
			s.add(s.m.prefill(rows), 1, s.n+last, rows, 0)
		}
		s.addHead(s.n+last, rows)
	})
	if err == nil {
		err = s.interrupted(ctx)
	}
	if err != nil {
		s.lost()
		return err
	}
	s.setLen(s.n + n)
	s.pending, s.row = true, 0
	return nil
}

// readSlot reads one row of float32 values from a slot, using buf.
func (s *Session) readSlot(slot uint32, row int, dst []float32, buf []byte) error {
	if err := s.m.dev.Read(s.id, slot, uint64(4*row*len(dst)), buf[:4*len(dst)]); err != nil {
		return s.closedOr(err)
	}
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(buf[4*i:]))
	}
	return nil
}
