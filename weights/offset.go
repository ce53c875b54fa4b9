package weights

import "unsafe"

// offsetIn returns the offset of part within whole, if whole contains part. It compares
// addresses and does not read memory.
func offsetIn(whole, part []byte) (offset uint64, ok bool) {
	if len(part) == 0 || len(part) > len(whole) {
		return 0, false
	}
	w, p := uintptr(unsafe.Pointer(unsafe.SliceData(whole))), uintptr(unsafe.Pointer(unsafe.SliceData(part)))
	if p < w || p-w > uintptr(len(whole)-len(part)) {
		return 0, false
	}
	return uint64(p - w), true
}
