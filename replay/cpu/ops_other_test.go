//go:build !amd64

package cpu

// narrower returns the sets of loops that fastest may pass over for wider ones.
func narrower() map[string]*ops { return nil }
