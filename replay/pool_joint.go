package replay

import (
	"fmt"
	"slices"
	"time"

	"github.com/pianola-engine/pianola/internal/batch"
	"github.com/pianola-engine/pianola/internal/schedule"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/table"
)

// joint returns the largest number of rows of a joint pass, or 0 if the table has no programs for it.
func (p *pool) joint() int {
	if len(p.fill) == 0 || len(p.heads[0]) == 0 || p.heads[0][len(p.heads[0])-1].rows < p.batch[0][len(p.batch[0])-1].rows {
		return 0
	}
	largest := p.fill[len(p.fill)-1]
	if d, ok := p.m.dev.(pacer); ok {
		if most := d.MostRows(largest.index, 0); most > 0 {
			return min(largest.rows, most)
		}
	}
	return largest.rows
}

// together executes a joint pass: one program computes the rows and the positions of the chunks, each position
// as a row of its sequence, and another one chooses the tokens that follow the rows and the ends of prompts.
// Their records are the first.
func (p *pool) together(s *batch.Submission) error {
	results := s.Results[len(s.Rows):]
	if p.halt.Load() {
		skip(results)
		return nil
	}
	var ends []int // chunks with the end of a prompt
	rows := slices.Clone(s.Rows)
	for i := range s.Chunks {
		if c := &s.Chunks[i]; c.Last {
			ends = append(ends, i)
			rows = append(rows, batch.Row{Number: c.Number, Position: c.At + c.Rows - 1, Tokens: 1, Settings: c.Settings})
		}
	}
	chosen := make([]batch.Result, len(rows))
	c := p.choosing(rows, chosen)
	heads, deepest := len(rows), 0
	records := c.records
	for i := range s.Chunks {
		c := &s.Chunks[i]
		end := c.At + c.Rows
		deepest = max(deepest, end)
		if c.Last {
			end-- // has a record already
		}
		for at := c.At; at < end; at++ {
			records = appendRow(records, c.Number, at, 1)
		}
	}
	most := 0
	for i := range rows {
		most, deepest = max(most, rows[i].Settings.(*choice).program()), max(deepest, rows[i].Position+1)
	}
	all := len(records) / sequence.RowBytes
	fill, ok := programFor(p.fill, all)
	if !ok {
		return fmt.Errorf("replay: no program computes %d rows together", all)
	}
	p.write(p.step, p.layout.RowAt(0), records)
	runs := []Run{{Program: fill, Count: 1, Step: table.Step{KVLen: uint32(deepest), Rows: uint32(all)}}}
	if heads > 0 {
		head, ok := programFor(p.heads[most], heads)
		if !ok {
			return fmt.Errorf("replay: no program chooses the tokens of %d rows together", heads)
		}
		runs = append(runs, Run{Program: head, Count: 1, Step: table.Step{KVLen: uint32(deepest), Rows: uint32(heads)}})
	}
	if _, err := p.submit(s, runs...); err != nil {
		return err
	}
	if p.halt.Load() {
		skip(results)
		chosen = chosen[:len(s.Rows)]
		c.rows, c.results = c.rows[:len(s.Rows)], chosen
	}
	if err := p.chose(&c); err != nil {
		return err
	}
	copy(s.Results, chosen[:len(s.Rows)])
	for i, r := range chosen[len(s.Rows):] {
		results[ends[i]] = r
	}
	return nil
}

// skip marks chunks as not computed.
func skip(results []batch.Result) {
	for i := range results {
		results[i].Skipped = true
	}
}

// jointCost returns a cost of submissions that predicts joint passes too. If c does not, a pass takes as long as
// its rows in a chunk of a prompt, and as much longer as a batch takes than a chunk.
func jointCost(c coster) schedule.Cost {
	if j, ok := c.(schedule.Cost); ok {
		return j
	}
	return joined{c}
}

// joined is a Cost without a prediction of joint passes.
type joined struct{ coster }

// Joint implements schedule.Cost.
func (j joined) Joint(rows, heads, depth int) time.Duration {
	d := j.Prefill(depth, rows)
	if heads > 0 {
		d += max(0, j.Decode(heads, depth)-j.Prefill(depth, heads))
	}
	return d
}
