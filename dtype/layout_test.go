package dtype_test

import (
	"bytes"
	"testing"

	"github.com/pianola-engine/pianola/dtype"
)

// TestTile rearranges random matrices and takes every row back.
func TestTile(t *testing.T) {
	for _, typ := range []dtype.Type{dtype.Q8_0, dtype.Q4_0, dtype.Q4_K, dtype.Q6_K} {
		for _, shape := range [][2]int{{16, 256}, {48, 512}, {32, 1024}} {
			rows, cols := shape[0], shape[1]
			size, ok := typ.Bytes(uint64(cols))
			if !ok {
				t.Fatal(typ)
			}
			src := make([]byte, rows*int(size))
			if err := dtype.RandomBlocks(typ, src, 7, 0.02); err != nil {
				t.Fatal(err)
			}
			n, ok := dtype.Tiled16.Bytes(typ, uint64(rows), uint64(cols))
			if !ok {
				t.Fatalf("%s %v is not tiled", typ, shape)
			}
			tiled := make([]byte, n)
			if err := dtype.Tile(typ, tiled, src, rows, cols); err != nil {
				t.Fatal(err)
			}
			row := make([]byte, size)
			for r := range rows {
				if err := dtype.UntileRow(typ, row, tiled, r, cols); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(row, src[r*int(size):][:size]) {
					t.Fatalf("%s %v: row %d came back as another", typ, shape, r)
				}
			}
		}
	}
}

func TestTileErrors(t *testing.T) {
	for _, c := range []struct {
		t          dtype.Type
		rows, cols uint64
	}{{dtype.F16, 16, 32}, {dtype.Q8_0, 15, 32}, {dtype.Q8_0, 16, 33}, {dtype.Q4_K, 16, 128}, {dtype.Q8_0, 1 << 33, 32}} {
		if dtype.Tiled16.Has(c.t, c.rows, c.cols) {
			t.Errorf("%s [%d, %d] is said to have tiles", c.t, c.rows, c.cols)
		}
	}
	if err := dtype.Tile(dtype.Q8_0, make([]byte, 544), make([]byte, 543), 16, 32); err == nil {
		t.Error("a source of another size was taken")
	}
	if err := dtype.UntileRow(dtype.Q8_0, make([]byte, 34), make([]byte, 544), 16, 32); err == nil {
		t.Error("a row past the end was taken")
	}
}

func BenchmarkTile(b *testing.B) {
	for _, typ := range []dtype.Type{dtype.Q8_0, dtype.Q4_0, dtype.Q4_K, dtype.Q6_K} {
		b.Run(typ.String(), func(b *testing.B) {
			const rows, cols = 1024, 1024
			n, _ := typ.Bytes(cols)
			src := make([]byte, rows*n)
			size, _ := dtype.Tiled16.Bytes(typ, rows, cols)
			dst := make([]byte, size)
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				if err := dtype.Tile(typ, dst, src, rows, cols); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
