package device

import "unsafe"

// float32s returns bytes that are aligned as float32.
func float32s(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
