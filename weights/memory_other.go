//go:build !(darwin || linux || windows)

package weights

// AvailableMemory returns false, because this system does not report its available memory.
func AvailableMemory() (n uint64, ok bool) { return 0, false }
