package conform

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/recurrent"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/table"
)

// pooling is the form of a command in a pooled table. It keeps the meaning of a command that works on the
// state of its session: the state becomes that of sequences, and the rows may be in other places among the
// rows of a batch.
type pooling struct {
	own  command
	kind uint32 // decl.SequencesOne or decl.SequencesMany
	pool int    // sequences
	to   []int  // the row of the pooled command that each row becomes
	of   []int  // the sequence of each row
	rows int    // rows of the pooled command

	joined bool // the pooled command computes only rows that are not the only ones of their sequence

	pages   int
	entries [][]uint32 // the page tables, [pool][entries]

	state map[string]int    // bytes of a sequence's part of a binding
	row   map[string]int    // bytes from one row of a binding to the next
	kv    map[string][2]int // caches: the heads, and the bytes of a row
	scale map[string]int    // caches of int8: the bytes of a row's scales
	ring  recurrent.Ring    // states: those of the command for a session
	each  int               // states: bytes of one
	cap   int               // rows of the cache of the command for a session
	first int               // rows that stay, at the beginning of this cache
}

// pooled returns the form of a command in a pooled table.
func pooled(c command, kind uint32, r *rand.Rand) *pooling {
	p := &pooling{own: c, kind: kind, pool: pick(r, 1, 2, 5), state: map[string]int{}, row: map[string]int{}, kv: map[string][2]int{}, scale: map[string]int{}}
	n := int(max(c.second.rows, 1))
	follow := false // most rows follow others of their sequence
	p.rows = n
	if kind == decl.SequencesMany {
		p.rows += r.IntN(4)
		p.to = r.Perm(p.rows)[:n]
		if follow = r.IntN(2) == 0; follow {
			slices.Sort(p.to)
		}
	} else {
		for i := range n {
			p.to = append(p.to, i)
		}
	}
	one := r.IntN(p.pool)
	for range n {
		if kind == decl.SequencesMany && (!follow || r.IntN(8) == 0) {
			one = r.IntN(p.pool)
		}
		p.of = append(p.of, one)
	}
	return p
}

// place gives each sequence pages for its positions, in a random order.
func (p *pooling) place(context int, r *rand.Rand) {
	each := (context + sequence.PagePositions - 1) / sequence.PagePositions
	p.pages = each*p.pool + r.IntN(3)
	free := r.Perm(p.pages)
	for s := range p.pool {
		p.entries = append(p.entries, nil)
		for range each {
			p.entries[s] = append(p.entries[s], uint32(free[0]))
			free = free[1:]
		}
	}
}

// record returns the record of row i of the command for a session.
func (p *pooling) record(i int) sequence.Row {
	at := p.own.second.index + uint32(i)
	return sequence.Row{Sequence: uint32(p.of[i]), Position: at, KVLen: uint32(p.sees(i)), TokenIndex: at, Joined: one(p.shares(i))}
}

// shares reports whether other rows of the command belong to the sequence of row i.
func (p *pooling) shares(i int) bool {
	return slices.Contains(p.of[:i], p.of[i]) || slices.Contains(p.of[i+1:], p.of[i])
}

// records returns the records of all rows. Those that are not rows of the own command have stopped or, for a kernel
// that does not compute several rows of a sequence, are such rows.
func (p *pooling) records() []sequence.Row {
	list := make([]sequence.Row, p.rows)
	for i := range list {
		list[i] = sequence.Row{KVLen: 1, Stop: sequence.StopID}
		if p.own.kernel == kernels.RoPEAttnTile {
			list[i] = sequence.Row{Sequence: uint32((p.of[0] + 1) % p.pool), Position: uint32(i), KVLen: uint32(i) + 1, TokenIndex: uint32(i), Joined: 1}
		}
	}
	for i, to := range p.to {
		list[to] = p.record(i)
	}
	return list
}

// skips reports whether the pooled command writes nothing to rows that it does not compute.
func (p *pooling) skips() bool {
	switch p.own.kernel {
	case kernels.QKRoPEKV, kernels.AttnTile, kernels.RoPEAttnTile:
		return true
	}
	return false
}

// computed reports whether the pooled command computes row i of the command for a session.
func (p *pooling) computed(i int) bool { return !p.joined || p.shares(i) }

// spread returns the rows of a binding in their new places; the others are 0.
func (p *pooling) spread(b []byte, size int) []byte {
	last := len(b) - (len(p.to)-1)*size // the last row may be shorter
	out := make([]byte, (p.rows-1)*size+last)
	for i, to := range p.to {
		copy(out[to*size:], b[i*size:min(len(b), i*size+size)])
	}
	return out
}

