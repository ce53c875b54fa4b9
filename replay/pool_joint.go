package replay

import (
	"encoding/binary"
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
	if len(p.fill) == 0 || p.mostHeads() < p.batch[0][len(p.batch[0])-1].rows {
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

// passes returns the numbers of rows of the programs of joint passes, or nil if a pass need not fill its program. That is
// so if there is one program, as on a CPU, or one for more than twice as many rows as the one before: with so few
// programs, passes of other sizes are needed to keep bounds.
func (p *pool) passes() (rows []int) {
	most := p.joint()
	for i, f := range p.fill {
		if i > 0 && f.rows > 2*p.fill[i-1].rows {
			return nil
		}
		rows = append(rows, min(f.rows, most))
	}
	if rows = slices.Compact(rows); len(rows) < 2 {
		return nil
	}
	return rows
}

// mostHeads returns the largest number of rows of a joint pass that choose tokens, or 0 if the table has no
// programs for it.
func (p *pool) mostHeads() int {
	if len(p.heads[0]) == 0 {
		return 0
	}
	return p.heads[0][len(p.heads[0])-1].rows
}

// together executes a joint pass: one program computes the rows, the tokens of their drafts and the positions of
// the chunks, each position as a row of its sequence, and another one chooses the tokens that follow the rows,
// the tokens of drafts and the ends of prompts. Their records are the first.
func (p *pool) together(s *batch.Submission) error {
	results := s.Results[len(s.Rows):]
	if p.halt.Load() {
		skip(results)
		return nil
	}
	var ends []int // chunks with the end of a prompt
	rows := p.drafted(s.Rows)
	decoding := len(rows)
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
	p.layout.Join(records)
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
		chosen = chosen[:decoding]
		c.rows, c.results = c.rows[:decoding], chosen
	}
	if err := p.chose(&c); err != nil {
		return err
	}
	for i, r := range chosen[decoding:] {
		results[ends[i]] = r
	}
	for i := range s.Rows {
		n := 1 + len(s.Rows[i].Draft)
		s.Results[i] = accepted(s.Rows[i].Draft, chosen[:n])
		chosen = chosen[n:]
	}
	return nil
}

// drafted returns the rows of a joint pass: a row for each row's own token, and one for each token of its draft,
// which the next submission writes to the ring.
func (p *pool) drafted(rows []batch.Row) (all []batch.Row) {
	for _, r := range rows {
		draft := r.Draft
		ids := make([]byte, 0, 4*len(draft))
		for _, id := range draft {
			ids = binary.LittleEndian.AppendUint32(ids, uint32(id))
		}
		p.write(p.m.tokens, p.ring(r.Number, r.Position+1), ids)
		r.Tokens, r.Draft = 1, nil
		for range 1 + len(draft) {
			all = append(all, r)
			r.Position++
		}
	}
	return all
}

// accepted returns the result of a row from those of the rows of its draft: the tokens up to the first that is
// not the draft's, or that ends the request.
func accepted(draft []int32, chosen []batch.Result) batch.Result {
	all := chosen[0]
	for i := range draft {
		if all.Stopped || len(all.Tokens) <= i || all.Tokens[i] != draft[i] {
			break
		}
		next := &chosen[1+i]
		all.Tokens, all.Ranks = append(all.Tokens, next.Tokens...), append(all.Ranks, next.Ranks...)
		all.Stopped = next.Stopped
	}
	return all
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
