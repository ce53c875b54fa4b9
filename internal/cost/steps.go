package cost

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/table"
)

// Steps predicts the times of the parts of submissions to a table for many sequences: of a token for
// each of several rows, of a chunk of a prompt, and of a joint pass of rows and prompts. It computes the
// times of a few numbers of rows at the beginning and at the end of the context once, and interpolates
// between them.
type Steps struct {
	decode, prefill []stepTime
	fill, heads     []stepTime // of joint passes: all rows, and those that choose tokens; empty if the table has none
}

// stepTime is the time of a number of rows, in seconds, at two positions.
type stepTime struct {
	rows        int
	first, last float64
	end         int // the second position; the first one is 0
}

// StepsOf returns the predictions for a table on a chip. It fails as Program does, and for a table that
// is not for many sequences.
func StepsOf(t *table.Table, c *chip.Chip) (*Steps, error) {
	batches := batchesOf(t, sequence.ProgramBatch)
	if p, _ := t.Prefill(1); len(batches) == 0 || p == nil || t.Header.Chunk < 1 {
		return nil, errors.New("cost: the table has no batch program, or none that prefills")
	}
	s := &Steps{}
	fills := batchesOf(t, sequence.ProgramFill)
	for _, part := range []struct {
		to     *[]stepTime
		list   []*table.Program
		counts func(c *table.Cmd) bool
	}{{&s.decode, batches, anyCommand}, {&s.fill, fills, forSeveral}, {&s.heads, batchesOf(t, sequence.ProgramHead), anyCommand}} {
		if len(part.list) == 0 {
			continue
		}
		for _, rows := range rowsOf(part.list) {
			i := slices.IndexFunc(part.list, func(p *table.Program) bool { return int(p.MaxRows) >= rows })
			at, err := stepTimeOf(t, part.list[i], c, rows, int(t.Header.Context)-1, part.counts)
			if err != nil {
				return nil, err
			}
			*part.to = appendStep(*part.to, at)
		}
	}
	if len(fills) > 0 {
		if err := s.addAlone(t, fills[len(fills)-1], c); err != nil {
			return nil, err
		}
	}
	for rows := 1; ; rows = min(2*rows, int(t.Header.Chunk)) {
		p, _ := t.Prefill(rows)
		if p == nil {
			return nil, errors.New("cost: the table has no program that prefills a whole chunk")
		}
		at, err := stepTimeOf(t, p, c, rows, int(t.Header.Context)-rows, anyCommand)
		if err != nil {
			return nil, err
		}
		if s.prefill = appendStep(s.prefill, at); rows == int(t.Header.Chunk) {
			return s, nil
		}
	}
}

// rowsOf returns the numbers of rows whose time is computed for a list of programs, in ascending order: powers of two,
// the fewest and the most rows that each program is used for.
func rowsOf(list []*table.Program) (rows []int) {
	most := int(list[len(list)-1].MaxRows)
	for n := 1; n < most; n *= 2 {
		rows = append(rows, n)
	}
	for _, p := range list {
		rows = append(rows, int(p.MaxRows), min(int(p.MaxRows)+1, most))
	}
	slices.Sort(rows)
	return slices.Compact(rows)
}

// batchesOf returns the programs for rows of many sequences with a name, without the number of rows that follows it,
// in ascending order of rows.
func batchesOf(t *table.Table, name string) (list []*table.Program) {
	for i := range t.Programs {
		if first, _, _ := strings.Cut(t.Programs[i].Name, "."); first == name {
			list = append(list, &t.Programs[i])
		}
	}
	slices.SortFunc(list, func(a, b *table.Program) int { return cmp.Compare(a.MaxRows, b.MaxRows) })
	return list
}

// appendStep appends the time of more rows than the last one's. More rows take no less time: where they give
// more threadgroups something to do, a program is predicted to be a little faster with them.
func appendStep(list []stepTime, at stepTime) []stepTime {
	if n := len(list); n > 0 {
		at.first, at.last = max(at.first, list[n-1].first), max(at.last, list[n-1].last)
	}
	return append(list, at)
}

// addAlone adds to the times of rows that choose a token those of the command of a joint pass, program p, for rows that
// are the only ones of their sequence: there are about as many.
func (s *Steps) addAlone(t *table.Table, p *table.Program, c *chip.Chip) error {
	pass := RatesOf(c).Pass // which the times have already
	var list []stepTime
	for _, head := range s.heads {
		own, err := stepTimeOf(t, p, c, head.rows, head.end, func(c *table.Cmd) bool { return !forSeveral(c) })
		if err != nil {
			return err
		}
		head.first, head.last = head.first+own.first-pass, head.last+own.last-pass
		list = appendStep(list, head)
	}
	s.heads = list
	return nil
}

// anyCommand counts every command of a program, and forSeveral those of a joint pass that are not only for rows that
// are the only ones of their sequence.
func anyCommand(*table.Cmd) bool   { return true }
func forSeveral(c *table.Cmd) bool { return c.Kernel != kernels.RoPEAttnTile }

// stepTimeOf predicts the commands of a program for which counts returns true, at the positions 0 and end.
func stepTimeOf(t *table.Table, p *table.Program, c *chip.Chip, rows, end int, counts func(c *table.Cmd) bool) (s stepTime, err error) {
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
			if counts(&t.Cmds[int(p.First)+i]) {
				*part.to += commands[i].Seconds
			}
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

// Joint returns the time of one pass of rows that decode and rows of prompts, heads of which choose a token. The rows
// see depth positions on average. A table without such passes takes a chunk and a batch.
func (s *Steps) Joint(rows, heads, depth int) time.Duration {
	if len(s.fill) == 0 || len(s.heads) == 0 {
		return s.Prefill(depth, rows) + s.Decode(max(heads, 1), depth)
	}
	d := between(s.fill, rows, depth)
	if heads > 0 {
		d += between(s.heads, heads, depth)
	}
	return d
}
