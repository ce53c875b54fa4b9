package cpu

import (
	"fmt"
	"github.com/pianola-engine/pianola/internal/sequence"
	"math/bits"
	"unsafe"

	"github.com/pianola-engine/pianola/table"
)

// All conversions between bytes and typed memory are in this file. Each view has the length of
// the underlying bytes, so Go's bounds checks protect it.

// align is the alignment of all allocations: a cache line.
const align = 64

// hugePage is the size of a huge page where pages have 4 KiB.
const hugePage = 2 << 20

// allocate returns n zeroed, aligned bytes. It returns an error for more bytes than the machine
// has.
func allocate(n uint64) ([]byte, error) {
	if limit := machineMemory(); n > limit {
		return nil, fmt.Errorf("%d bytes do not fit in this machine's memory of %d", n, limit)
	}
	if n > 1<<(bits.UintSize-2) {
		return nil, fmt.Errorf("%d bytes do not fit in the address space", n)
	}
	words := make([]uint64, (n+7)/8+align/8)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
	skip := -uintptr(unsafe.Pointer(&b[0])) % align
	return b[skip:][:n:n], nil
}

// aligned reports whether b starts at a multiple of n, a power of two.
func aligned[T any](b []T, n uintptr) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%n == 0
}

// float32s returns b as [len(b)/4] float32. b must be aligned to 4.
func float32s(b []byte) []float32 {
	if len(b) < 4 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4)
}

// uint32s returns b as [len(b)/4] uint32. b must be aligned to 4.
func uint32s(b []byte) []uint32 {
	if len(b) < 4 {
		return nil
	}
	return unsafe.Slice((*uint32)(unsafe.Pointer(&b[0])), len(b)/4)
}

// int8s returns b as [len(b)] int8.
func int8s(b []byte) []int8 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*int8)(unsafe.Pointer(&b[0])), len(b))
}

// int16s returns b as [len(b)/2] int16. b must be aligned to 2.
func int16s(b []byte) []int16 {
	if len(b) < 2 {
		return nil
	}
	return unsafe.Slice((*int16)(unsafe.Pointer(&b[0])), len(b)/2)
}

// stepOf returns the first record of a step slot. The slot must be aligned to 8 and hold at least
// one record.
func stepOf(b []byte) *table.Step {
	_ = b[table.StepSize-1]
	return (*table.Step)(unsafe.Pointer(&b[0]))
}

// rowsOf returns n row records. The memory must be aligned to 4 and hold at least n records.
func rowsOf(b []byte, n int) []sequence.Row {
	_ = b[n*sequence.RowBytes-1]
	return unsafe.Slice((*sequence.Row)(unsafe.Pointer(&b[0])), n)
}

// stepWords returns a step as words that can be stored atomically.
func stepWords(s *table.Step) *[table.StepSize / 8]uint64 {
	return (*[table.StepSize / 8]uint64)(unsafe.Pointer(s))
}

// memoryOf returns the memory of f.
func memoryOf(f []float32) []byte {
	if len(f) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&f[0])), 4*len(f))
}
