package compiler

import "github.com/pianola-engine/pianola/internal/decl"

// splitColumns divides the columns of products among several threadgroups where a matrix has too few rows to keep all
// multiprocessors busy. Each threadgroup writes the sums of its segments, and add_rmsnorm_halves, which reads the
// product, adds them. The order of the sums is that of other products in a table for batching. Programs of up to 64 rows
// do not change: there clusters are as fast (docs/rationale/kernels.md).
func (s *state) splitColumns() error {
	for _, p := range s.programs {
		if p.rows <= 2*fewRows {
			continue
		}
		for i := 0; i+1 < len(p.nodes); i++ {
			n, reader := p.nodes[i], p.nodes[i+1]
			product, ok := n.args.(halvesProductArgs)
			norm, adds := reader.args.(addNormHalvesArgs)
			if !ok || !adds || product.few || product.bias != nil || !p.feeds(n, reader) {
				continue
			}
			if product.apart = product.apartPays(&lowering{s: s, p: p, n: n}); !product.apart {
				continue
			}
			sums := p.value(n.with(".segments").label(), decl.Segments*product.w.rows).all()
			norm.segments = true
			n.args, n.out = product, []operand{sums}
			reader.args, reader.in = norm, append([]operand{sums}, reader.in[1:]...)
		}
	}
	return nil
}

// sumsConstant is the time in which all multiprocessors together write and read a byte of the sums of segments, in
// the unit of copyConstant.
const sumsConstant = 2

// apartPays reports whether gemm_halves is estimated to take clearly less time if threadgroups divide the segments and
// write the sums of each.
func (a halvesProductArgs) apartPays(l *lowering) bool {
	_, whole := a.wholeShape(l)
	_, apart := a.apartShape(l)
	return apart < whole*95/100
}

// apartShape returns the shape with the shortest estimated time if threadgroups divide the segments, and that time.
func (a halvesProductArgs) apartShape(l *lowering) (best halvesShape, least int) {
	sums := int(sumsConstant * float64(4*decl.Segments*l.p.rows*a.w.rows))
	for _, splits := range []int{2, 4, 8} {
		for _, rows := range []int{128, 256} {
			if rows >= 2*l.p.rows {
				continue
			}
			groups := splits * ceil(a.w.rows, halvesGroup) * ceil(l.p.rows, rows)
			one := a.columnTime(l, rows) * ceil(a.w.cols, splits)
			time := max(ceil(groups, max(l.s.in.Chip.Cores, 1))*one, l.s.copyTime(a.w)) + sums
			if least == 0 || time < least {
				best = halvesShape{threads: warpgroupThreads, group: halvesGroup, rows: rows, splits: splits}
				least = time
			}
		}
	}
	return best, least
}

// copyTime estimates the time in which all multiprocessors together copy a matrix from memory, in the unit of
// halvesConstant.
func (s *state) copyTime(w *weight) int {
	bytes, _ := w.typ.Bytes(uint64(w.rows * w.cols))
	return int(copyConstant / s.in.Chip.BandwidthGBs * float64(bytes))
}
