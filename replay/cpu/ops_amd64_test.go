package cpu

// narrower returns the sets of loops that fastest does not select because wider ones exist.
func narrower() map[string]*ops {
	if !hasAVX2() {
		return nil
	}
	return map[string]*ops{"avx2": avx2()}
}
