// Package hostmem allocates memory outside Go's heap, whose pages can be given back to the system one
// by one.
package hostmem

import "unsafe"

// Within returns the part of b between the first and the last address that are multiples of n, a
// power of two.
func Within(b []byte, n uintptr) []byte {
	first := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	skip := -first & (n - 1)
	if skip > uintptr(len(b)) {
		return nil
	}
	b = b[skip:]
	return b[:uintptr(len(b))&^(n-1)]
}
