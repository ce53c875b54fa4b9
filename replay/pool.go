package replay

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/internal/batch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/pages"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/table"
)

// pool executes the submissions of a batch.Engine on a device that has loaded a pooled table. One
// session of the device has the state of all sequences. Only the engine's goroutine uses it, except
// for Cancel.
type pool struct {
	m      *Model
	id     SessionID
	layout sequence.Layout
	step   uint32 // slot
	kinds  []pages.Kind
	caches []pageCache
	batch  [3][]batchProgram // by choice: argmax, sampled, ranked; in ascending order of rows

	placed []*choice // by sequence: the settings that the slots contain
	plain  []byte    // settings of the sampler that choose the largest logit
	buf    []byte
	ticket atomic.Uint64
	halt   atomic.Bool
}

// batchProgram is a program that decodes a token for each of up to rows rows.
type batchProgram struct{ index, rows int }

// choice is how the tokens of a request are chosen.
type choice struct {
	ranked  int  // number of likeliest tokens whose log-probabilities are kept
	sampled bool // the sampler chooses
	sampler []byte
	stops   []byte
}

// program returns the index of the choice in pool.batch.
func (c *choice) program() int {
	switch {
	case c.ranked > 0:
		return 2
	case c.sampled:
		return 1
	}
	return 0
}

// pageCache is one layer's K or V in its slot: planes of pages.
type pageCache struct {
	kind   int
	slot   uint32
	planes []plane
}

// plane is the place of the first page of a plane, and the size of a page.
type plane struct{ offset, page uint64 }

// newPool prepares a pooled table that the device has loaded.
func (m *Model) newPool(l sequence.Layout) (*pool, error) {
	p := &pool{m: m, layout: l, placed: make([]*choice, l.Sequences), kinds: make([]pages.Kind, l.Kinds)}
	for i := range p.kinds {
		p.kinds[i] = pages.Kind{Name: fmt.Sprintf("kv.%d", i), Pages: l.Pages}
	}
	_, p.step, _ = m.t.Slot(table.SlotStep)
	for i := range m.t.Programs {
		name, _, _ := strings.Cut(m.t.Programs[i].Name, ".")
		if c := slices.Index([]string{sequence.ProgramBatch, sequence.ProgramSample, sequence.ProgramRanked}, name); c >= 0 {
			p.batch[c] = append(p.batch[c], batchProgram{i, int(m.t.Programs[i].MaxRows)})
		}
	}
	for _, list := range p.batch {
		slices.SortFunc(list, func(a, b batchProgram) int { return cmp.Compare(a.rows, b.rows) })
	}
	if len(p.batch[0]) == 0 {
		return nil, errors.New("replay: the table for many sequences has no batch program")
	}
	if err := p.findCaches(); err != nil {
		return nil, err
	}
	if m.stages != nil {
		set, err := (&Sampling{}).sampler(m.stages, int(m.t.Header.Context))
		if err != nil {
			return nil, err
		}
		var b [sampler.Words * 4]byte
		set.Put(&b)
		p.plain = b[:]
	}
	var err error
	p.id, err = m.dev.NewSession()
	return p, err
}

// findCaches finds the kind and the planes of each KV cache, and what the layers of each kind see,
// in the commands that use them.
func (p *pool) findCaches() error {
	t := p.m.t
	known := map[uint32]bool{}
	for i := range t.Cmds {
		c := &t.Cmds[i]
		k, ok := decl.Lookup(c.Kernel)
		if !ok {
			continue
		}
		at, _, paged := k.Param("tables")
		if !paged {
			continue
		}
		param := func(name string) uint32 {
			if at, _, ok := k.Param(name); ok {
				return binary.LittleEndian.Uint32(c.Param[at:])
			}
			return 0
		}
		spec := func(name string) uint32 {
			if at, ok := k.Spec(name); ok {
				return t.Specs[c.Spec].Values[at]
			}
			return 0
		}
		each := 4 * uint64(p.layout.Sequences) * uint64(p.layout.Table)
		kind := int((uint64(binary.LittleEndian.Uint32(c.Param[at:])) - p.layout.TablesAt(0)) / each)
		if kind < 0 || kind >= len(p.kinds) {
			return fmt.Errorf("replay: command %d (%s): its page tables belong to no kind of layers", i, t.Label(i))
		}
		if spec("windowed") != 0 {
			p.kinds[kind].Window = int(param("window"))
			if spec("sinks") != 0 {
				p.kinds[kind].Sinks = int(param("first"))
			}
		}
		for _, b := range c.Bind[:c.Bindings] {
			if uint64(b.Slot) >= uint64(len(t.Slots)) || t.Slots[b.Slot].Kind != table.SlotKV || known[b.Slot] {
				continue
			}
			known[b.Slot] = true
			cache, offset := pageCache{kind: kind, slot: b.Slot}, uint64(0)
			for _, row := range decl.KVRowPlanes(spec("kv"), int(spec("head_dim"))) {
				if size := uint64(param("kv_heads")) * pages.Size * row; size > 0 {
					cache.planes = append(cache.planes, plane{offset, size})
					offset += size * uint64(p.layout.Pages)
				}
			}
			if offset != t.Slots[b.Slot].Size {
				return fmt.Errorf("replay: slot %s has %d bytes, its pages %d", t.Slots[b.Slot].Name, t.Slots[b.Slot].Size, offset)
			}
			p.caches = append(p.caches, cache)
		}
	}
	return nil
}

