package metal

import (
	"sort"
	"time"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/cost"
	"github.com/pianola-engine/pianola/table"
)

// prices are predicted durations of a table's commands. The duration of a command grows with the
// number of positions that its rows see, which prices take to be linear.
type prices struct {
	// base and slope have an entry for each command and one more: the sums over all commands
	// before it. base is in seconds, at no positions; slope is in seconds per position.
	base, slope []float64
	programs    []table.Program
}

// leastPrice is the least duration of a command in seconds, so that every program has a price.
const leastPrice = 1e-7

// newPrices predicts the durations of a table's commands on a chip, with as many rows as their
// programs have: at the first positions and at the end of the context.
func newPrices(t *table.Table, c *chip.Chip) (*prices, error) {
	each := &prices{base: make([]float64, len(t.Cmds)+1), slope: make([]float64, len(t.Cmds)+1), programs: t.Programs}
	for i := range t.Programs {
		p := &t.Programs[i]
		context, batch := int(t.Header.Context), p.Flags.Has(table.FlagBatch)
		rows := int(p.MaxRows)
		sees := 1 // positions that the last row sees at the first point
		if !batch {
			rows = min(rows, context)
			sees = rows
		}
		few, err := cost.Program(t, p, c, cost.Point{Rows: rows, Sequences: batch})
		if err != nil {
			return nil, err
		}
		many, err := cost.Program(t, p, c, cost.Point{Position: context - sees, Rows: rows, Sequences: batch})
		if err != nil {
			return nil, err
		}
		for j := range few {
			slope := max(0, many[j].Seconds-few[j].Seconds) / float64(max(1, context-sees))
			at := int(p.First) + j + 1
			each.base[at], each.slope[at] = max(leastPrice, few[j].Seconds-slope*float64(sees)), slope
		}
	}
	for i := range t.Cmds {
		each.base[i+1] += each.base[i]
		each.slope[i+1] += each.slope[i]
	}
	return each, nil
}

// of returns the predicted duration of the commands from first to end-1 in seconds.
func (p *prices) of(first, end, positions int) float64 {
	return p.base[end] - p.base[first] + float64(positions)*(p.slope[end]-p.slope[first])
}

// fit returns the end of the longest list of commands that begins with first, ends at most at end
// and takes at most the given number of seconds.
func (p *prices) fit(first, end, positions int, seconds float64) int {
	return first + sort.Search(end-first, func(n int) bool { return p.of(first, first+n+1, positions) > seconds })
}

// longest returns the predicted duration of the longest command of a program in seconds.
func (p *prices) longest(of *table.Program, positions int) (seconds float64) {
	for i := int(of.First); i < int(of.First+of.Count); i++ {
		seconds = max(seconds, p.of(i, i+1, positions))
	}
	return seconds
}

// A chunk is shortened to a multiple of rowsUnit rows, which is the number of rows that a product
// multiplies about as fast as a single one, or below that to a multiple of leastRows.
const (
	rowsUnit  = 32
	leastRows = 8
)

// MostRows returns the largest number of rows that a chunk at a position should have, so that no
// command of the program is predicted to take longer than a command buffer may. It is 0 if the
// device has no table. It returns the same result for the same arguments as long as the table is
// loaded.
func (d *Device) MostRows(program, position int) int {
	p := d.predicted.Load()
	if p == nil || program < 0 || program >= len(p.programs) || d.o.whole {
		return 0
	}
	return p.rows(&p.programs[program], position, d.bound())
}

// rows returns the largest number of rows that a program should have at a position, so that no
// command takes longer than bound.
func (p *prices) rows(of *table.Program, position int, bound time.Duration) int {
	most := int(of.MaxRows)
	longest := p.longest(of, position+most)
	if longest <= bound.Seconds() || most <= leastRows {
		return most
	}
	// The products of a chunk, its attention and its activations take a time that is proportional
	// to the rows.
	rows, unit := int(float64(most)*bound.Seconds()/longest), rowsUnit
	if rows < rowsUnit {
		unit = leastRows
	}
	return max(leastRows, rows/unit*unit)
}

// bound returns the longest duration that a command buffer should have. Since several are in
// flight, it is a part of Options.ChainTime.
func (d *Device) bound() time.Duration { return d.o.ChainTime / flights }