// cacheRow returns the elements and the scales of a row in a cache of a number of rows.
func (p *pooling) cacheRow(cache []byte, name string, rows, row int) [][]byte {
	heads, size := p.kv[name][0], p.kv[name][1]
	out := [][]byte{cache[row*size:][:size]}
	if n := p.scale[name]; n > 0 {
		out = append(out, cache[heads*rows*size+row*n:][:n])
	}
	return out
}

// places returns the row of a position of a head in the session's cache, and in the pages of a sequence.
func (p *pooling) places(s, at, head, heads int) (own, paged int) {
	own = at
	if at >= p.first {
		own = p.first + (at-p.first)%(p.cap-p.first)
	}
	page := int(p.entries[s][at/sequence.PagePositions])
	return head*p.cap + own, (page*heads+head)*sequence.PagePositions + at%sequence.PagePositions
}

// end returns the number of positions that the last row sees.
func (p *pooling) end() int { return p.sees(len(p.to) - 1) }

// sees returns the number of positions that row i of the command for a session sees.
func (p *pooling) sees(i int) int { return int(max(p.own.second.kvLen, 1)) + i }

// endOf returns the number of positions that the last row of a sequence sees, or 0 if it has no row.
func (p *pooling) endOf(s int) int {
	for i := len(p.of) - 1; i >= 0; i-- {
		if p.of[i] == s {
			return p.sees(i)
		}
	}
	return 0
}

// paged returns a cache in pages. Rows that no position of their sequence has are 0xff, which is NaN.
func (p *pooling) paged(own []byte, name string) []byte {
	heads, rows := p.kv[name][0], p.pages*sequence.PagePositions
	out := bytes.Repeat([]byte{0xff}, heads*rows*(p.kv[name][1]+p.scale[name]))
	for s := range p.pool {
		for at := range p.endOf(s) {
			if at >= p.first && at < p.end()-(p.cap-p.first) {
				continue // a later position has replaced it
			}
			for h := range heads {
				from, to := p.places(s, at, h, heads)
				a, b := p.cacheRow(own, name, p.cap, from), p.cacheRow(out, name, rows, to)
				for i := range a {
					copy(b[i], a[i])
				}
			}
		}
	}
	return out
}

// contents returns the initial contents of the pooled command's bindings.
func (p *pooling) contents(own [decl.MaxBindings][]byte, r *rand.Rand) map[string][]byte {
	k := mustLookup(p.own.kernel)
	in := map[string][]byte{}
	for i, b := range k.Bindings {
		switch size := p.state[b.Name]; {
		case own[i] == nil:
		case p.kv[b.Name] != [2]int{}:
			in[b.Name] = p.paged(own[i], b.Name)
		case b.Name == decl.StateBinding:
			in[b.Name] = p.pagedStates(own[i])
		case size > 0:
			all := make([]byte, (p.pool-1)*size+len(own[i]))
			for j := range all {
				all[j] = byte(r.Uint32())
			}
			for _, s := range p.of {
				copy(all[s*size:], own[i])
			}
			in[b.Name] = all
		case p.row[b.Name] > 0:
			in[b.Name] = p.spread(own[i], p.row[b.Name])
		default:
			in[b.Name] = own[i]
		}
	}
	return in
}

// check compares the memory after the pooled command with that after the command for a session: rows, state
// and caches must be the same bits.
func (p *pooling) check(before [decl.MaxBindings][]byte, got, want *outcome) error {
	for i, b := range mustLookup(p.own.kernel).Bindings {
		g, w := got.bindings[i], want.bindings[i]
		switch size := p.row[b.Name]; {
		case w == nil || b.Role == decl.Read:
		case b.Name == decl.StateBinding:
			if err := p.checkStates(before[i], g, w); err != nil {
				return err
			}
		case p.kv[b.Name] != [2]int{}:
			if err := p.checkCache(b.Name, before[i], g, w); err != nil {
				return err
			}
		case p.state[b.Name] > 0:
			for _, s := range p.of {
				if at := s * p.state[b.Name]; !bytes.Equal(g[at:][:len(w)], w) {
					return fmt.Errorf("%s of sequence %d differs", b.Name, s)
				}
			}
		case size > 0:
			for to := range p.rows {
				at := to * size
				row := before[i][at:]
				if j := slices.Index(p.to, to); j >= 0 && p.computed(j) {
					row = w[j*size:]
				} else if !p.skips() {
					continue
				}
				if n := min(size, len(g)-at, len(row)); !bytes.Equal(g[at:][:n], row[:n]) {
					return fmt.Errorf("row %d of %s differs (rows %v)", to, b.Name, p.to)
				}
			}
		}
	}
	return nil
}

