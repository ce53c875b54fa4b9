package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
)

// resultWriter is standard output. It keeps the first error, so that a command fails on a full disk
// even if the code that writes ignores the error.
type resultWriter struct {
	w   io.Writer
	err error
}

func (r *resultWriter) Write(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.w.Write(p)
	r.err = err
	return n, err
}

// writeJSON writes v as one line.
func writeJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// floats marshals float32 values to a JSON array, each in its shortest form.
type floats []float32

// MarshalJSON implements json.Marshaler.
func (f floats) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 2+12*len(f))
	b = append(b, '[')
	for i, v := range f {
		if i > 0 {
			b = append(b, ',')
		}
		if x := float64(v); math.IsNaN(x) || math.IsInf(x, 0) {
			return nil, fmt.Errorf("logit %d is %v, which JSON cannot represent", i, v)
		}
		b = strconv.AppendFloat(b, float64(v), 'g', -1, 32)
	}
	return append(b, ']'), nil
}

// byteSize returns a number of bytes with about three digits, such as "1.25 MiB".
func byteSize(n uint64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	x, unit := float64(n), ""
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if x /= 1 << 10; x < 999.5 || u == "TiB" {
			unit = u
			break
		}
	}
	return figure(x) + " " + unit
}

// figure returns x with three significant digits, or with all digits before the point if there are more.
func figure(x float64) string {
	decimals := 0
	switch a := math.Abs(x); {
	case a < 9.995:
		decimals = 2
	case a < 99.95:
		decimals = 1
	}
	return strconv.FormatFloat(x, 'f', decimals, 64)
}
