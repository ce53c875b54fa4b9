package cpu

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/table"
)

// attnPart is the number of positions of a part of attention. Each part, which begins at a multiple of
// attnPart, is computed as if there were no other, and the parts are added in order. So several workers can
// compute the parts of a head, and the bits depend neither on their number nor on the rows of a chunk.
const attnPart = 512

// attnTotal is the sum of the parts of a group so far. Its memory is the worker's private memory.
type attnTotal struct {
	acc      []float32 // [rows, heads, headDim]
	top, sum []float32 // [rows, heads]
	has      [attnRows]bool
}

// foldBytes returns the memory of an attnTotal for heads of d elements, at the end of the private memory.
func foldBytes(d int) int { return 4 * attnRows * d }

// total returns the total of a group, which has no parts yet.
func (k *attn) total(w *worker, g *attnGroup) attnTotal {
	n := g.rows * g.heads
	acc := float32s(w.scratch[len(w.scratch)-foldBytes(k.headDim):])
	return attnTotal{acc: acc[:n*k.headDim], top: w.totalTop[:n], sum: w.totalSum[:n]}
}

// merge adds a part to a total: the weights of both become relative to the larger maximum.
func (k *attn) merge(acc []float32, top, sum *float32, partAcc []float32, partTop, partSum float32) {
	most, a, b := *top, float32(1), float32(1)
	if partTop > most {
		a, most = exp(*top-partTop), partTop
	} else {
		b = exp(partTop - most)
	}
	k.ops.decay(acc, acc, partAcc, a, b)
	*sum = float32(*sum*a) + float32(partSum*b)
	*top = most
}

// closePart adds the part of positions [at, next) to the totals of the rows that see one of them, and begins
// another.
func (k *attn) closePart(w *worker, g *attnGroup, t *attnTotal, s, at, next int) {
	d := k.headDim
	for i := range g.rows {
		if begin, end := k.seenOf(w, g, i, s, at, next); begin >= end {
			continue
		}
		for j := i * g.heads; j < (i+1)*g.heads; j++ {
			part, total := g.acc[j*d:][:d], t.acc[j*d:][:d]
			if t.has[i] {
				k.merge(total, &t.top[j], &t.sum[j], part, g.top[j], g.sum[j])
			} else {
				copy(total, part)
				t.top[j], t.sum[j] = g.top[j], g.sum[j]
			}
			clear(part)
			g.top[j], g.sum[j] = minusInf, 0
		}
		t.has[i] = true
	}
}

// takeTotal makes the totals of the rows that have one the results of the group.
func (k *attn) takeTotal(g *attnGroup, t *attnTotal) {
	d := k.headDim
	for i := range g.rows {
		if t.has[i] {
			from, to := i*g.heads, (i+1)*g.heads
			copy(g.acc[from*d:to*d], t.acc[from*d:])
			copy(g.top[from:to], t.top[from:])
			copy(g.sum[from:to], t.sum[from:])
		}
	}
}

// partsMemory is the memory in which the workers leave the parts of a row, and a counter for each group of heads
// that share K and V.
type partsMemory struct {
	floats []float32 // [parts, heads, headDim], then the maxima and the sums, each [parts, heads]
	done   []atomic.Uint32
}

// mostParts bounds the bytes of the parts. Memory for more is not allocated, and rows that need it are not divided.
const mostParts = 32 << 20

// attention is the size of a command of attention.
type attention struct{ heads, headDim, positions int }

// attentionOf returns the size of a command that uses KV caches, and false for other commands.
func attentionOf(t *table.Table, cmd *table.Cmd) (a attention, ok bool) {
	k, known := decl.Lookup(cmd.Kernel)
	if !known || int(cmd.Spec) >= len(t.Specs) {
		return a, false
	}
	heads, _, hasHeads := k.Param("heads")
	rows, hasRows := cmd.CapacityParam()
	dim, hasDim := k.Spec("head_dim")
	if !hasHeads || !hasRows || !hasDim {
		return a, false
	}
	a.heads, a.headDim = int(binary.LittleEndian.Uint32(cmd.Param[heads:])), int(t.Specs[cmd.Spec].Values[dim])
	a.positions = int(t.Header.Context)
	if _, pooled := sequence.Of(t.Header.Options, a.positions); !pooled {
		a.positions = min(a.positions, int(binary.LittleEndian.Uint32(cmd.Param[rows:])))
	}
	return a, true
}