// checkCache compares the positions that the rows write. Other positions must not change.
func (p *pooling) checkCache(name string, before, got, want []byte) error {
	heads, rows := p.kv[name][0], p.pages*sequence.PagePositions
	after := slices.Clone(before)
	for i, s := range p.of {
		if !p.computed(i) {
			continue
		}
		for h := range heads {
			own, paged := p.places(s, p.sees(i)-1, h, heads)
			a, b := p.cacheRow(want, name, p.cap, own), p.cacheRow(after, name, rows, paged)
			for j := range a {
				copy(b[j], a[j])
			}
		}
	}
	if !bytes.Equal(got, after) {
		return fmt.Errorf("%s differs", name)
	}
	return nil
}

// stateIn returns the state at a position in the page of the sequence of the rows.
func (p *pooling) stateIn(all []byte, position int) []byte {
	page := int(p.entries[p.of[0]][(position-1)/sequence.PagePositions])
	return all[page*p.each:][:p.each]
}

// pagedStates returns the states in pages. Those that no row begins with are NaN.
func (p *pooling) pagedStates(own []byte) []byte {
	out := bytes.Repeat([]byte{0xff}, p.pages*p.each)
	if at := int(p.own.second.index); at > 0 {
		copy(p.stateIn(out, at), own[p.ring.Entry(at)*p.each:])
	}
	return out
}

// checkStates compares the states at borders and after the last row that are still in the ring. Other
// pages must not change.
func (p *pooling) checkStates(before, got, want []byte) error {
	first, after := int(p.own.second.index), slices.Clone(before)
	end := first + len(p.to)
	for at := first + 1; at <= end; at++ {
		if at%recurrent.Border != 0 && at != end {
			continue
		}
		own := want[p.ring.Entry(at)*p.each:][:p.each]
		if later := at + recurrent.Border*p.ring.Saved; at%recurrent.Border == 0 && later <= end {
			own = p.stateIn(got, at) // replaced in the ring
		}
		copy(p.stateIn(after, at), own)
	}
	if !bytes.Equal(got, after) {
		return errors.New("the states differ")
	}
	return nil
}

// command returns the pooled command. Rows that are not those of the own command have stopped.
func (p *pooling) command(specs []uint32, params interface{ Put(*table.Cmd) }, in map[string][]byte) command {
	c := p.own
	c.specs, c.params, c.pool, c.pages, c.input, c.entries = specs, params, p.pool, p.pages, in, p.entries
	if p.kind == decl.SequencesOne {
		c.one = uint32(p.of[0])
		return c
	}
	c.second = pianolaSecond{kvLen: 1, rows: uint32(p.rows)}
	c.rows = p.records()
	return c
}

// withConstant returns the constants with one at an index.
func withConstant(specs []uint32, at int, value uint32) []uint32 {
	out := make([]uint32, max(at+1, len(specs)))
	copy(out, specs)
	out[at] = value
	return out
}

// caches describes the caches of the command for a session.
func (p *pooling) caches(heads, headDim, capacity, first int, kind uint32) {
	planes := decl.KVRowPlanes(kind, headDim)
	for _, name := range []string{"k_cache", "v_cache"} {
		p.kv[name], p.scale[name] = [2]int{heads, int(planes[0])}, int(planes[1])
	}
	p.cap, p.first = capacity, first
}

