//go:build !amd64

package cpu

// narrower returns the sets of loops that fastest does not select because wider ones exist.
func narrower() map[string]*ops { return nil }
