package replay_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/table"
)

// pooled is a pooled table on a device. Its methods do what a scheduler does, without its plans.
type pooled struct {
	t      *testing.T
	dev    replay.Device
	tab    *table.Table
	id     replay.SessionID
	layout sequence.Layout

	tokens, step, logits, sampler, stops, ranks uint32 // slots
}

// openPooled loads a tiny model as a pooled table.
func openPooled(t *testing.T, dev replay.Device, chipName, name string, chunk int, o compiler.Options) *pooled {
	t.Helper()
	tab, dir := compiledFor(t, chipName, name, chunk, o)
	mapped, err := dir.Map()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(dev.Close(), mapped.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := dev.Load(t.Context(), tab, mapped, replay.LoadOptions{}); err != nil {
		t.Fatal(err)
	}
	p := &pooled{t: t, dev: dev, tab: tab}
	if p.id, err = dev.NewSession(); err != nil {
		t.Fatal(err)
	}
	var ok bool
	if p.layout, ok = sequence.Of(tab.Header.Options, int(tab.Header.Context)); !ok {
		t.Fatalf("options %q: no pooled table", tab.Header.Options)
	}
	for kind, slot := range map[table.SlotKind]*uint32{
		table.SlotTokens: &p.tokens, table.SlotStep: &p.step, table.SlotLogits: &p.logits, table.SlotSampler: &p.sampler, table.SlotStops: &p.stops, table.SlotRanks: &p.ranks,
	} {
		_, *slot, _ = tab.Slot(kind)
	}
	return p
}

// must ends the test if err is not nil.
func (p *pooled) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pooled) write(slot uint32, at uint64, b []byte) {
	p.t.Helper()
	p.must(p.dev.Write(p.id, slot, at, b))
}

func (p *pooled) read(slot uint32, at uint64, n int) []byte {
	p.t.Helper()
	b := make([]byte, n)
	p.must(p.dev.Read(p.id, slot, at, b))
	return b
}