// describe describes the bindings of the own command, and returns the constants and parameters of the pooled one.
func (p *pooling) describe(r *rand.Rand) (specs []uint32, params interface{ Put(*table.Cmd) }) {
	c := &p.own
	tables, entries := uint32(0), uint32(0)
	if p.entries != nil {
		tables, entries = uint32(sequence.StepBytes+p.recorded()*sequence.RowBytes), uint32(len(p.entries[0]))
	}
	pool, rows := uint32(p.pool), uint32(p.pages*sequence.PagePositions)
	stride := uint32(len(c.input["settings"])+15) / 16 * 16
	words := 4
	switch q := c.params.(type) {
	case kernels.EmbedParams:
		p.state["tokens"], p.row["out"] = words*int(q.Ring), words*int(q.N)
		q.Pool = pool
		return withConstant(c.specs, kernels.EmbedSpecSequences, p.kind), q
	case kernels.RoPEAnglesParams:
		p.row["out"] = 2 * words * int(q.Half)
		return withConstant(c.specs, kernels.RoPEAnglesSpecSequences, p.kind), q
	case kernels.KVWriteParams:
		kind := c.specs[kernels.KVWriteSpecKV]
		p.row["k"], p.row["v"] = words*int(q.KStride), words*int(q.VStride)
		p.caches(int(q.KVHeads), int(c.specs[kernels.KVWriteSpecHeadDim]), int(q.Cap), int(q.First), kind)
		q.Cap, q.First, q.Tables, q.Table, q.Pool = rows, 0, tables, entries, pool
		return withConstant(c.specs, kernels.KVWriteSpecSequences, p.kind), q
	case kernels.LatentKVParams:
		d := int(c.specs[kernels.LatentKVSpecHeadDim])
		p.row["q"], p.row["kv"], p.row["angles"] = words*int(q.QStride), words*int(q.KVStride), 2*words*int(q.Half)
		p.row["q_out"] = words * int(q.Heads) * d
		p.caches(int(q.KVHeads), d, int(q.Cap), int(q.First), c.specs[kernels.LatentKVSpecKV])
		q.Cap, q.First, q.Tables, q.Table, q.Pool = rows, 0, tables, entries, pool
		return withConstant(c.specs, kernels.LatentKVSpecSequences, p.kind), q
	case kernels.QKRoPEKVParams:
		d := int(c.specs[kernels.QKRoPEKVSpecHeadDim])
		p.row["q"], p.row["k"], p.row["v"], p.row["angles"] = words*int(q.QStride), words*int(q.KStride), words*int(q.VStride), 2*words*int(q.Half)
		p.row["q_out"] = words * int(q.Heads) * d
		p.caches(int(q.KVHeads), d, int(q.Cap), 0, decl.KVF16)
		q.Cap, q.Tables, q.Table, q.Pool, q.Joined = rows, tables, entries, pool, p.part(r)
		return withConstant(c.specs, kernels.QKRoPEKVSpecSequences, p.kind), q
	case kernels.AttnParams:
		d, kind := int(c.specs[kernels.AttnSpecHeadDim]), c.specs[kernels.AttnSpecKV]
		p.row["q"], p.row["turn"] = words*int(q.QStride), 2*words*int(q.Half)
		p.row["out"] = words * int(q.Heads*q.Splits) * d
		if c.specs[kernels.AttnSpecSplit] != 0 {
			p.row["out"] += 2 * words * int(q.Heads*q.Splits)
		}
		p.caches(int(q.KVHeads), d, int(q.Cap), int(q.First), kind)
		q.Cap, q.Tables, q.Table, q.Pool = rows, tables, entries, pool
		return withConstant(c.specs, kernels.AttnSpecSequences, p.kind), q
	case kernels.AttnChunkParams:
		d, kind := int(c.specs[kernels.AttnChunkSpecHeadDim]), c.specs[kernels.AttnChunkSpecKV]
		p.row["q"], p.row["out"] = words*int(q.QStride), words*int(q.Heads)*d
		p.caches(int(q.KVHeads), d, int(q.Cap), 0, kind)
		q.Cap, q.Tables, q.Table, q.Pool = rows, tables, entries, pool
		return withConstant(c.specs, kernels.AttnChunkSpecSequences, p.kind), q
	case kernels.AttnTileParams:
		d, kind := int(c.specs[kernels.AttnTileSpecHeadDim]), c.specs[kernels.AttnTileSpecKV]
		p.row["q"], p.row["out"], p.row["halves"] = words*int(q.QStride), words*int(q.Heads)*d, halvesSize(int(q.Heads)*d, decl.ActF16)
		p.caches(int(q.KVHeads), d, int(q.Cap), 0, kind)
		q.Cap, q.Tables, q.Table, q.Pool = rows, tables, entries, pool
		if c.specs[kernels.AttnTileSpecAct] != decl.ActF32 {
			q.Joined = p.part(r)
		}
		return withConstant(c.specs, kernels.AttnTileSpecSequences, p.kind), q
	case kernels.RoPEAttnTileParams:
		d, kind := int(c.specs[kernels.RoPEAttnTileSpecHeadDim]), c.specs[kernels.RoPEAttnTileSpecKV]
		p.row["q"], p.row["k"], p.row["v"], p.row["angles"] = words*int(q.QStride), words*int(q.KVStride), words*int(q.KVStride), 2*words*int(q.Half)
		p.row["halves"] = halvesSize(int(q.Heads)*d, decl.ActF16)
		p.caches(int(q.KVHeads), d, int(q.Cap), 0, kind)
		q.Cap, q.Tables, q.Table, q.Pool = rows, tables, entries, pool
		return withConstant(c.specs, kernels.RoPEAttnTileSpecSequences, p.kind), q
	case kernels.CausalConvParams:
		p.row["x"], p.row["out"] = words*int(q.XStride), words*int(q.N)
		p.ring, p.each = recurrent.Ring{Live: int(q.Live), Saved: int(q.Saved)}, words*int(q.Taps-1)*int(q.N)
		q.Live, q.Saved, q.Each, q.Tables, q.Table, q.Pool = 0, uint32(p.pages), 0, tables, entries, pool
		return withConstant(c.specs, kernels.CausalConvSpecSequences, p.kind), q
	case kernels.DeltaRuleParams:
		p.row["x"], p.row["gates"], p.row["out"] = words*int(q.XStride), words*int(q.GateStride), words*int(q.Heads*q.ValueDim)
		p.ring, p.each = recurrent.Ring{Live: int(q.Live), Saved: int(q.Saved)}, words*int(q.Heads*q.ValueDim*q.KeyDim)
		q.Live, q.Saved, q.Each, q.Tables, q.Table, q.Pool = 0, uint32(p.pages), 0, tables, entries, pool
		return withConstant(c.specs, kernels.DeltaRuleSpecSequences, p.kind), q
	case kernels.SSMScanParams:
		p.row["x"], p.row["steps"], p.row["out"] = words*int(q.XStride), words*int(q.StepStride), words*int(q.Heads*q.HeadDim)
		p.ring, p.each = recurrent.Ring{Live: int(q.Live), Saved: int(q.Saved)}, words*int(q.Heads*q.HeadDim*q.StateDim)
		q.Live, q.Saved, q.Each, q.Tables, q.Table, q.Pool = 0, uint32(p.pages), 0, tables, entries, pool
		return withConstant(c.specs, kernels.SSMScanSpecSequences, p.kind), q
	case kernels.ScaleRowsParams:
		p.row["x"] = words * int(q.Stride)
		return withConstant(c.specs, kernels.ScaleRowsSpecSequences, p.kind), q
	case kernels.ArgmaxParams:
		p.state["stops"], p.state["tokens"] = words*(1+int(q.MaxStops)), words*int(q.Ring)
		q.Pool = pool
		return withConstant(c.specs, kernels.ArgmaxSpecSequences, p.kind), q
	case kernels.SampleAdjustParams:
		parts := (q.N + q.Part - 1) / q.Part
		p.state["tokens"], p.state["settings"] = words*int(q.Ring), int(stride)
		p.row["logits"], p.row["keys"], p.row["largest"] = words*int(q.N), words*int(q.N), words*int(parts)
		q.Pool, q.Stride = pool, stride
		return withConstant(c.specs, kernels.SampleAdjustSpecSequences, p.kind), q
	case kernels.SampleFilterParams:
		parts := (q.N + q.Part - 1) / q.Part
		p.state["settings"], p.row["keys"], p.row["largest"], p.row["limit"] = int(stride), words*int(q.N), words*int(parts), 4*words
		q.Pool, q.Stride = pool, stride
		return withConstant(c.specs, kernels.SampleFilterSpecSequences, p.kind), q
	case kernels.SampleDrawParams:
		parts := (q.N + q.Part - 1) / q.Part
		p.state["settings"], p.row["keys"], p.row["limit"], p.row["out"] = int(stride), words*int(q.N), 4*words, 2*words*int(parts)
		q.Pool, q.Stride = pool, stride
		return withConstant(c.specs, kernels.SampleDrawSpecSequences, p.kind), q
	case kernels.RankPartParams:
		parts := (q.N + q.Part - 1) / q.Part
		p.state["settings"], p.row["logits"], p.row["out"] = int(stride), words*int(q.N), words*sampler.RankWords*int(parts)
		q.Pool, q.Stride = pool, stride
		return withConstant(c.specs, kernels.RankPartSpecSequences, p.kind), q
	case kernels.RankParams:
		parts := (q.N + q.Part - 1) / q.Part
		p.state["settings"], p.state["ranks"] = int(stride), words*sampler.RankWords*int(q.Entries)
		p.row["logits"], p.row["parts"], p.row["drawn"] = words*int(q.N), words*sampler.RankWords*int(parts), 2*words*int(q.Pairs)
		q.Pool, q.Stride = pool, stride
		return withConstant(c.specs, kernels.RankSpecSequences, p.kind), q
	}
	panic(fmt.Sprintf("%T has no form for pooled tables", c.params))
}

