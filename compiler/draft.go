package compiler

import (
	"fmt"
	"slices"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/table"
)

// draftRows returns the number of rows of the program verify, or 0 without the program.
func (s *state) draftRows() int {
	if s.in.Options.Draft == 0 {
		return 0
	}
	return 1 + s.in.Options.Draft
}

// verify creates the program for speculative decoding. It decodes the pending token and each token
// of the draft in a row of their own, accepts the draft tokens that decode would have chosen, and
// drafts the next tokens. The arithmetic of a row is the same as in the program decode.
func (s *state) verify() error {
	p := s.newProgram(table.ProgramVerify, s.draftRows(), false, table.FlagChooses|table.FlagAdvances)
	x, err := s.body(p)
	if err != nil {
		return err
	}
	return s.head(p, x, false, func(p *program) {
		part := s.drawPart()
		best := s.argmaxParts(p, part)
		logits := operand{v: s.logits, width: s.cfg.Vocab}
		p.emit(spot{role: roleArgmaxPart}, argmaxPartArgs{part: part}, []operand{logits}, best.all())
		p.emit(spot{role: roleAccept}, acceptArgs{parts: best.width / 2}, []operand{best.all(), s.stops.all()}, s.tokens.all())
		p.emit(spot{role: roleDraft}, draftArgs{}, nil, s.tokens.all())
	})
}

// splitRows replaces nodes whose kernels compute a single row by one node per row. These nodes are
// attention fused with RoPE, in which a row reads the K and V that the previous rows write, and
// products that merge the splits of attention.
func (s *state) splitRows() error {
	for _, p := range s.programs {
		if p.wide || p.rows == 1 {
			continue
		}
		for i := 0; i < len(p.nodes); i++ {
			n := p.nodes[i]
			if !n.onlyRow() {
				continue
			}
			rows := make([]*node, p.rows)
			for r := range rows {
				rows[r] = n.row(r)
			}
			p.splice(i, 1, rows...)
			i += len(rows) - 1
		}
	}
	return nil
}

// onlyRow reports whether a node's kernel computes a single row.
func (n *node) onlyRow() bool {
	switch a := n.args.(type) {
	case ropeAttnArgs:
		return true
	case productArgs:
		return a.input == decl.InputMerge
	}
	return false
}

// row returns a copy of a node that computes row r.
func (n *node) row(r int) *node {
	row := *n
	row.single, row.behind = true, r
	row.spot = n.with(fmt.Sprintf(".row%d", r))
	row.in, row.out = slices.Clone(n.in), slices.Clone(n.out)
	for _, list := range [][]operand{row.in, row.out} {
		for j := range list {
			if list[j].v.place == inArena {
				list[j].row = r
			}
		}
	}
	return &row
}
