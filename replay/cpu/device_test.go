package cpu

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Sizes of the chain model: embed, norm, matrix, argmax.
const (
	chainVocab = 96
	chainWidth = 64
	chainCtx   = 256
)

// chainModel is a table whose decode program turns a token into the next one, and whose prefill
// program has several rows.
func chainModel(tb testing.TB) *builder {
	b := newBuilder(tb, chainVocab, chainWidth, chainCtx, 8, 4)
	r := rand.New(rand.NewPCG(1, 2))
	b.weight("embd", dtype.Q8_0, randomBytes(tb, r, dtype.Q8_0, chainVocab*chainWidth, 1))
	b.weight("norm", dtype.F32, bytesOf(tb, random(r, chainWidth, 1)))
	b.weight("head", dtype.Q8_0, randomBytes(tb, r, dtype.Q8_0, chainVocab*chainWidth, 1))
	b.slot("scratch", table.SlotScratch, table.ScopeExecutor, 8*8*chainWidth)
	b.program(table.ProgramDecode, 1)
	row := map[int]uint32{decl.SecondRows: 1}
	embed := kernels.EmbedParams{N: chainWidth, Vocab: chainVocab, Ring: chainCtx + 1, Scale: 1}
	b.cmd(kernels.Embed, []uint32{uint32(dtype.Q8_0)}, embed, table.PatchToken, row,
		at{"tokens", 0}, at{"embd", 0}, at{"scratch", 0})
	b.cmd(kernels.RMSNorm, nil, kernels.RMSNormParams{N: chainWidth, XRows: 1, Eps: 1e-5}, table.PatchNone, row,
		at{"scratch", 0}, at{"norm", 0}, at{"scratch", 4 * chainWidth})
	b.cmd(kernels.GEMV, []uint32{uint32(dtype.Q8_0), decl.ActQ8},
		kernels.GEMVParams{In: chainWidth, Out: chainVocab, XStride: chainWidth, YStride: chainVocab, Group: 4, RowGroup: 1}, table.PatchNone, row,
		at{"scratch", 4 * chainWidth}, at{}, at{"head", 0}, at{}, at{"logits", 0})
	b.cmd(kernels.Argmax, nil, kernels.ArgmaxParams{N: chainVocab, Ring: chainCtx + 1, MaxStops: 4}, table.PatchArgmax, nil,
		at{"logits", 0}, at{"stops", 0}, at{"tokens", 0})
	b.program(table.ProgramPrefill, 8)
	b.cmd(kernels.Embed, []uint32{uint32(dtype.Q8_0)}, embed, table.PatchToken|table.PatchRows, map[int]uint32{decl.SecondRows: 8},
		at{"tokens", 0}, at{"embd", 0}, at{"scratch", 0})
	return b
}

// chainStep is the step of the first token of a chain.
func chainStep() table.Step { return table.Step{KVLen: 1, Rows: 1} }

// decode runs a chain and returns the token ring.
func decode(tb testing.TB, d *Device, id replay.SessionID, n int) (replay.Result, []uint32) {
	tb.Helper()
	sub := &replay.Submission{Session: id, Runs: []replay.Run{{Count: uint32(n), Step: chainStep()}}}
	res := submit(tb, d, sub)
	return res, ring(tb, d, id, n+1)
}

func submit(tb testing.TB, d *Device, sub *replay.Submission) replay.Result {
	tb.Helper()
	ticket, err := d.Submit(sub)
	if err != nil {
		tb.Fatal(err)
	}
	res, err := d.Wait(ticket)
	if err != nil {
		tb.Fatal(err)
	}
	return res
}

func ring(tb testing.TB, d *Device, id replay.SessionID, n int) []uint32 {
	tb.Helper()
	_, slot, _ := d.table.Slot(table.SlotTokens)
	buf := make([]byte, 4*n)
	if err := d.Read(id, slot, 0, buf); err != nil {
		tb.Fatal(err)
	}
	out := make([]uint32, n)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(buf[4*i:])
	}
	return out
}

func newSession(tb testing.TB, d *Device, first uint32) replay.SessionID {
	tb.Helper()
	id, err := d.NewSession()
	if err != nil {
		tb.Fatal(err)
	}
	_, slot, _ := d.table.Slot(table.SlotTokens)
	if err := d.Write(id, slot, 0, binary.LittleEndian.AppendUint32(nil, first)); err != nil {
		tb.Fatal(err)
	}
	return id
}

func TestChain(t *testing.T) {
	var want []uint32
	for threads := 1; threads <= runtime.GOMAXPROCS(0); threads++ {
		for _, portable := range []bool{true, false} {
			d := chainModel(t).load(Options{Threads: threads, Portable: portable})
			id := newSession(t, d, 3)
			res, got := decode(t, d, id, 40)
			if res.Count != 40 || res.Stopped || res.Elapsed <= 0 {
				t.Errorf("%d threads: %+v", threads, res)
			}
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Errorf("%d threads, portable %t: %v, want %v", threads, portable, got, want)
			}
		}
	}
	if slices.Max(want) == slices.Min(want[1:]) {
		t.Errorf("the chain repeats one token: %v", want)
	}
}
