package cpu

import (
	"slices"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/speculate"
	"github.com/pianola-engine/pianola/table"
)

// accept implements accept: it compares the tokens chosen by each row of a draft with the draft,
// stores the accepted tokens and advances the step record.
type accept struct {
	maxStops int
	best     []uint32 // [rows, parts, 2]: the largest logit as float32 bits, and its index
	parts    int
	stops    []uint32 // count, then ids
	tokens   []uint32 // [ring]
	step     *table.Step
}

func newAccept(b *binder) (kernel, error) {
	p := kernels.AcceptParamsOf(b.cmd)
	b.need(p.Ring > 0, "the ring is empty")
	b.need(p.Parts > 0, "the vocabulary has no parts")
	return &accept{
		maxStops: int(p.MaxStops), parts: int(p.Parts), step: b.step,
		best: b.u32(kernels.AcceptBindBest), stops: b.u32(kernels.AcceptBindStops), tokens: b.u32(kernels.AcceptBindTokens),
	}, b.err
}

func (k *accept) units(*worker) int { return 1 }

func (k *accept) run(w *worker, _, _ int) {
	stops := k.stops[1 : 1+min(int(k.stops[0]), k.maxStops)]
	n := 0
	for n < w.rows {
		id := largestPart(k.best[2*k.parts*n:][:2*k.parts])
		n++
		at := min(int(w.index)+n, len(k.tokens)-1)
		drafted := k.tokens[at]
		k.tokens[at] = id
		if slices.Contains(stops, id) {
			k.step.Stop = 1
			break
		}
		if drafted != id {
			break
		}
	}
	place := w.step
	place.Rows = 1
	device.Advance(&place, uint32(n))
	s := k.step
	s.Position, s.KVRow, s.KVLen, s.TokenIndex, s.Row = place.Position, place.KVRow, place.KVLen, place.TokenIndex, uint32(n-1)
	s.Count += uint32(n)
	s.Drafted += uint32(w.rows - 1)
	s.Accepted += uint32(n - 1)
	s.Trust = uint32(speculate.Trust(s.Trust).Judge(w.rows-1, n-1))
	if s.Until != 0 && s.TokenIndex >= s.Until && s.Stop == 0 {
		s.Stop = table.StopUntil
	}
}

// draft implements draft: it looks up the last tokens earlier in the token ring and drafts their
// continuation.
type draft struct {
	n, most, least int      // at most n tokens
	tokens         []uint32 // [ring]
	step           *table.Step
}

func newDraft(b *binder) (kernel, error) {
	p := kernels.DraftParamsOf(b.cmd)
	b.need(p.Ring > 0, "the ring is empty")
	b.need(p.Least > 0, "no token must be the same")
	return &draft{n: int(p.Draft), most: int(p.Most), least: int(p.Least), tokens: b.u32(kernels.DraftBindTokens), step: b.step}, b.err
}

func (k *draft) units(*worker) int { return 1 }

func (k *draft) run(*worker, int, int) {
	end := min(int(k.step.TokenIndex)+1, len(k.tokens))
	last := min(end+k.n, len(k.tokens))
	if until := int(k.step.Until); until != 0 {
		last = max(end, min(last, until))
	}
	n := speculate.Draft(k.tokens[end:last], k.tokens[:end], k.most, k.least, speculate.Trust(k.step.Trust))
	k.step.Rows = 1 + uint32(n)
}