// part returns the parameter joined of the pooled command, sometimes 1.
func (p *pooling) part(r *rand.Rand) uint32 {
	p.joined = p.kind == decl.SequencesMany && r.IntN(2) == 0
	return one(p.joined)
}

// recorded returns the number of row records in the step block.
func (p *pooling) recorded() int {
	if p.kind == decl.SequencesMany {
		return p.rows
	}
	return 1
}

// checkPooled runs a command and its pooled forms, on the CPU device and on the emulator. Each device must give
// the rows of both the same bits.
func checkPooled(t *testing.T, e *emu.Program, c command, r *rand.Rand, seed uint64, threads int) {
	t.Helper()
	tab, slots := c.tableOf(t)
	before := c.contents(t, tab, slots, r)
	cpuWant := c.onCPU(t, tab, slots, before)
	want := c.emulated(t, e, tab, before, launch{threads: threads, seed: seed})
	for _, kind := range []uint32{decl.SequencesOne, decl.SequencesMany} {
		if kind == decl.SequencesMany && (c.kernel == kernels.Argmax || has(c, decl.StateBinding) && c.second.rows > 1) {
			continue // choose_rows takes its place, or a sequence would have several rows
		}
		p := pooled(c, kind, r)
		if hasPages(c) {
			p.place(int(c.context), r)
		}
		specs, params := p.describe(r)
		d := p.command(specs, params, p.contents(before, r))
		ptab, pslots := d.tableOf(t)
		contents := d.contents(t, ptab, pslots, r)
		if err := p.check(contents, d.onCPU(t, ptab, pslots, contents), cpuWant); err != nil {
			t.Fatalf("seed %d: %+v %v: on the CPU: %v", seed, params, specs, err)
		}
		for _, o := range []emu.Order{emu.Forward, emu.Random} {
			got := d.emulated(t, e, ptab, contents, launch{threads: threads, extra: uint32(r.IntN(3)), order: o, seed: seed})
			if err := p.check(contents, got, want); err != nil {
				t.Fatalf("seed %d, %d threads: %+v %v: %v", seed, threads, params, specs, err)
			}
		}
	}
}

