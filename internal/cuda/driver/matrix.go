package driver

import "unsafe"

// Matrix is a matrix of 16-bit elements in device memory.
type Matrix struct {
	At                    Ptr    // a multiple of 16
	Rows, Columns, Stride uint64 // Stride is the distance between rows in bytes, a multiple of 16
}

// MapSize is the size of a matrix's descriptor in bytes.
const MapSize = 128

// boxSize is the number of rows, and of columns, that the copy unit copies at once.
const boxSize = 64

// CanMap reports whether the driver supports Map (CUDA 12.0).
func (d *Driver) CanMap() bool { return d.fns[cuTensorMapEncodeTiled] != 0 }

// Map returns the descriptor with which kernels copy boxes of 64 rows and 64 columns of a matrix to
// shared memory. There, a row of a box has 128 bytes, whose piece p of 16 bytes is at p xor (row
// mod 8). Elements outside of the matrix are copied as 0.
func (d *Driver) Map(m Matrix) (b [MapSize]byte, err error) {
	const (
		float16     = 6
		dimensions  = 2
		interleave  = 0
		swizzle128  = 3
		promote256  = 3
		outsideZero = 0
		alignment   = 64
	)
	if !d.CanMap() {
		return b, d.failed(cuTensorMapEncodeTiled, codeNotFound)
	}
	space := new([MapSize + alignment]byte)
	at := unsafe.Pointer(space)
	at = unsafe.Add(at, -uintptr(at)%alignment)
	dims, strides := &[dimensions]uint64{m.Columns, m.Rows}, &[dimensions - 1]uint64{m.Stride}
	box, steps := &[dimensions]uint32{boxSize, boxSize}, &[dimensions]uint32{1, 1}
	err = d.call(cuTensorMapEncodeTiled, uintptr(at), float16, dimensions, uintptr(m.At), uintptr(unsafe.Pointer(dims)),
		uintptr(unsafe.Pointer(strides)), uintptr(unsafe.Pointer(box)), uintptr(unsafe.Pointer(steps)), interleave, swizzle128, promote256, outsideZero)
	return *(*[MapSize]byte)(at), err
}
