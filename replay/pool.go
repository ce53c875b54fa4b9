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
	fill   []batchProgram    // for joint passes, in ascending order of rows; may be empty
	heads  [3][]batchProgram // after fill, by choice

	placed []*choice // by sequence: the settings that the slots contain
	plain  []byte    // settings of the sampler that choose the largest logit

	// Of the next submission. tables are the page tables of the step block as the device will have them.
	moves   []Move
	writes  []Transfer
	reads   []Transfer
	tables  []byte
	changed []uint64 // places in the step block of entries that the device does not have

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
	rows    *rowProgram // of a request that reads positions
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

// pageCache is one layer's K or V, or its states, in its slot: planes of pages.
type pageCache struct {
	kind   int
	slot   uint32
	planes []plane
}

// size returns the bytes of a page.
func (c *pageCache) size() (n uint64) {
	for _, pl := range c.planes {
		n += pl.page
	}
	return n
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
	lists := map[string]*[]batchProgram{
		sequence.ProgramBatch: &p.batch[0], sequence.ProgramSample: &p.batch[1], sequence.ProgramRanked: &p.batch[2],
		sequence.ProgramHead: &p.heads[0], sequence.ProgramSampleHead: &p.heads[1], sequence.ProgramRankedHead: &p.heads[2], sequence.ProgramFill: &p.fill,
	}
	for i := range m.t.Programs {
		name, _, _ := strings.Cut(m.t.Programs[i].Name, ".")
		if list := lists[name]; list != nil {
			*list = append(*list, batchProgram{i, int(m.t.Programs[i].MaxRows)})
		}
	}
	for _, list := range lists {
		slices.SortFunc(*list, func(a, b batchProgram) int { return cmp.Compare(a.rows, b.rows) })
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
	if p.id, err = m.dev.NewSession(); err != nil {
		return nil, err
	}
	p.tables = make([]byte, l.Size()-l.TablesAt(0)) // no more than the device has allocated
	// The device prepares its recordings now, and not for the first request.
	return p, m.dev.Reserve(p.id, int(m.t.Header.Context))
}

// findCaches finds the kind and the planes of each KV cache and of each slot with states, and what the
// layers of each kind see, in the commands that use them.
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
			if uint64(b.Slot) >= uint64(len(t.Slots)) || known[b.Slot] {
				continue
			}
			cache := pageCache{kind: kind, slot: b.Slot}
			switch t.Slots[b.Slot].Kind {
			case table.SlotKV:
				offset := uint64(0)
				for _, row := range decl.KVRowPlanes(spec("kv"), int(spec("head_dim"))) {
					if size := uint64(param("kv_heads")) * pages.Size * row; size > 0 {
						cache.planes = append(cache.planes, plane{offset, size})
						offset += size * uint64(p.layout.Pages)
					}
				}
			case table.SlotState:
				cache.planes = []plane{{0, t.Slots[b.Slot].Size / uint64(max(p.layout.States, 1))}}
			default:
				continue
			}
			known[b.Slot] = true
			p.caches = append(p.caches, cache)
		}
	}
	return p.checkCaches()
}

// checkCaches sets the kinds of layers with recurrent state. It returns an error if a kind has other layers
// too, or a slot is larger or smaller than its pages.
func (p *pool) checkCaches() error {
	state, kv := make([]bool, len(p.kinds)), make([]bool, len(p.kinds))
	for i := range p.caches {
		c := &p.caches[i]
		slot, count := &p.m.t.Slots[c.slot], p.layout.Pages
		if slot.Kind == table.SlotState {
			count, state[c.kind] = p.layout.States, true
			p.kinds[c.kind] = pages.Kind{Name: p.kinds[c.kind].Name, Pages: count, State: true}
		} else {
			kv[c.kind] = true
		}
		if state[c.kind] && kv[c.kind] {
			return fmt.Errorf("replay: slot %s: its kind of layers has K and V, and states", slot.Name)
		}
		if n := c.size(); n*uint64(count) != slot.Size {
			return fmt.Errorf("replay: slot %s has %d bytes, its %d pages %d each", slot.Name, slot.Size, count, n)
		}
	}
	return nil
}

