package compiler

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// fewForm is the form of gemm_few, see its declaration. The zero value has rows of float16 as input, and stores
// the product.
type fewForm struct {
	input, output uint32
	from          addNormArgs // with decl.InputScaled: the norm of the input, or none if its w is nil
	next          addNormArgs // with decl.OutputAddScaled: the norm that follows, and the factor of the product
	activation    uint32      // with decl.OutputGated
}

// formRows is the largest number of rows for which gemm_few has forms. scaledBytes is the largest size of a
// quantised matrix whose product has a scaled input.
const (
	formRows    = 8
	scaledBytes = 24 << 20
)

func (f *fewForm) lower(l *lowering, p *kernels.GEMMFewParams) {
	l.set(kernels.GEMMFewSpecInput, f.input)
	l.set(kernels.GEMMFewSpecOutput, f.output)
	if f.input == decl.InputScaled {
		l.bind(kernels.GEMMFewBindXParts, l.n.in[1])
		p.Squares, p.Eps, p.Scale = one(f.from.w != nil), f.from.eps, f.from.scale
	}
	out := l.n.out
	switch f.output {
	case decl.OutputStore:
		return
	case decl.OutputGated:
		l.set(kernels.GEMMFewSpecActivation, f.activation)
		p.YStride = 0
	case decl.OutputAddScaled:
		l.bindWeight(kernels.GEMMFewBindNext, f.next.w)
		p.DeltaScale = f.next.delta
		out = out[1:]
	}
	l.bind(kernels.GEMMFewBindScaled, out[0])
	l.bind(kernels.GEMMFewBindParts, out[1])
}

// forms reports whether products of gemm_few have forms, which programs of few rows use.
func (s *state) forms() bool { return !s.in.Options.NoFuse && s.warpgroups() }

// fuseFew fuses what add_rmsnorm_halves and halves compute between products of gemm_few into the products, in
// programs of a few rows. A command of these takes longer to begin and to wait for the one before than to
// compute. The bits are the same, so programs of more rows keep the commands.
func (s *state) fuseFew() error {
	for _, p := range s.programs {
		if p.rows > formRows {
			continue
		}
		for i := 0; i+1 < len(p.nodes); i++ {
			before, n := p.nodes[i], p.nodes[i+1]
			product, ok := before.args.(halvesProductArgs)
			if !ok || !product.few || product.form.output != decl.OutputStore || product.w.rows%128 != 0 {
				continue
			}
			switch a := n.args.(type) {
			case addNormHalvesArgs:
				if n.in[0] == before.out[0] && p.uses(before.out[0].v) == 2 && s.scales(p, i+2, n.out[1]) {
					p.fuseFewNorm(i, product, a)
				}
			case halvesArgs:
				s.fuseFewGated(p, i, product, a)
			}
		}
	}
	return nil
}

// fuseFewNorm fuses the addition and the norm at index i+1 into the product at index i and those after it.
func (p *program) fuseFewNorm(i int, product halvesProductArgs, norm addNormHalvesArgs) {
	before, n := p.nodes[i], p.nodes[i+1]
	product.form.output, product.form.next = decl.OutputAddScaled, norm.addNormArgs
	before.args = product
	before.out = append([]operand{n.out[0]}, p.scaled(i, n.out[1], product.w.rows, 2*product.w.rows/32, norm.addNormArgs)...)
}

// fuseFewGated fuses the activation at index i+1 into the product at index i, whose rows of W are gates and then
// ups, and its conversion into the products after it.
func (s *state) fuseFewGated(p *program, i int, product halvesProductArgs, a halvesArgs) {
	before, n := p.nodes[i], p.nodes[i+1]
	y, half := before.out[0], product.w.rows/2
	if a.input != decl.InputSiLUMul || !s.scales(p, i+2, n.out[0]) || y.off != 0 || y.width != 2*half || !p.feedsHalves(before, n) {
		return
	}
	product.form.output, product.form.activation = decl.OutputGated, a.activation
	before.args, before.out = product, p.scaled(i, n.out[0], half, half/16, addNormArgs{})
}

// scaled removes the node at index i+1, which converts a row of n columns to out, and lets the products after it
// read rows of float32 instead. It returns these rows, and what the products read of their parts, of which there
// are a number in each row.
func (p *program) scaled(i int, out operand, n, parts int, norm addNormArgs) []operand {
	at := p.nodes[i+1]
	rows := p.value(at.label()+".scaled", roundUp(ceil(n*decl.FewRows(p.rows), p.rows), 4)).all()
	sums := p.value(at.label()+".parts", parts).all()
	p.splice(i+1, 1)
	for _, r := range p.halvesReaders(i+1, out) {
		a := r.args.(halvesProductArgs)
		a.form.input, a.form.from = decl.InputScaled, norm
		r.args, r.in = a, []operand{rows, sums}
	}
	return []operand{rows, sums}
}

// halvesReaders returns the products from index i on whose input is x.
func (p *program) halvesReaders(i int, x operand) []*node {
	end := i
	for end < len(p.nodes) {
		if _, ok := p.nodes[end].args.(halvesProductArgs); !ok || p.nodes[end].in[0] != x {
			break
		}
		end++
	}
	return p.nodes[i:end]
}

// scales reports whether the products of p from index i on, whose input is x, are to read rows of float32. They copy
// more bytes than rows of float16 for each byte of W, so the products of large quantised matrices would take as long as
// the command that they save, or longer, unless they keep their input (docs/rationale/kernels.md).
func (s *state) scales(p *program, i int, x operand) bool {
	for _, n := range p.halvesReaders(i, x) {
		w := n.args.(halvesProductArgs).w
		if bytes, _ := w.typ.Bytes(uint64(w.rows * w.cols)); w.typ.Quantized() && bytes > scaledBytes && !s.keeps(w, p.rows, decl.InputScaled) {
			return false
		}
	}
	return true
}
