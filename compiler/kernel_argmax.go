package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/speculate"
	"github.com/pianola-engine/pianola/table"
)

// argmaxArgs holds the arguments of argmax, which writes the token of the largest element of
// in[0] to the ring out[0], unless it is one of the stops in[1].
type argmaxArgs struct {
	unweighted
	parts int // in[0] holds the best token of each of this many parts of the vocabulary; if it is 0, in[0] holds the logits
}

func (argmaxArgs) kernel() decl.ID    { return kernels.Argmax }
func (a argmaxArgs) describe() string { return describeSplits(a.parts) }

func (a argmaxArgs) lower(l *lowering) {
	l.bind(kernels.ArgmaxBindLogits, l.n.in[0])
	l.bind(kernels.ArgmaxBindStops, l.n.in[1])
	l.bind(kernels.ArgmaxBindTokens, l.n.out[0])
	count := l.n.in[0].width
	if a.parts > 0 {
		count = a.parts
	}
	l.flag(kernels.ArgmaxSpecParts, a.parts > 0)
	kernels.ArgmaxParams{N: uint32(count), Ring: l.ring(), MaxStops: l.s.t.Header.MaxStops, Pool: l.pooled()}.Put(&l.cmd)
	l.set(kernels.ArgmaxSpecSequences, l.sequences())
	l.patch(table.PatchArgmax, decl.SecondIndex)
}

// chooseArgs holds the arguments of choose_rows, which chooses a token for each row of a batch from the best
// tokens in[0] of the parts of the vocabulary, and advances the row records. in[1] is the stops, out[0]
// the token rings.
type chooseArgs struct {
	unweighted
	parts int
}

func (chooseArgs) kernel() decl.ID    { return kernels.ChooseRows }
func (a chooseArgs) describe() string { return describeSplits(a.parts) }

func (a chooseArgs) lower(l *lowering) {
	l.bind(kernels.ChooseRowsBindBest, l.n.in[0])
	l.bind(kernels.ChooseRowsBindStops, l.n.in[1])
	l.bind(kernels.ChooseRowsBindTokens, l.n.out[0])
	l.set(kernels.ChooseRowsSpecSequences, l.sequences())
	kernels.ChooseRowsParams{Parts: uint32(a.parts), Ring: l.ring(), MaxStops: l.s.t.Header.MaxStops, Pool: l.pooled()}.Put(&l.cmd)
	l.patch(table.PatchNone, 0)
}

// argmaxPartArgs holds the arguments of argmax_part: out[0] becomes the best token of each
// part of the logits in[0].
type argmaxPartArgs struct {
	unweighted
	part int // number of logits in a part
}

func (argmaxPartArgs) kernel() decl.ID { return kernels.ArgmaxPart }

func (a argmaxPartArgs) lower(l *lowering) {
	l.bind(kernels.ArgmaxPartBindLogits, l.n.in[0])
	l.bind(kernels.ArgmaxPartBindOut, l.n.out[0])
	kernels.ArgmaxPartParams{N: uint32(l.n.in[0].width), Part: uint32(a.part)}.Put(&l.cmd)
}

// acceptArgs holds the arguments of accept, which accepts the tokens of the draft in the ring out[0]
// that equal the tokens chosen by the rows. in[0] holds the best token of each part of each row's
// logits, in[1] the stops.
type acceptArgs struct {
	unweighted
	parts int // number of parts in a row of in[0]
}

func (acceptArgs) kernel() decl.ID    { return kernels.Accept }
func (a acceptArgs) describe() string { return describeSplits(a.parts) }

func (a acceptArgs) lower(l *lowering) {
	l.bind(kernels.AcceptBindBest, l.n.in[0])
	l.bind(kernels.AcceptBindStops, l.n.in[1])
	l.bind(kernels.AcceptBindTokens, l.n.out[0])
	kernels.AcceptParams{Parts: uint32(a.parts), Ring: l.ring(), MaxStops: l.s.t.Header.MaxStops, MaxRows: uint32(l.p.rows)}.Put(&l.cmd)
	l.patch(table.PatchToken, decl.SecondIndex)
}

// draftArgs holds the arguments of draft, which drafts tokens from earlier tokens in the ring out[0] and appends them to the ring.
type draftArgs struct{ unweighted }

func (draftArgs) kernel() decl.ID { return kernels.Draft }

func (draftArgs) lower(l *lowering) {
	l.bind(kernels.DraftBindTokens, l.n.out[0])
	kernels.DraftParams{
		Ring: l.ring(), Draft: uint32(l.s.in.Options.Draft), Most: speculate.DraftMost, Least: speculate.DraftLeast,
	}.Put(&l.cmd)
}
