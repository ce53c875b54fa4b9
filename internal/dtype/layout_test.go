package dtype_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// tiledTypes are the types that have tiles: all quantised types except those with float32 scales.
var tiledTypes = slices.DeleteFunc(dtype.All(), func(t dtype.Type) bool {
	_, _, scale, _ := t.MLX()
	return !t.Integers() || scale == dtype.F32
})

// TestTile tiles matrices of random bytes and untiles every row.
func TestTile(t *testing.T) {
	for _, typ := range tiledTypes {
		r := rand.New(rand.NewPCG(7, uint64(typ)))
		for _, shape := range [][2]int{{16, 256}, {48, 512}, {32, 1024}, {0, 256}, {16, 0}} {
			rows, cols := shape[0], shape[1]
			size, ok := typ.Bytes(uint64(cols))
			if !ok {
				t.Fatal(typ)
			}
			src := make([]byte, rows*int(size))
			for i := range src {
				src[i] = byte(r.Uint32())
			}
			untileAll(t, typ, src, rows, cols)
		}
	}
}

// untileAll tiles src and checks that each untiled row equals the row of src.
func untileAll(t *testing.T, typ dtype.Type, src []byte, rows, cols int) {
	t.Helper()
	n, ok := dtype.Tiled16.Bytes(typ, uint64(rows), uint64(cols))
	if !ok {
		t.Fatalf("%s [%d, %d] is not tiled", typ, rows, cols)
	}
	base3 := typ == dtype.TQ1_0 // tiles store pairs of bits, so bytes that no encoder writes change
	if have := uint64(len(src)); n < have || n > have+have/25 && !base3 || n > have+have/4 {
		t.Errorf("%s: %d bytes became %d", typ, have, n)
	}
	// The previous content of the destination must have no effect.
	tiled := bytes.Repeat([]byte{0xa5}, int(n))
	if err := dtype.Tile(typ, tiled, src, rows, cols); err != nil {
		t.Fatal(err)
	}
	size, _ := typ.Bytes(uint64(cols))
	for r := range rows {
		row := bytes.Repeat([]byte{0x5a}, int(size))
		if err := dtype.UntileRow(typ, row, tiled, r, cols); err != nil {
			t.Fatal(err)
		}
		want := src[r*int(size):][:size]
		if base3 {
			want = decoded(t, typ, want, cols)
			row = decoded(t, typ, row, cols)
		}
		if !bytes.Equal(row, want) {
			t.Fatalf("%s [%d, %d]: row %d came back as\n%x, was\n%x", typ, rows, cols, r, row, want)
		}
	}
}

// decoded returns the bytes of the elements of a row.
func decoded(t *testing.T, typ dtype.Type, row []byte, cols int) []byte {
	values := make([]float32, cols)
	if err := dtype.Dequantize(typ, values, row); err != nil {
		t.Fatal(err)
	}
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// FuzzTile checks that a block of arbitrary bytes in any row of a strip is unchanged after tiling
// and untiling.
func FuzzTile(f *testing.F) {
	for _, typ := range tiledTypes {
		_, size := typ.Block()
		f.Add(uint8(typ), uint8(5), bytes.Repeat([]byte{0x96}, size))
	}
	f.Fuzz(func(t *testing.T, id, row uint8, block []byte) {
		typ := dtype.Type(id)
		elems, size := typ.Block()
		if !slices.Contains(tiledTypes, typ) || len(block) < size {
			return
		}
		src := make([]byte, dtype.TileRows*size)
		for r := range dtype.TileRows {
			copy(src[r*size:], block[min(r, len(block)-size):][:size])
		}
		copy(src[int(row)%dtype.TileRows*size:], block[:size])
		untileAll(t, typ, src, dtype.TileRows, elems)
	})
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
	for _, r := range []int{-1, 16, 1 << 62} {
		if err := dtype.UntileRow(dtype.Q8_0, make([]byte, 34), make([]byte, 544), r, 32); err == nil {
			t.Errorf("row %d of 16 was taken", r)
		}
	}
	if err := dtype.UntileRow(dtype.F16, make([]byte, 64), make([]byte, 1024), 0, 32); err == nil {
		t.Error("a type without tiles was taken")
	}
}

func BenchmarkTile(b *testing.B) {
	for _, typ := range tiledTypes {
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

// TestTileTrits checks that the bytes which an encoder of TQ1_0 writes are unchanged after tiling
// and untiling.
func TestTileTrits(t *testing.T) {
	const rows, cols = 32, 512
	size, _ := dtype.TQ1_0.Bytes(cols)
	n, _ := dtype.Tiled16.Bytes(dtype.TQ1_0, rows, cols)
	src, tiled, row := make([]byte, rows*size), make([]byte, n), make([]byte, size)
	if err := dtype.RandomBlocks(dtype.TQ1_0, src, 3, 1); err != nil {
		t.Fatal(err)
	}
	if err := dtype.Tile(dtype.TQ1_0, tiled, src, rows, cols); err != nil {
		t.Fatal(err)
	}
	for r := range rows {
		if err := dtype.UntileRow(dtype.TQ1_0, row, tiled, r, cols); err != nil {
			t.Fatal(err)
		}
		if want := src[r*int(size):][:size]; !bytes.Equal(row, want) {
			t.Fatalf("row %d came back as\n%x, was\n%x", r, row, want)
		}
	}
}