// Discard implements batch.Discarder on a device that can give memory back. Pages that follow each
// other are one range, so that their memory is a whole number of the system's pages.
func (p *pool) Discard(kind int, free []pages.Page) error {
	d, ok := p.m.dev.(interface {
		Discard(id SessionID, slot uint32, offset, size uint64) error
	})
	if !ok {
		return nil
	}
	sorted := slices.Sorted(slices.Values(free))
	for i := range p.caches {
		if p.caches[i].kind != kind {
			continue
		}
		for _, pl := range p.caches[i].planes {
			for first := 0; first < len(sorted); {
				end := first + 1
				for end < len(sorted) && sorted[end] == sorted[end-1]+1 {
					end++
				}
				if err := d.Discard(p.id, p.caches[i].slot, pl.offset+uint64(sorted[first])*pl.page, uint64(end-first)*pl.page); err != nil {
					return err
				}
				first = end
			}
		}
	}
	return nil
}

// pageBytes returns the bytes of a page of a kind in all caches.
func (p *pool) pageBytes(kind int) (n uint64) {
	for i := range p.caches {
		if p.caches[i].kind == kind {
			n += p.caches[i].size()
		}
	}
	return n
}

// ring returns the offset of a token of a sequence in the token ring's slot.
func (p *pool) ring(number, index int) uint64 {
	return 4 * (uint64(number)*uint64(p.m.t.Header.Context+1) + uint64(index))
}

// Place implements batch.Device. The next submission carries the tokens and the settings.
func (p *pool) Place(at *batch.Placement) error {
	tokens := make([]byte, 0, 4*(len(at.Tokens)-at.Known))
	for _, id := range at.Tokens[at.Known:] {
		tokens = binary.LittleEndian.AppendUint32(tokens, uint32(id))
	}
	p.write(p.m.tokens, p.ring(at.Number, at.Known), tokens)
	c := at.Settings.(*choice)
	if p.placed[at.Number] == c {
		return nil
	}
	p.placed[at.Number] = c
	if p.plain != nil {
		settings := p.plain
		if c.sampled {
			settings = c.sampler
		}
		p.write(p.m.sampler, uint64(at.Number)*sampler.Size, settings)
	}
	p.write(p.m.stops, uint64(at.Number)*4*(uint64(p.m.t.Header.MaxStops)+1), c.stops)
	return nil
}

// write makes the next submission write to a slot.
func (p *pool) write(slot uint32, offset uint64, b []byte) {
	if len(b) > 0 {
		p.writes = append(p.writes, Transfer{slot, offset, b})
	}
}

// Copy implements batch.Device. The next submission carries the copies.
func (p *pool) Copy(copies []pages.Copy) error {
	for _, c := range copies {
		for i := range p.caches {
			cache := &p.caches[i]
			if cache.kind != c.Kind {
				continue
			}
			for _, pl := range cache.planes {
				p.moves = append(p.moves, Move{cache.slot, pl.offset + uint64(c.To)*pl.page, pl.offset + uint64(c.From)*pl.page, pl.page})
			}
		}
	}
	return nil
}

