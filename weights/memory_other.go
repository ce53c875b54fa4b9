//go:build !(darwin || linux || windows)

package weights

// AvailableMemory returns false: this system does not report it.
func AvailableMemory() (n uint64, ok bool) { return 0, false }