// ring returns the offset of a token of a sequence in the token ring's slot.
func (p *pool) ring(number, index int) uint64 {
	return 4 * (uint64(number)*uint64(p.m.t.Header.Context+1) + uint64(index))
}

// Place implements batch.Device.
func (p *pool) Place(at *batch.Placement) error {
	p.buf = p.buf[:0]
	for _, id := range at.Tokens[at.Known:] {
		p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32(id))
	}
	if err := p.m.dev.Write(p.id, p.m.tokens, p.ring(at.Number, at.Known), p.buf); err != nil {
		return err
	}
	c := at.Settings.(*choice)
	if p.placed[at.Number] == c {
		return nil
	}
	p.placed[at.Number] = nil
	if p.plain != nil {
		settings := p.plain
		if c.sampled {
			settings = c.sampler
		}
		if err := p.m.dev.Write(p.id, p.m.sampler, uint64(at.Number)*sampler.Size, settings); err != nil {
			return err
		}
	}
	if err := p.m.dev.Write(p.id, p.m.stops, uint64(at.Number)*4*(uint64(p.m.t.Header.MaxStops)+1), c.stops); err != nil {
		return err
	}
	p.placed[at.Number] = c
	return nil
}

// Copy implements batch.Device.
func (p *pool) Copy(copies []pages.Copy) error {
	for _, c := range copies {
		for i := range p.caches {
			cache := &p.caches[i]
			if cache.kind != c.Kind {
				continue
			}
			for _, pl := range cache.planes {
				p.buf = slices.Grow(p.buf[:0], int(pl.page))[:pl.page]
				if err := p.m.dev.Read(p.id, cache.slot, pl.offset+uint64(c.From)*pl.page, p.buf); err != nil {
					return err
				}
				if err := p.m.dev.Write(p.id, cache.slot, pl.offset+uint64(c.To)*pl.page, p.buf); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Run implements batch.Device. The rows are one submission of the device and each chunk another,
// because a stop ends the submission.
func (p *pool) Run(s *batch.Submission) error {
	for _, e := range s.Entries {
		if e.Page == pages.None {
			continue // nothing sees the positions of a released page
		}
		var b [4]byte
		binary.LittleEndian.PutUint32(b[:], uint32(e.Page))
		if err := p.m.dev.Write(p.id, p.step, p.layout.EntryAt(e.Kind, e.Number, e.Index), b[:]); err != nil {
			return err
		}
	}
	if len(s.Rows) > 0 && !p.halt.Load() {
		if err := p.rows(s); err != nil {
			return err
		}
	}
	for i := range s.Chunks {
		if err := p.chunk(s, &s.Chunks[i], &s.Results[len(s.Rows)+i]); err != nil {
			return err
		}
	}
	return nil
}

// Cancel implements batch.Device.
func (p *pool) Cancel() {
	p.halt.Store(true)
	if t := p.ticket.Load(); t != 0 {
		p.m.dev.Cancel(Ticket(t))
	}
}

// submit executes runs and adds their time to that of a submission.
func (p *pool) submit(s *batch.Submission, runs ...Run) (Result, error) {
	ticket, err := p.m.dev.Submit(&Submission{Session: p.id, Runs: runs})
	if err != nil {
		return Result{}, err
	}
	p.ticket.Store(uint64(ticket))
	if p.halt.Load() {
		p.m.dev.Cancel(ticket)
	}
	r, err := p.m.dev.Wait(ticket)
	p.ticket.Store(0)
	s.Took += max(1, r.Elapsed)
	return r, err
}

// rows decodes the rows of a submission, with the program that can choose for all of them.
func (p *pool) rows(s *batch.Submission) error {
	most, count := 0, 0
	p.buf = p.buf[:0]
	for _, r := range s.Rows {
		most, count = max(most, r.Settings.(*choice).program()), max(count, r.Tokens)
		at := uint32(r.Position)
		var b [sequence.RowBytes]byte
		(&sequence.Row{Sequence: uint32(r.Number), Position: at, KVLen: at + 1, TokenIndex: at, Until: at + uint32(r.Tokens)}).Put(&b)
		p.buf = append(p.buf, b[:]...)
	}
	i := slices.IndexFunc(p.batch[most], func(b batchProgram) bool { return b.rows >= len(s.Rows) })
	if i < 0 {
		return fmt.Errorf("replay: no batch program decodes %d rows", len(s.Rows))
	}
	if err := p.m.dev.Write(p.id, p.step, p.layout.RowAt(0), p.buf); err != nil {
		return err
	}
	run := Run{Program: uint32(p.batch[most][i].index), Count: uint32(count), Step: table.Step{KVLen: 1, Rows: uint32(len(s.Rows))}}
	if _, err := p.submit(s, run); err != nil {
		return err
	}
	records := make([]byte, len(p.buf))
	if err := p.m.dev.Read(p.id, p.step, p.layout.RowAt(0), records); err != nil {
		return err
	}
	for i, r := range s.Rows {
		row := sequence.Parse((*[sequence.RowBytes]byte)(records[i*sequence.RowBytes:]))
		if int64(row.Count) > int64(r.Tokens) {
			return fmt.Errorf("replay: a row chose %d tokens of %d", row.Count, r.Tokens)
		}
		if row.Count == 0 && !p.halt.Load() {
			return errors.New("replay: the device chose no token for a row")
		}
		if err := p.chosen(&r, int(row.Count), &s.Results[i]); err != nil {
			return err
		}
		s.Results[i].Stopped = row.Stop == sequence.StopID
	}
	return nil
}

// chosen reads n tokens that follow a row's position.
func (p *pool) chosen(r *batch.Row, n int, to *batch.Result) error {
	p.buf = slices.Grow(p.buf[:0], 4*n)[:4*n]
	if err := p.m.dev.Read(p.id, p.m.tokens, p.ring(r.Number, r.Position+1), p.buf); err != nil {
		return err
	}
	for i := range n {
		to.Tokens = append(to.Tokens, int32(binary.LittleEndian.Uint32(p.buf[4*i:])))
	}
	if r.Settings.(*choice).ranked == 0 {
		return nil
	}
	const size = sampler.RankWords * 4
	to.Ranks = make([]byte, n*size)
	for i := range n {
		at := uint64(r.Number)*sampler.RanksSize + uint64((r.Position+1+i)%sampler.RankEntries)*size
		if err := p.m.dev.Read(p.id, p.m.ranks, at, to.Ranks[i*size:][:size]); err != nil {
			return err
		}
	}
	return nil
}

// chunk prefills a part of a prompt and, if it is the last one, lets the head choose a token.
func (p *pool) chunk(s *batch.Submission, c *batch.Chunk, to *batch.Result) error {
	run := func(program, position, rows, row int) Run {
		at := uint32(position)
		return Run{Program: uint32(program), Count: 1, Step: table.Step{
			Position: at, KVRow: at, KVLen: at + 1, TokenIndex: at, Row: uint32(row), Rows: uint32(rows), Sequence: uint32(c.Number),
		}}
	}
	if to.Skipped = p.halt.Load(); to.Skipped {
		return nil
	}
	runs := []Run{run(p.m.prefill(c.Rows), c.At, c.Rows, 0)}
	if c.Last {
		choice := c.Settings.(*choice)
		head := []int{p.m.programs.head, p.m.programs.sampleHead, p.m.programs.rankedHead}[choice.program()]
		runs = append(runs, run(head, c.At+c.Rows-1, 1, c.Rows-1))
	}
	r, err := p.submit(s, runs...)
	if err != nil {
		return err
	}
	if to.Skipped = p.halt.Load(); !c.Last || to.Skipped {
		return nil
	}
	if r.Count != 1 {
		return errCut
	}
	to.Stopped = r.Stopped
	return p.chosen(&batch.Row{Number: c.Number, Position: c.At + c.Rows - 1, Settings: c.Settings}, 1, to)
}

// coster is a Device that predicts the time of the parts of a submission, as schedule.Cost does.
type coster interface {
	Decode(rows, depth int) time.Duration
	Prefill(position, rows int) time.Duration
}

// guess is the cost of a device that predicts nothing. It is corrected by measurements.
type guess struct{}

// Decode implements coster: 16 rows take twice the time of one.
func (guess) Decode(rows, depth int) time.Duration {
	return time.Duration(15+rows) * (4096 + time.Duration(depth)) * 10
}

// Prefill implements coster: a row takes as long as a row that decodes.
func (guess) Prefill(position, rows int) time.Duration {
	return time.Duration(15+rows) * (4096 + time.Duration(position)) * 10
}
