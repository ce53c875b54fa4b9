package compiler

// fuseResidualNorm fuses x += delta with the norm of delta before it and with the norm of x after
// it.
func (s *state) fuseResidualNorm() error {
	for _, p := range s.programs {
		pairs(p, func(a *node, norm normArgs, b *node, add addArgs) bool {
			if norm.mean || norm.fromRow || add.delta != 0 || !p.feeds(a, b) {
				return false
			}
			b.args, b.in = normAddArgs{post: norm.w, eps: norm.eps}, a.in
			return true
		})
		pairs(p, func(a *node, add addArgs, b *node, norm normArgs) bool {
			return normAfter(a, b, norm, addNormArgs{w: norm.w, eps: norm.eps, scale: norm.scale, delta: add.delta})
		})
		pairs(p, func(a *node, add normAddArgs, b *node, norm normArgs) bool {
			return add.w == nil && norm.scale == 0 && normAfter(a, b, norm, normAddArgs{post: add.post, w: norm.w, eps: norm.eps})
		})
	}
	return nil
}

// normAfter changes the norm b to compute the addition a too, with the args both, if b is an RMS norm
// of the output of a.
func normAfter(a, b *node, norm normArgs, both args) bool {
	if norm.mean || norm.fromRow || b.in[0] != a.out[0] {
		return false
	}
	b.args, b.in, b.out = both, a.in, []operand{a.out[0], b.out[0]}
	return true
}
