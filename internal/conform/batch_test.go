package conform

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/sequence"
)

// batchSubjects are commands for the rows of a batch. Some rows have stopped, some stop, and some name
// sequences and tokens that do not exist.
var batchSubjects = []subject{
	{kernels.ChooseRows, func(r *rand.Rand) (command, map[string]tolerance) {
		rows, parts, pool := pick(r, 1, 2, 7, 33, 70), pick(r, 1, 3, 40, 500), pick(r, 1, 3, 80)
		const ring = 40
		var best, stops []uint32
		for range rows * parts {
			v := math.Float32bits(float32(r.NormFloat64()))
			if r.IntN(9) == 0 {
				v = math.Float32bits(float32(math.NaN()))
			}
			best = append(best, v, r.Uint32N(6))
		}
		for range pool {
			stops = append(stops, r.Uint32N(5), r.Uint32N(6), r.Uint32N(6), r.Uint32N(6))
		}
		c := command{
			params: kernels.ChooseRowsParams{Parts: uint32(parts), Ring: ring, MaxStops: 3, Pool: uint32(pool)},
			second: pianolaSecond{rows: uint32(rows)},
			specs:  []uint32{decl.SequencesMany}, pool: pool,
			input: map[string][]byte{"best": u32(best...), "stops": u32(stops...)},
		}
		all := pick(r, true, false) // all rows stop
		taken := map[[2]uint32]bool{}
		for range rows {
			row := sequence.Row{
				Sequence: r.Uint32N(uint32(pool)), Position: r.Uint32N(ring), KVLen: 1 + r.Uint32N(ring), TokenIndex: r.Uint32N(ring), Count: r.Uint32N(9),
				Until: pick(r, math.MaxUint32, r.Uint32N(ring)), Stop: pick(r, uint32(0), 0, 0, sequence.StopID, sequence.StopUntil),
			}
			if r.IntN(20) == 0 {
				row.Sequence, row.TokenIndex = r.Uint32(), pick(r, r.Uint32(), ring)
			}
			if all {
				row.Until = 0
			}
			// Two rows that write the same entry race.
			at := [2]uint32{min(row.Sequence, uint32(pool)-1), min(row.TokenIndex+1, ring-1)}
			if taken[at] {
				row.Stop = sequence.StopID
			}
			taken[at] = taken[at] || row.Stop == 0
			c.rows = append(c.rows, row)
		}
		return c, nil
	}},
}

// TestBatch compares the commands with the CPU device, including the row records.
func TestBatch(t *testing.T) {
	p := inBoth(t)
	for _, s := range batchSubjects {
		k, _ := decl.Lookup(s.kernel)
		t.Run(k.Name, func(t *testing.T) { testSubject(t, p, s, 2*rounds) })
	}
}
