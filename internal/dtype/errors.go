package dtype

import "fmt"

// UnsupportedError reports an operation that a type does not support.
type UnsupportedError struct {
	Op   string // "quantize", "dequantize" or "random blocks"
	Type Type
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("dtype: %s: not supported for type %s", e.Op, e.Type)
}

// SizeError reports buffers whose lengths do not match each other or the type's block size.
type SizeError struct {
	Op    string
	Type  Type
	Elems int // elements on the float32 side; -1 if there is no such side
	Bytes int // bytes on the encoded side
}

func (e *SizeError) Error() string {
	elems, size := e.Type.Block()
	if e.Elems < 0 {
		return fmt.Sprintf("dtype: %s %s: %d bytes are not a whole number of blocks of %d bytes",
			e.Op, e.Type, e.Bytes, size)
	}
	return fmt.Sprintf("dtype: %s %s: %d elements and %d bytes do not match (a block is %d elements in %d bytes)",
		e.Op, e.Type, e.Elems, e.Bytes, elems, size)
}

// checkLengths returns a SizeError unless elems elements are whole blocks of exactly size bytes.
func checkLengths(op string, t Type, elems, size int) error {
	if want, ok := t.Bytes(uint64(elems)); !ok || want != uint64(size) {
		return &SizeError{Op: op, Type: t, Elems: elems, Bytes: size}
	}
	return nil
}