func encoded(v ...uint32) (b []byte) {
	for _, w := range v {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

// setPages sets the page table of a sequence, for all kinds of layers.
func (p *pooled) setPages(s int, pages []int) {
	p.t.Helper()
	list := make([]uint32, p.layout.Table)
	for i, page := range pages {
		list[i] = uint32(page)
	}
	for kind := range p.layout.Kinds {
		p.write(p.step, p.layout.EntryAt(kind, s, 0), encoded(list...))
	}
}

// putTokens writes tokens to a sequence's ring.
func (p *pooled) putTokens(s, at int, ids []int32) {
	p.t.Helper()
	var b []byte
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	p.write(p.tokens, p.ring(s, at), b)
}

func (p *pooled) ring(s, at int) uint64 {
	return 4 * (uint64(s)*uint64(p.tab.Header.Context+1) + uint64(at))
}

// submit runs a submission.
func (p *pooled) submit(runs ...replay.Run) replay.Result {
	p.t.Helper()
	ticket, err := p.dev.Submit(&replay.Submission{Session: p.id, Runs: runs})
	p.must(err)
	r, err := p.dev.Wait(ticket)
	p.must(err)
	return r
}

// program returns the index of a program.
func (p *pooled) program(name string) uint32 {
	p.t.Helper()
	_, i, ok := p.tab.Program(name)
	if !ok {
		p.t.Fatal("no program", name)
	}
	return uint32(i)
}

// prefill computes positions from at to at+n-1 of a sequence, in chunks of at most most, and chooses the
// next token with a head.
func (p *pooled) prefill(s, at, n, most int, head string) {
	p.t.Helper()
	runs := p.parts(s, at, n, most)
	last := runs[len(runs)-1].Step
	p.submit(append(runs, p.part(p.program(head), s, at+n-1, 1, int(last.Rows)-1))...)
}

// parts returns the runs that compute positions from at to at+n-1 of a sequence.
func (p *pooled) parts(s, at, n, most int) (runs []replay.Run) {
	p.t.Helper()
	for end := at + n; at < end; {
		rows := min(most, end-at, int(p.tab.Header.Chunk))
		_, program := p.tab.Prefill(rows)
		runs = append(runs, p.part(uint32(program), s, at, rows, 0))
		at += rows
	}
	return runs
}

func (p *pooled) part(program uint32, s, pos, rows, row int) replay.Run {
	return replay.Run{Program: program, Count: 1, Step: table.Step{
		Position: uint32(pos), KVRow: uint32(pos), KVLen: uint32(pos + 1), TokenIndex: uint32(pos), Row: uint32(row), Rows: uint32(rows), Sequence: uint32(s),
	}}
}

// batch replays a batch program on rows and returns the rows after it.
func (p *pooled) batch(name string, class, count int, rows []sequence.Row) ([]sequence.Row, replay.Result) {
	p.t.Helper()
	var b []byte
	for i := range rows {
		var one [sequence.RowBytes]byte
		rows[i].Put(&one)
		b = append(b, one[:]...)
	}
	p.write(p.step, p.layout.RowAt(0), b)
	r := p.submit(replay.Run{Program: p.program(fmt.Sprintf("%s.%d", name, class)), Count: uint32(count), Step: table.Step{KVLen: 1, Rows: uint32(len(rows))}})
	b = p.read(p.step, p.layout.RowAt(0), len(b))
	after := make([]sequence.Row, len(rows))
	for i := range after {
		after[i] = sequence.Parse((*[sequence.RowBytes]byte)(b[i*sequence.RowBytes:]))
	}
	return after, r
}

// logitsOf returns the logits of row r of the last batch.
func (p *pooled) logitsOf(r int) []byte {
	n := 4 * int(p.tab.Header.Vocab)
	return p.read(p.logits, uint64(r*n), n)
}

// classes returns the numbers of rows of the table's batch programs.
func (p *pooled) classes() (list []int) {
	for i := range p.tab.Programs {
		if name, _, ok := strings.Cut(p.tab.Programs[i].Name, "."); ok && name == sequence.ProgramBatch {
			list = append(list, int(p.tab.Programs[i].MaxRows))
		}
	}
	return list
}

// stream is a sequence's prompt and the tokens and logits that follow it.
type stream struct {
	prompt   []int32
	settings sampler.Settings
	tokens   []uint32 // the first follows the prompt
	logits   [][]byte // after each token but the first
}

// program returns the names of the head and of the batch program that choose the stream's tokens.
func (s *stream) program() (head, batch string) {
	if s.settings.InvTemperature == 0 {
		return table.ProgramHead, sequence.ProgramBatch
	}
	return table.ProgramSampleHead, sequence.ProgramSample
}

// alone computes the streams one after another, each as the only row of a batch, with pages in order.
func (p *pooled) alone(streams []stream, n int) {
	p.t.Helper()
	for i := range streams {
		s := &streams[i]
		pages := make([]int, min(p.layout.Table, p.layout.Pages))
		for j := range pages {
			pages[j] = j
		}
		p.setPages(0, pages)
		p.putTokens(0, 0, s.prompt)
		p.putSettings(0, s)
		head, batch := s.program()
		p.prefill(0, 0, len(s.prompt), len(s.prompt), head)
		for k := range n - 1 {
			at := uint32(len(s.prompt) + k)
			p.batch(batch, p.classes()[0], 1, []sequence.Row{{Sequence: 0, Position: at, KVLen: at + 1, TokenIndex: at, Until: math.MaxUint32}})
			s.logits = append(s.logits, p.logitsOf(0))
		}
		s.tokens = p.tokensOf(0, len(s.prompt), n)
	}
}

func (p *pooled) putSettings(seq int, s *stream) {
	p.t.Helper()
	if s.settings.InvTemperature != 0 {
		var b [sampler.Words * 4]byte
		s.settings.Put(&b)
		p.write(p.sampler, uint64(seq)*sampler.Size, b[:])
	}
}

func (p *pooled) tokensOf(s, at, n int) (ids []uint32) {
	b := p.read(p.tokens, p.ring(s, at), 4*n)
	for i := range n {
		ids = append(ids, binary.LittleEndian.Uint32(b[4*i:]))
	}
	return ids
}

// together computes the streams as sequences of batches: with pages, rows, numbers of rows and chains chosen
// at random, and prompts cut at random. It compares tokens and logits with those of alone.
func (p *pooled) together(streams []stream, n int, r *rand.Rand) {
	p.t.Helper()
	free := r.Perm(p.layout.Pages)
	at := make([]int, len(streams)) // tokens that each stream has
	for i := range streams {
		s := &streams[i]
		need := (len(s.prompt) + n + sequence.PagePositions - 1) / sequence.PagePositions
		p.setPages(i, free[:need])
		free = free[need:]
		p.putTokens(i, 0, s.prompt)
		p.putSettings(i, s)
		if p.join(streams, i, at, r) {
			continue
		}
		head, _ := s.program()
		p.prefill(i, 0, len(s.prompt), 1+r.IntN(len(s.prompt)), head)
		at[i] = 1
	}
	for {
		var rows []sequence.Row
		var of []int
		name := []string{sequence.ProgramBatch, sequence.ProgramSample}[r.IntN(2)]
		count := 1 + r.IntN(4)
		for _, i := range r.Perm(len(streams)) {
			if _, own := streams[i].program(); at[i] < n && own == name && r.IntN(4) > 0 {
				pos := uint32(len(streams[i].prompt) + at[i] - 1)
				rows = append(rows, sequence.Row{Sequence: uint32(i), Position: pos, KVLen: pos + 1, TokenIndex: pos, Until: pos + uint32(min(n-at[i], 1+r.IntN(4)))})
				of = append(of, i)
			}
		}
		if len(rows) == 0 {
			if !slices.ContainsFunc(at, func(k int) bool { return k < n }) {
				break
			}
			continue
		}
		class := p.classes()[slices.IndexFunc(p.classes(), func(c int) bool { return c >= len(rows) })]
		after, res := p.batch(name, class, count, rows)
		total := 0
		for k, i := range of {
			want := min(int(rows[k].Until-rows[k].TokenIndex), count)
			if got := int(after[k].Count); got != want || after[k].TokenIndex != rows[k].TokenIndex+uint32(want) {
				p.t.Fatalf("row %d: %d tokens, want %d: %+v", k, got, want, after[k])
			}
			total += want
			at[i] += want
			if want == count && string(p.logitsOf(k)) != string(streams[i].logits[at[i]-2]) {
				p.t.Fatalf("stream %d in row %d of %d: the logits after %d tokens differ from those alone", i, k, len(rows), at[i])
			}
		}
		if res.Count != total {
			p.t.Fatalf("the submission counts %d tokens, its rows %d", res.Count, total)
		}
	}
	for i := range streams {
		if got := p.tokensOf(i, len(streams[i].prompt), n); !slices.Equal(got, streams[i].tokens) {
			p.t.Errorf("stream %d: tokens %v, alone %v", i, got, streams[i].tokens)
		}
	}
}

// join computes the end of a stream's prompt in a joint pass, if the table and r permit it: with a token of a
// stream before it that is chosen in the same way.
func (p *pooled) join(streams []stream, i int, at []int, r *rand.Rand) bool {
	p.t.Helper()
	s := &streams[i]
	n := len(s.prompt)
	from := r.IntN(n)
	record := func(of, pos int) sequence.Row {
		return sequence.Row{Sequence: uint32(of), Position: uint32(pos), KVLen: uint32(pos + 1), TokenIndex: uint32(pos), Until: uint32(pos + 1)}
	}
	rows := []sequence.Row{record(i, n-1)}
	_, own := s.program()
	for j := range i {
		if _, other := streams[j].program(); other == own && at[j] > 0 && at[j] < len(streams[j].tokens) {
			rows = append(rows, record(j, len(streams[j].prompt)+at[j]-1))
			at[j]++
			break
		}
	}
	heads := len(rows)
	for pos := from; pos < n-1; pos++ {
		rows = append(rows, record(i, pos))
	}
	class := func(name string, rows int) (uint32, bool) {
		for k := range p.tab.Programs {
			if of := &p.tab.Programs[k]; strings.HasPrefix(of.Name, name+".") && int(of.MaxRows) >= rows {
				return uint32(k), true
			}
		}
		return 0, false
	}
	fill, ok := class(sequence.ProgramFill, len(rows))
	head, _ := class(map[string]string{sequence.ProgramBatch: sequence.ProgramHead, sequence.ProgramSample: sequence.ProgramSampleHead}[own], heads)
	if !ok || r.IntN(3) == 0 {
		if heads > 1 {
			at[rows[1].Sequence]--
		}
		return false
	}
	if from > 0 {
		runs := p.parts(i, 0, from, max(1, from/2))
		p.submit(runs...)
	}
	var b []byte
	for k := range rows {
		var one [sequence.RowBytes]byte
		rows[k].Put(&one)
		b = append(b, one[:]...)
	}
	p.layout.Join(b)
	p.write(p.step, p.layout.RowAt(0), b)
	step := func(rows int) table.Step { return table.Step{KVLen: 1, Rows: uint32(rows)} }
	if res := p.submit(replay.Run{Program: fill, Count: 1, Step: step(len(rows))}, replay.Run{Program: head, Count: 1, Step: step(heads)}); res.Count != heads {
		p.t.Fatalf("a joint pass chose %d tokens, want %d", res.Count, heads)
	}
	at[i] = 1
	return true
}

// pooledModels are models and options that pooled tables are tested with.
var pooledModels = []struct {
	name string
	o    compiler.Options
}{
	{"llama", compiler.Options{}}, {"qwen3", compiler.Options{KV: "q8_0"}}, {"gemma2", compiler.Options{}}, {"gemma3_text", compiler.Options{}},
	{"../variants/gpt_oss", compiler.Options{}}, {"../variants/qwen3_moe", compiler.Options{}}, {"llama", compiler.Options{KVSinks: 4, KVWindow: 60}}, {"mistral", compiler.Options{NoFuse: true}},
	{"../variants/lfm2", compiler.Options{}}, {"../variants/qwen3_5_one", compiler.Options{KV: "q8_0"}}, {"../variants/qwen3_5_moe_one", compiler.Options{NoFuse: true}}, {"../variants/falcon_h1", compiler.Options{}}, {"../variants/granitemoehybrid_moe", compiler.Options{}}, {"../variants/nemotron_h", compiler.Options{}}, {"../variants/gemma3n", compiler.Options{}}, {"../variants/falcon_h1", compiler.Options{KVSinks: 4, KVWindow: 60}},
}

// streamsOf returns streams with random prompts and settings.
func streamsOf(n, vocab, context int, r *rand.Rand) []stream {
	streams := make([]stream, n)
	for i := range streams {
		s := &streams[i]
		for range 1 + r.IntN(context-40) {
			s.prompt = append(s.prompt, int32(r.IntN(vocab)))
		}
		if i%2 == 1 {
			s.settings = sampler.Settings{Seed: r.Uint64(), InvTemperature: 1.25, TopK: 20, Repetition: 1, MinPDrop: sampler.Far}
		}
	}
	return streams
}

// pooledSize is the size of a test of pooled tables.
type pooledSize struct{ context, sequences, pages, tokens int }

// sizeOfPooled is the size of tests of devices that are not emulated.
func sizeOfPooled() pooledSize {
	return pooledSize{200, exhaustive.Pick(20, 6), exhaustive.Pick(75, 24), 12}
}

// testPooled computes sequences together and alone. All bits must be the same.
func testPooled(t *testing.T, size pooledSize, open func(t *testing.T, name string, chunk int, o compiler.Options) *pooled) {
	for i, c := range pooledModels {
		t.Run(fmt.Sprintf("%s %+v", c.name, c.o), func(t *testing.T) {
			n := size.tokens
			r := rand.New(rand.NewPCG(7, uint64(i)))
			o := c.o
			o.Context, o.Sequences, o.Pages = size.context, size.sequences, size.pages
			p := open(t, c.name, 48, o)
			streams := streamsOf(o.Sequences, int(p.tab.Header.Vocab), o.Context, r)
			if most := p.layout.Pages / p.layout.Table; len(streams) > most {
				streams = streams[:most]
			}
			p.alone(streams, n)
			p.together(streams, n, r)
		})
	}
}

func TestPooledCPU(t *testing.T) {
	testPooled(t, sizeOfPooled(), func(t *testing.T, name string, chunk int, o compiler.Options) *pooled {
		dev, err := cpu.New(cpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return openPooled(t, dev, "cpu", name, chunk, o)
	})
}

// TestPooledIsBatching compares the tokens of a pooled table with those of a table for batching.
func TestPooledIsBatching(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	p := openPooled(t, dev, "cpu", "llama", 32, compiler.Options{Context: 200, Sequences: 2, Sampler: compiler.SamplerNone})
	isBatching(t, p, loadedOnThreads(t, 1, "llama", 32, compiler.Options{Context: 200, Batching: true}), 20)
}

// isBatching compares n tokens of a pooled table with those of a table for batching.
func isBatching(t *testing.T, p *pooled, m *replay.Model, n int) {
	t.Helper()
	streams := streamsOf(1, int(p.tab.Header.Vocab), int(p.tab.Header.Context), rand.New(rand.NewPCG(1, 1)))
	p.alone(streams, n)
	s := session(t, m, replay.SessionOptions{})
	next, _, err := s.Prompt(context.Background(), streams[0].prompt)
	if err != nil {
		t.Fatal(err)
	}
	got := []uint32{uint32(next)}
	for len(got) < n {
		ids, _, err := s.Chain(context.Background(), n-len(got))
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			got = append(got, uint32(id))
		}
	}
	if !slices.Equal(got, streams[0].tokens) {
		t.Errorf("tokens %v, those of a table for batching %v", streams[0].tokens, got)
	}
}
