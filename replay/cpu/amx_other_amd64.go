//go:build !linux

package cpu

// allowTiles reports whether the process may use AMX's tiles. Only Linux is supported.
func allowTiles() bool { return false }