// Run implements batch.Device. A joint pass is one submission of the device. Otherwise the rows are one and each
// chunk is another, because a stop ends the submission.
func (p *pool) Run(s *batch.Submission) error {
	for _, e := range s.Entries {
		if e.Page == pages.None {
			continue // nothing sees the positions of a released page
		}
		at := p.layout.EntryAt(e.Kind, e.Number, e.Index)
		binary.LittleEndian.PutUint32(p.tables[at-p.layout.TablesAt(0):], uint32(e.Page))
		p.changed = append(p.changed, at)
	}
	if s.Joint {
		return p.together(s)
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

// entryGap is the largest distance in bytes between two entries of page tables that are written as one
// range.
const entryGap = 4 << 10

// writeEntries makes the next submission write the entries of page tables that have changed.
func (p *pool) writeEntries() {
	slices.Sort(p.changed)
	base := p.layout.TablesAt(0)
	for i := 0; i < len(p.changed); {
		from, to := p.changed[i], p.changed[i]+4
		for i++; i < len(p.changed) && p.changed[i] <= to+entryGap; i++ {
			to = p.changed[i] + 4
		}
		p.write(p.step, from, p.tables[from-base:to-base])
	}
	p.changed = p.changed[:0]
}

// Cancel implements batch.Device.
func (p *pool) Cancel() {
	p.halt.Store(true)
	if t := p.ticket.Load(); t != 0 {
		p.m.dev.Cancel(Ticket(t))
	}
}

// submit executes runs and the reads after them, and adds their time to that of a submission. If the
// device refuses the submission, its moves are left to the next one; the engine places everything else again.
func (p *pool) submit(s *batch.Submission, runs ...Run) (Result, error) {
	if f := p.m.profile.Load(); f != nil {
		return p.profile(s, runs, *f)
	}
	return p.send(s, runs, p.reads, nil)
}

// send is submit with other reads. timings, if not nil, receives the times of the last run's commands.
func (p *pool) send(s *batch.Submission, runs []Run, reads []Transfer, timings []time.Duration) (Result, error) {
	p.writeEntries()
	ticket, err := p.m.dev.Submit(&Submission{Session: p.id, Runs: runs, Moves: p.moves, Writes: p.writes, Reads: reads, Timings: timings})
	clear(p.writes)
	p.writes = p.writes[:0]
	if err != nil {
		clear(p.placed)
		return Result{}, err
	}
	p.ticket.Store(uint64(ticket))
	if p.halt.Load() {
		p.m.dev.Cancel(ticket)
	}
	r, err := p.m.dev.Wait(ticket)
	p.ticket.Store(0)
	p.moves = p.moves[:0]
	if err != nil {
		clear(p.placed)
	}
	s.Took += max(1, r.Elapsed)
	return r, err
}

// profile is submit with a submission for each run, of which it reports the times.
func (p *pool) profile(s *batch.Submission, runs []Run, f func(program string, rows int, times []time.Duration)) (res Result, err error) {
	for i, r := range runs {
		var reads []Transfer
		if i == len(runs)-1 {
			reads = p.reads
		}
		prog := &p.m.t.Programs[r.Program]
		times := make([]time.Duration, prog.Count)
		if res, err = p.send(s, []Run{r}, reads, times); err != nil {
			return res, err
		}
		if !p.halt.Load() {
			f(prog.Name, int(r.Step.Rows), times)
		}
	}
	return res, nil
}

// rows decodes the rows of a submission, with the program that can choose for all of them.
func (p *pool) rows(s *batch.Submission) error {
	most, count, deepest := 0, 0, 0
	profiled := p.m.profile.Load() != nil
	for i := range s.Rows {
		r := &s.Rows[i]
		if profiled {
			r.Tokens = 1
		}
		most, count, deepest = max(most, r.Settings.(*choice).program()), max(count, r.Tokens), max(deepest, r.Position)
	}
	prog, ok := programFor(p.batch[most], len(s.Rows))
	if !ok {
		return fmt.Errorf("replay: no batch program decodes %d rows", len(s.Rows))
	}
	c := p.choosing(s.Rows, s.Results)
	p.write(p.step, p.layout.RowAt(0), c.records)
	run := Run{Program: prog, Count: uint32(count), Step: table.Step{KVLen: uint32(deepest + 1), Rows: uint32(len(s.Rows))}}
	if _, err := p.submit(s, run); err != nil {
		return err
	}
	return p.chose(&c)
}

// programFor returns the index of the first program of a list that has so many rows.
func programFor(list []batchProgram, rows int) (uint32, bool) {
	i := slices.IndexFunc(list, func(b batchProgram) bool { return b.rows >= rows })
	if i < 0 {
		return 0, false
	}
	return uint32(list[i].index), true
}

// chosen are rows of a submission that choose tokens: their records before and after it, and the memory of
// their tokens.
type chosen struct {
	rows           []batch.Row
	results        []batch.Result
	records, after []byte
	tokens         [][]byte
}

// choosing prepares the rows, which have the first row records, and makes the next submission read what they
// choose.
func (p *pool) choosing(rows []batch.Row, results []batch.Result) chosen {
	c := chosen{rows, results, nil, make([]byte, len(rows)*sequence.RowBytes), make([][]byte, len(rows))}
	if p.reads = p.reads[:0]; len(rows) > 0 {
		p.reads = append(p.reads, Transfer{p.step, p.layout.RowAt(0), c.after})
	}
	for i := range rows {
		c.records = appendRow(c.records, rows[i].Number, rows[i].Position, rows[i].Tokens)
		c.tokens[i] = p.read(&rows[i], rows[i].Tokens, &results[i])
	}
	return c
}

// appendRow appends the record of a row that chooses up to n tokens.
func appendRow(to []byte, number, position, n int) []byte {
	at := uint32(position)
	row := sequence.Row{Sequence: uint32(number), Position: at, KVLen: at + 1, TokenIndex: at, Until: at + uint32(n)}
	var b [sequence.RowBytes]byte
	row.Put(&b)
	return append(to, b[:]...)
}

// chose sets the results of the rows after the submission.
func (p *pool) chose(c *chosen) error {
	for i, r := range c.rows {
		row := sequence.Parse((*[sequence.RowBytes]byte)(c.after[i*sequence.RowBytes:]))
		if int64(row.Count) > int64(r.Tokens) {
			return fmt.Errorf("replay: a row chose %d tokens of %d", row.Count, r.Tokens)
		}
		if row.Count == 0 && !p.halt.Load() {
			return errors.New("replay: the device chose no token for a row")
		}
		take(&c.results[i], c.tokens[i], int(row.Count))
		c.results[i].Stopped = row.Stop == sequence.StopID
	}
	return nil
}

// rankSize is the size in bytes of the log-probabilities of a token.
const rankSize = sampler.RankWords * 4

// read makes the next submission read up to n tokens that follow a row's position, and their
// log-probabilities. It returns the memory of the tokens.
func (p *pool) read(r *batch.Row, n int, to *batch.Result) (tokens []byte) {
	tokens = make([]byte, 4*n)
	p.reads = append(p.reads, Transfer{p.m.tokens, p.ring(r.Number, r.Position+1), tokens})
	if r.Settings.(*choice).ranked == 0 {
		return tokens
	}
	to.Ranks = make([]byte, n*rankSize)
	for done := 0; done < n; {
		entry := (r.Position + 1 + done) % sampler.RankEntries
		some := min(n-done, sampler.RankEntries-entry)
		p.reads = append(p.reads, Transfer{p.m.ranks, uint64(r.Number)*sampler.RanksSize + uint64(entry)*rankSize, to.Ranks[done*rankSize:][:some*rankSize]})
		done += some
	}
	return tokens
}

// take adds the first n tokens to a result.
func take(to *batch.Result, tokens []byte, n int) {
	for i := range n {
		to.Tokens = append(to.Tokens, int32(binary.LittleEndian.Uint32(tokens[4*i:])))
	}
	if to.Ranks != nil {
		to.Ranks = to.Ranks[:n*rankSize]
	}
}

// sequenceRun returns a run of a program on rows of one sequence.
func sequenceRun(number, program, position, rows, row int) Run {
	at := uint32(position)
	return Run{Program: uint32(program), Count: 1, Step: table.Step{
		Position: at, KVRow: at, KVLen: at + 1, TokenIndex: at, Row: uint32(row), Rows: uint32(rows), Sequence: uint32(number),
	}}
}

// chunk prefills a part of a prompt. If it is the last one, the head chooses a token; the values of rows that
// are read are computed after each part.
func (p *pool) chunk(s *batch.Submission, c *batch.Chunk, to *batch.Result) (err error) {
	if to.Skipped = p.halt.Load(); to.Skipped {
		return nil
	}
	var runs []Run
	rows, end := 0, c.At+c.Rows // rows of the last run
	for at := c.At; at < end; at += rows {
		rows = p.m.chunk(at, end-at) // the device may want fewer rows at a time
		runs = append(runs, sequenceRun(c.Number, p.m.prefill(rows), at, rows, 0))
		if n := at + rows - max(at, end-c.Read); n > 0 {
			if to.Values, err = p.values(s, c, runs, n, to.Values); err != nil {
				return err
			}
			runs = runs[:0]
		}
	}
	if len(runs) == 0 {
		if to.Skipped = p.halt.Load(); to.Skipped {
			to.Values = nil
		}
		return nil
	}
	p.reads = p.reads[:0]
	var chosen []byte
	if c.Last {
		choice := c.Settings.(*choice)
		head := []int{p.m.programs.head, p.m.programs.sampleHead, p.m.programs.rankedHead}[choice.program()]
		runs = append(runs, sequenceRun(c.Number, head, end-1, 1, rows-1))
		chosen = p.read(&batch.Row{Number: c.Number, Position: end - 1, Settings: c.Settings}, 1, to)
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
	take(to, chosen, 1)
	return nil
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

// Joint implements schedule.Cost: all rows take the same time.
func (g guess) Joint(rows, heads, depth int) time.Duration { return g.Decode(rows, depth) }

// Prefill implements coster: a row takes as long as a row that decodes.
func (guess) Prefill(position, rows int) time.Duration {
	return time.Duration(15+rows) * (4096 + time.Duration(position)) * 10
}
