package replay

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"github.com/pianola-engine/pianola/internal/batch"
	"github.com/pianola-engine/pianola/internal/schedule"
)

// mostValues is the size in bytes of the values that a chunk of a prompt should have at most.
const mostValues = 4 << 20

// readsOf returns which positions a request reads, and in which chunks.
func (p *rowProgram) readsOf(from int) *schedule.Reads {
	return &schedule.Reads{From: from, Most: max(schedule.LeastChunk, mostValues/(4*p.width))}
}

// repromptRowsParallel implements RepromptLogits and RepromptHidden for ids that have been checked.
func (s *Session) repromptRowsParallel(ctx context.Context, p rowProgram, ids []int32, from int, visit func(row int, values []float32) error) error {
	s.settle()
	keep := 0
	for have := s.par.c.Tokens(); s.reuses() && keep < min(s.n, from) && have[keep] == ids[keep]; {
		keep++
	}
	if err := s.replace(s.par.c.Tokens()[:keep], keep, false); err != nil {
		return err
	}
	return s.visitParallel(ctx, p, ids[keep:], from, visit)
}

// visitParallel appends ids to the context and calls visit with the values of the positions from from on.
// With an error the context does not change.
func (s *Session) visitParallel(ctx context.Context, p rowProgram, ids []int32, from int, visit func(row int, values []float32) error) error {
	end := len(s.par.c.Tokens()) + len(ids)
	err := s.read(ctx, p, ids, from, visit)
	if err != nil {
		s.endParallel(-1)
		return err
	}
	s.endParallel(0)
	s.setLen(end)
	s.pending = false
	return nil
}

// read starts a request that reads positions and visits their values. The caller ends it.
func (s *Session) read(ctx context.Context, p rowProgram, ids []int32, from int, visit func(row int, values []float32) error) error {
	a := s.ask(ids)
	a.Reads, a.Settings = p.readsOf(from), &choice{stops: s.par.choice.stops, rows: &p}
	if err := s.start(a, 0); err != nil {
		return err
	}
	values := make([]float32, p.width)
	for row := from; ; {
		b, err := s.par.st.Values(ctx)
		if b == nil {
			return s.parallelError(err)
		}
		for ; len(b) >= 4*p.width; b = b[4*p.width:] {
			for i := range values {
				values[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
			}
			if err := visit(row, values); err != nil {
				return err
			}
			row++
		}
	}
}

// allLogitsParallel implements AllLogits.
func (s *Session) allLogitsParallel(ctx context.Context, ids []int32, visit func(row int, logits []float32) error) error {
	s.settle()
	if s.pending {
		return errPendingRows
	}
	if err := s.check(ids, s.n); err != nil {
		return err
	}
	at := s.n
	if err := s.visitParallel(ctx, s.m.logitsRows(), ids, at, func(row int, logits []float32) error { return visit(row-at, logits) }); err != nil {
		return err
	}
	if err := s.startParallel(nil, 1, at+len(ids)); err != nil {
		return err
	}
	s.par.fetch(ctx)
	if len(s.par.tokens) == 0 {
		err := s.parallelError(s.par.err)
		s.endParallel(-1)
		return err
	}
	s.takeParallel(1)
	s.settle()
	s.pending = true
	return nil
}

// logitsParallel implements Logits: it computes the last position once more.
func (s *Session) logitsParallel(dst []float32) error {
	s.settle()
	tokens := slices.Clone(s.par.c.Tokens())
	if err := s.par.c.Set(tokens[:s.n]); err != nil {
		return s.parallelError(err)
	}
	p := rowProgram{s.m.programs.head, s.m.logits, 1, len(dst)}
	err := s.read(context.Background(), p, nil, s.n-1, func(_ int, logits []float32) error {
		copy(dst, logits)
		return nil
	})
	s.endParallel(-1)
	return errors.Join(err, s.parallelError(s.par.c.Set(tokens)))
}

// values executes runs, of which the last one prefills a part of a chunk, and appends the values of the last
// n rows of that part to to.
func (p *pool) values(s *batch.Submission, c *batch.Chunk, runs []Run, n int, to []byte) ([]byte, error) {
	prog := c.Settings.(*choice).rows
	part := runs[len(runs)-1].Step
	rows := int(part.Rows)
	for row := rows - n; row < rows; {
		block := min(prog.block, rows-row)
		b := make([]byte, 4*block*prog.width)
		p.reads = append(p.reads[:0], Transfer{prog.slot, 0, b})
		// The program "head" also writes a token, into the ring behind the position of its row.
		if _, err := p.submit(s, append(runs, sequenceRun(c.Number, prog.program, int(part.Position)+row, block, row))...); err != nil {
			return to, err
		}
		to, row, runs = append(to, b...), row+block, runs[:0]
	}
	return to, nil
}
