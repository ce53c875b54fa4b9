package cost

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/table"
)

// Steps predicts the times of the parts of submissions to a table for many sequences: of a token for
// each of several rows, and of a chunk of a prompt. It computes the times of a few numbers of rows at the
// beginning and at the end of the context once, and interpolates between them.
type Steps struct{ decode, prefill []stepTime }

// stepTime is the time of a number of rows, in seconds, at two positions.
type stepTime struct {
	rows        int
	first, last float64
	end         int // the second position; the first one is 0
}

// StepsOf returns the predictions for a table on a chip. It fails as Program does, and for a table that
// is not for many sequences.
func StepsOf(t *table.Table, c *chip.Chip) (*Steps, error) {
	var batches []*table.Program
	for i := range t.Programs {
		if p := &t.Programs[i]; p.Flags.Has(table.FlagBatch) && !p.Flags.Has(table.FlagSamples) {
			batches = append(batches, p)
		}
	}
	if p, _ := t.Prefill(1); len(batches) == 0 || p == nil || t.Header.Chunk < 1 {
		return nil, errors.New("cost: the table has no batch program, or none that prefills")
	}
	slices.SortFunc(batches, func(a, b *table.Program) int { return cmp.Compare(a.MaxRows, b.MaxRows) })
	s := &Steps{}
	most := int(batches[len(batches)-1].MaxRows)
	for rows := 1; ; rows = min(2*rows, most) {
		i := slices.IndexFunc(batches, func(p *table.Program) bool { return int(p.MaxRows) >= rows })
		at, err := stepTimeOf(t, batches[i], c, rows, int(t.Header.Context)-1)
		if err != nil {
			return nil, err
		}
		if s.decode = append(s.decode, at); rows == most {
			break
		}
	}
	for rows := 1; ; rows = min(2*rows, int(t.Header.Chunk)) {
		p, _ := t.Prefill(rows)
		if p == nil {
			return nil, errors.New("cost: the table has no program that prefills a whole chunk")
		}
		at, err := stepTimeOf(t, p, c, rows, int(t.Header.Context)-rows)
		if err != nil {
			return nil, err
		}
		if s.prefill = append(s.prefill, at); rows == int(t.Header.Chunk) {
			return s, nil
		}
	}
}

// stepTimeOf predicts a program at the positions 0 and end.
func stepTimeOf(t *table.Table, p *table.Program, c *chip.Chip, rows, end int) (s stepTime, err error) {
	s = stepTime{rows: rows, end: end}
	for _, part := range []struct {
		to *float64
		at int
	}{{&s.first, 0}, {&s.last, end}} {
		commands, err := Program(t, p, c, Point{Position: part.at, Rows: rows})
		if err != nil {
			return s, err
		}
		*part.to = RatesOf(c).Pass
		for i := range commands {
			*part.to += commands[i].Seconds
		}
	}
	return s, nil
}

// at returns the time at a position.
func (s *stepTime) at(position int) float64 {
	if s.end == 0 {
		return s.first
	}
	return s.first + (s.last-s.first)*float64(position)/float64(s.end)
}

// between returns the time of a number of rows at a position. Beyond the list it is proportional to
// the rows.
func between(list []stepTime, rows, position int) time.Duration {
	i := slices.IndexFunc(list, func(s stepTime) bool { return s.rows >= rows })
	var seconds float64
	switch {
	case i < 0:
		last := &list[len(list)-1]
		seconds = last.at(position) * float64(rows) / float64(last.rows)
	case i == 0:
		seconds = list[0].at(position)
	default:
		a, b := &list[i-1], &list[i]
		part := float64(rows-a.rows) / float64(b.rows-a.rows)
		seconds = a.at(position)*(1-part) + b.at(position)*part
	}
	return max(1, time.Duration(seconds*float64(time.Second)))
}

// Decode returns the time of one token for each of several rows, after depth positions on average.
func (s *Steps) Decode(rows, depth int) time.Duration { return between(s.decode, rows, depth) }

// Prefill returns the time of a chunk of a prompt with the given rows, from a position on.
func (s *Steps) Prefill(position, rows int) time.Duration { return between(s.prefill, rows, position) }
