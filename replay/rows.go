package replay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Programs that a table is compiled with only where they are asked for.
var (
	// ErrNoLogitsProgram says that the table was compiled without the program that
	// computes the logits of every row.
	ErrNoLogitsProgram = errors.New("replay: the table has no program for the logits of every row")
	// ErrNoHiddenProgram says that the table was compiled without the program that
	// keeps the last hidden states.
	ErrNoHiddenProgram = errors.New("replay: the table has no program for the hidden states of every row")
)

// AllLogits appends ids to the context as Prompt does and gives visit the
// logits of each row in order, [vocab], valid during the call. An error that
// visit returns ends it, and the context is then as it was.
func (s *Session) AllLogits(ctx context.Context, ids []int32, visit func(row int, logits []float32) error) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.done()
	if s.m.programs.logits < 0 {
		return ErrNoLogitsProgram
	}
	if s.pending {
		return errors.New("replay: the logits of every row need a context without a pending token")
	}
	if err := s.rows(ctx, s.m.logitsRows(), ids, 0, visit); err != nil {
		return err
	}
	return s.choose(ctx, len(ids))
}

// RepromptLogits makes ids the context, as Reprompt does, and gives visit the logits
// of each row from a row of ids on, in order, [vocab], valid during the call. At most
// the rows before that are kept of what the context had. It ends with no pending token.
//
// If ids cannot be a context, it is as it was. Otherwise an error, that of visit too,
// leaves what was kept.
func (s *Session) RepromptLogits(ctx context.Context, ids []int32, from int, visit func(row int, logits []float32) error) error {
	return s.repromptRows(ctx, s.m.logitsRows(), ErrNoLogitsProgram, ids, from, visit)
}

// RepromptHidden is RepromptLogits for the hidden states behind the last norm, of
// which the head makes logits, [width].
func (s *Session) RepromptHidden(ctx context.Context, ids []int32, from int, visit func(row int, hidden []float32) error) error {
	return s.repromptRows(ctx, s.m.hiddenRows(), ErrNoHiddenProgram, ids, from, visit)
}

// rowProgram is a program that leaves something of a block of a chunk's rows in a
// slot, [block, width] float32.
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
		return fmt.Errorf("replay: row %d of %d tokens", from, len(ids))
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

// rows prefills ids behind the context, which stays as it is, and visits what a
// program makes of the rows from one on.
func (s *Session) rows(ctx context.Context, p rowProgram, ids []int32, from int, visit func(row int, values []float32) error) error {
	chunk := int(s.m.t.Header.Chunk)
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
	for at := 0; at < len(ids); at += chunk {
		rows := min(chunk, len(ids)-at)
		first := max(0, from-at)
		if first >= rows {
			s.sub.Runs = s.sub.Runs[:0]
			s.add(s.m.programs.prefill, 1, s.n+at, rows, 0)
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
				s.sub.Runs = s.sub.Runs[:0]
				// Another session has the chunk's rows overwritten: they are
				// computed again.
				if row == first || !own {
					s.add(s.m.programs.prefill, 1, s.n+at, rows, 0)
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

// choose makes the n positions behind the context part of it, which have just been
// prefilled, and has the token chosen that follows.
func (s *Session) choose(ctx context.Context, n int) error {
	chunk := int(s.m.t.Header.Chunk)
	last := (n - 1) / chunk * chunk
	defer s.watch(ctx)()
	_, err := s.submitBehind(func(own bool) {
		s.sub.Runs = s.sub.Runs[:0]
		if !own {
			s.add(s.m.programs.prefill, 1, s.n+last, n-last, 0)
		}
		s.addHead(s.n+last, n-last)
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

// readSlot reads a row of float32 values of a slot, through buf.
func (s *Session) readSlot(slot uint32, row int, dst []float32, buf []byte) error {
	if err := s.m.dev.Read(s.id, slot, uint64(4*row*len(dst)), buf[:4*len(dst)]); err != nil {
		return s.closedOr(err)
	}
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(buf[4*i:]))
	}
	return nil
}
