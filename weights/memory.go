package weights

// AvailableMemory returns the bytes that can be used without swapping, as far
// as the system or the container says. It is not ok where none does.
func AvailableMemory() (n uint64, ok bool) { return availableMemory() }
