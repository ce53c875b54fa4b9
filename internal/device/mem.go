package device

import "unsafe"

// float32s returns b as a slice of float32. b must be aligned to 4 bytes.
func float32s(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
