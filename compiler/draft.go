package compiler

import (
	"fmt"
	"slices"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/speculate"
	"github.com/pianola-engine/pianola/table"
)

// draftRows returns the rows of the program verify, 0 without one.
func (s *state) draftRows() int {
	if s.in.Options.Draft == 0 {
		return 0
	}
	return 1 + s.in.Options.Draft
}

// verify makes the program that decodes the pending token and a draft, each a row,
// takes the tokens that are as decode would have chosen them, and drafts again. Each
// row's arithmetic is decode's.
func (s *state) verify() error {
	p := s.newProgram(table.ProgramVerify, s.draftRows(), false, table.FlagChooses|table.FlagAdvances)
	x, err := s.body(p)
	if err != nil {
		return err
	}
	return s.head(p, x, false, func(p *program) {
		part := s.drawPart()
		parts := ceil(s.cfg.Vocab, part)
		best := p.value("out.parts", 2*parts)
		logits := operand{v: s.logits, width: s.cfg.Vocab}
		p.emit(&node{kernel: kernels.ArgmaxPart, label: "out.argmax_part", region: best.name, in: []operand{logits}, out: []operand{best.all()}, part: part})
		p.emit(&node{kernel: kernels.Accept, label: "verify.accept", in: []operand{best.all(), s.stops.all()}, out: []operand{s.tokens.all()}, splits: parts})
		p.emit(&node{kernel: kernels.Draft, label: "verify.draft", out: []operand{s.tokens.all()}})
	})
}

// verifying fills the arguments of the kernels that end it.
func (l *lowering) verifying() {
	n, h := l.n, &l.s.t.Header
	switch n.kernel {
	case kernels.Accept:
		l.bind(kernels.AcceptBindBest, n.in[0])
		l.bind(kernels.AcceptBindStops, n.in[1])
		l.bind(kernels.AcceptBindTokens, n.out[0])
		kernels.AcceptParams{Parts: uint32(n.splits), Ring: h.Context + 1, MaxStops: h.MaxStops, MaxRows: uint32(l.p.rows)}.Put(&l.cmd)
		l.patch(table.PatchToken, decl.SecondIndex)
	case kernels.Draft:
		l.bind(kernels.DraftBindTokens, n.out[0])
		kernels.DraftParams{
			Ring: h.Context + 1, Draft: uint32(l.s.in.Options.Draft), Most: speculate.DraftMost, Least: speculate.DraftLeast,
		}.Put(&l.cmd)
	}
}

// splitRows makes a command for each row of what takes one alone: attention that
// makes its K and V, of which a row reads those of the rows before, and products that
// merge its splits.
func (s *state) splitRows() error {
	for _, p := range s.programs {
		if p.wide || p.rows == 1 {
			continue
		}
		for i := 0; i < len(p.nodes); i++ {
			n := p.nodes[i]
			if n.kernel != kernels.RoPEAttn && n.input != decl.InputMerge {
				continue
			}
			rows := make([]*node, p.rows)
			for r := range rows {
				row := *n
				row.single, row.behind = true, r
				row.label += fmt.Sprintf(".row%d", r)
				row.in, row.out = slices.Clone(n.in), slices.Clone(n.out)
				for _, list := range [][]operand{row.in, row.out} {
					for j := range list {
						if list[j].v.place == inArena {
							list[j].row = r
						}
					}
				}
				rows[r] = &row
			}
			p.splice(i, 1, rows...)
			i += len(rows) - 1
		}
	}
	return nil
}