// has reports whether a command has a binding.
func has(c command, name string) bool {
	return slices.ContainsFunc(mustLookup(c.kernel).Bindings, func(b decl.Binding) bool { return b.Name == name })
}

// hasPages reports whether a command has a KV cache or states.
func hasPages(c command) bool { return has(c, "k_cache") || has(c, decl.StateBinding) }

// TestPooled compares commands for a session with their forms in a pooled table.
func TestPooled(t *testing.T) {
	p := inBoth(t)
	for _, s := range slices.Concat(subjects, sampleSubjects) {
		k := mustLookup(s.kernel)
		if !slices.ContainsFunc(k.Specs, func(c decl.Constant) bool { return c.Name == "sequences" }) {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			for seed := range 2 * rounds {
				r := rand.New(rand.NewPCG(seed, 18))
				c, _ := s.make(r)
				c.kernel = s.kernel
				for has(c, decl.StateBinding) && seed%2 == 0 && c.second.rows > 1 {
					c, _ = s.make(r) // for a batch
					c.kernel = s.kernel
				}
				if hasPages(c) {
					c.context = c.second.index + c.second.kvLen + c.second.rows + r.Uint32N(100)
				}
				checkPooled(t, p.at(seed), c, r, seed, pick(r, 32, 64, 256, 1024))
			}
		})
	}
	t.Run("attn", func(t *testing.T) {
		for seed := range 8 * rounds {
			r := rand.New(rand.NewPCG(seed, 19))
			a := randomAttention(r, 300)
			checkPooled(t, p.at(seed), a.command(r), r, seed, pick(r, 32, 64, 128, 256, 512))
		}
	})
	t.Run("attn_tile", func(t *testing.T) {
		for seed := range 8 * rounds {
			r := rand.New(rand.NewPCG(seed, 20))
			e := p.at(seed)
			a, _ := randomTile(r, seed)
			a.rows, a.tile.few = min(a.rows, 17), false // interleaved rows have no place of their own
			if e.Apple() {
				a.tile = a.matrices()
			}
			c := a.tiled(a.command(r))
			checkPooled(t, e, c, r, seed, a.tile.threads)
		}
	})
}
