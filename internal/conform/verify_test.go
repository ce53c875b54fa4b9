package conform

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/speculate"
	"github.com/pianola-engine/pianola/table"
)

// verifySubjects are the last commands of the program verify. In their drafts none, some or all
// tokens are correct, and some are stop ids. Their histories repeat themselves or not.
var verifySubjects = []subject{
	{kernels.Accept, func(r *rand.Rand) (command, map[string]tolerance) {
		rows, parts := pick(r, 1, 2, 4, 9, 32), pick(r, 1, 3, 40, 500)
		ring := uint32(40)
		token := r.Uint32N(ring - uint32(rows))
		var best []uint32
		tokens := make([]uint32, ring)
		for i := range tokens {
			tokens[i] = r.Uint32N(5)
		}
		for row := range rows {
			at := r.IntN(parts)
			id := r.Uint32N(5)
			if r.IntN(4) > 0 {
				id = tokens[int(token)+1+row]
			}
			for i := range parts {
				v := float32(r.NormFloat64())
				switch {
				case i == at:
					v = 100
				case r.IntN(9) == 0:
					v = float32(math.NaN())
				}
				best = append(best, math.Float32bits(v), id+uint32(i-at))
			}
		}
		return command{
			params: kernels.AcceptParams{Parts: uint32(parts), Ring: ring, MaxStops: 3, MaxRows: uint32(rows)},
			second: pianolaSecond{index: token, rows: uint32(rows)},
			step:   table.Step{Position: token, KVRow: token, KVLen: token + 1, TokenIndex: token, Rows: uint32(rows), Trust: uint32(pick(r, speculate.Trust(0), 1, 11, speculate.TrustMost, speculate.TrustFailed)), Until: pick(r, 0, token+uint32(rows))},
			input:  map[string][]byte{"best": u32(best...), "tokens": u32(tokens...), "stops": u32(r.Uint32N(3), 4, 3, 0)},
		}, nil
	}},
	{kernels.Draft, func(r *rand.Rand) (command, map[string]tolerance) {
		ring, draft := uint32(pick(r, 40, 300, 3000)), uint32(pick(r, 0, 1, 7, 31))
		token := r.Uint32N(ring - draft - 1)
		tokens := make([]uint32, ring)
		ids := pick(r, uint32(1), 3, 10, 10_000)
		for i := range tokens {
			tokens[i] = r.Uint32N(ids)
		}
		return command{
			params: kernels.DraftParams{Ring: ring, Draft: draft, Most: pick(r, uint32(2), 4, 15), Least: pick(r, uint32(1), 2)},
			second: pianolaSecond{rows: draft + 1},
			step:   table.Step{Position: token, KVRow: token, KVLen: token + 1, TokenIndex: token, Rows: 1, Trust: uint32(pick(r, 0, 3, 4, speculate.TrustMost, speculate.TrustFailed, speculate.Trust(r.Uint32()))), Until: pick(r, 0, token+1, token+1+min(2, draft), token+1+draft)},
			input:  map[string][]byte{"tokens": u32(tokens...)},
		}, nil
	}},
}

// TestVerify compares the commands with the CPU device, including the step block.
func TestVerify(t *testing.T) {
	p := inBoth(t)
	for _, s := range verifySubjects {
		k, _ := decl.Lookup(s.kernel)
		t.Run(k.Name, func(t *testing.T) { testSubject(t, p, s, 2*rounds) })
	}
}
