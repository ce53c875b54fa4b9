package main

import (
	"archive/zip"
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"
)

// npyArray is an array for a file in NumPy's format npz: its name, its shape, and its elements in
// row order, either float32 or int32.
type npyArray struct {
	name   string
	shape  []int
	floats []float32
	ints   []int32
}

// writeNPZ writes arrays as an npz file: a zip archive, not compressed, with one npy file for each
// array. Names must differ.
func writeNPZ(w io.Writer, arrays []npyArray) error {
	z := zip.NewWriter(w)
	for i := range arrays {
		a := &arrays[i]
		f, err := z.CreateHeader(&zip.FileHeader{Name: a.name + ".npy", Method: zip.Store})
		if err != nil {
			return err
		}
		if err := a.write(f); err != nil {
			return fmt.Errorf("array %s: %w", a.name, err)
		}
	}
	return z.Close()
}

// npyAlign is the alignment of the elements in an npy file.
const npyAlign = 64

// write writes the array as an npy file of version 1.0.
func (a *npyArray) write(w io.Writer) error {
	kind, n := "<f4", len(a.floats)
	if a.ints != nil {
		kind, n = "<i4", len(a.ints)
	}
	size := 1
	var shape strings.Builder
	for _, d := range a.shape {
		size *= d
		fmt.Fprintf(&shape, "%d, ", d)
	}
	if size != n {
		return fmt.Errorf("%d elements do not have the shape %v", n, a.shape)
	}
	head := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", kind, shape.String())
	const prefix = 10 // magic, version, and length of the header
	head += strings.Repeat(" ", (npyAlign-(prefix+len(head)+1)%npyAlign)%npyAlign) + "\n"
	if len(head) > math.MaxUint16 {
		return fmt.Errorf("the header has %d bytes", len(head))
	}
	b := bufio.NewWriterSize(w, 1<<16)
	b.WriteString("\x93NUMPY\x01\x00")
	b.Write(binary.LittleEndian.AppendUint16(nil, uint16(len(head))))
	b.WriteString(head)
	var word [4]byte
	for _, v := range a.floats {
		binary.LittleEndian.PutUint32(word[:], math.Float32bits(v))
		b.Write(word[:])
	}
	for _, v := range a.ints {
		binary.LittleEndian.PutUint32(word[:], uint32(v))
		b.Write(word[:])
	}
	return b.Flush()
}