// partsSize returns the number of elements of the parts of each command of a table, and the largest number of heads.
func partsSize(t *table.Table) (floats uint64, heads int) {
	// The table has been checked.
	_ = device.EachCmd(name, t, func(_ int, _ *table.Program, cmd *table.Cmd) error {
		if a, ok := attentionOf(t, cmd); ok {
			row := uint64(a.positions/attnPart+2) * uint64(a.headDim+2) // of one head
			if n := uint64(a.heads); n <= mostParts/4/row {
				floats, heads = max(floats, n*row), max(heads, a.heads)
			}
		}
		return nil
	})
	return floats, heads
}

// headDivision describes how a row is divided: into groups of heads that share K and V, and into parts.
type headDivision struct {
	groups, perGroup int // groups for each K and V head, and heads of a group, except the last of a K and V head
	first, parts     int // the first part, and the number of parts
}

// divided returns the division of a row, and false if a worker is to compute all parts of its heads. That is so
// if the workers' shares of the K and V heads are even, and if there is another command in the phase, which
// might use the same memory.
func (k *attn) divided(w *worker) (v headDivision, ok bool) {
	if w.rows != 1 || !w.alone || k.split || k.newest != nil || w.use < 2 {
		return v, false
	}
	v.groups, v.perGroup = 1, k.perKV
	if k.perKV > attnRows {
		v.groups, v.perGroup = (k.perKV+attnRows-1)/attnRows, attnRows
	}
	if k.heads/k.perKV*v.groups%w.use == 0 {
		return v, false
	}
	begin, end := k.seen(w, 0, 0)
	if k.sinks != nil {
		begin = min(max(begin, k.sinks.first), end)
	}
	if begin >= end {
		return v, false
	}
	v.first = begin / attnPart
	v.parts = (end-1)/attnPart - v.first + 1
	size := uint64(v.parts) * uint64(k.heads) * uint64(k.headDim+2)
	m := &w.team.parts
	return v, v.parts > 1 && k.heads <= len(m.done) && size <= uint64(len(m.floats))
}

// shared implements sharable.
func (k *attn) shared(w *worker) bool {
	_, ok := k.divided(w)
	return ok
}

// units returns the number of units: a part of a group of heads each.
func (v *headDivision) units(k *attn) int { return k.heads / k.perKV * v.groups * v.parts }

// runParts executes units [lo, hi) of a divided row. The worker that completes the last part of a group of heads adds
// the parts.
func (k *attn) runParts(w *worker, v *headDivision, lo, hi int) {
	m, d := &w.team.parts, k.headDim
	states := m.floats[v.parts*k.heads*d:]
	sums := states[v.parts*k.heads:]
	for u := lo; u < hi; u++ {
		group, part := u/v.parts, u%v.parts
		h := group/v.groups*k.perKV + group%v.groups*v.perGroup
		n := min(v.perGroup, (group/v.groups+1)*k.perKV-h)
		var g attnGroup
		if !k.begin(w, &g, 0, 1, 0, h, n, part == 0) {
			continue
		}
		k.positions(w, &g, 0, (v.first+part)*attnPart, (v.first+part+1)*attnPart)
		at := part*k.heads + h
		copy(m.floats[at*d:], g.acc)
		copy(states[at:], g.top)
		copy(sums[at:], g.sum)
		if int(m.done[h].Add(1)) < v.parts {
			continue
		}
		m.done[h].Store(0)
		for j := range n {
			acc := g.acc[j*d:][:d]
			copy(acc, m.floats[(h+j)*d:])
			g.top[j], g.sum[j] = states[h+j], sums[h+j]
			for p := 1; p < v.parts; p++ {
				at := p*k.heads + h + j
				k.merge(acc, &g.top[j], &g.sum[j], m.floats[at*d:][:d], states[at], sums[at])
			}
			k.finish(w, &g, 0, j)
		}
	}
}
