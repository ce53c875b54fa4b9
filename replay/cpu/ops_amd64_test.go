package cpu

// narrower returns the sets of loops that fastest may pass over for wider ones.
func narrower() map[string]*ops {
	if !hasAVX2() {
		return nil
	}
	return map[string]*ops{"avx2": avx2()}
}
