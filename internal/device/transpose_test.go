package device_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// TestHalves transposes both halves of the columns of a matrix, and every second column.
func TestHalves(t *testing.T) {
	const rows, columns = 3, 140 // more columns than are transposed at a time
	src := &source{tensors: map[string][]byte{}}
	var matrix []byte
	for i := range rows * columns {
		matrix = binary.LittleEndian.AppendUint16(matrix, uint16(i))
	}
	src.tensors["x"] = matrix
	for _, c := range []struct {
		op    table.UploadOp
		phase uint8
		first int // column that becomes the first row
		step  int
	}{{table.UploadHalf, 0, 0, 1}, {table.UploadHalf, 1, columns / 2, 1}, {table.UploadTranspose, 1, 1, 2}} {
		size := uint64(len(matrix) / 2)
		tab := &table.Table{
			Slots:   []table.Slot{{Name: "w", Kind: table.SlotWeight, Scope: table.ScopeModel, Size: size}},
			Uploads: []table.Upload{{Op: c.op, Type: dtype.F16, Tensor: "x", Cols: rows, Step: 2, Phase: c.phase, SrcSize: uint64(len(matrix))}},
		}
		got := make([]byte, size)
		u, err := device.NewUpload(bg, "fake", tab, src, replay.LoadOptions{})
		if err == nil {
			err = u.Fill(bg, func(uint32) []byte { return got })
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range columns / 2 {
			for j := range rows {
				want := uint16(j*columns + c.first + i*c.step)
				if v := binary.LittleEndian.Uint16(got[2*(i*rows+j):]); v != want {
					t.Fatalf("%v, phase %d: row %d, column %d: %d, want %d", c.op, c.phase, i, j, v, want)
				}
			}
		}
		tab.Uploads[0].Cols = rows + 1
		if _, err := device.NewUpload(bg, "fake", tab, src, replay.LoadOptions{}); err == nil || !strings.Contains(err.Error(), "are not 4 rows that can be transposed") {
			t.Errorf("%v: a number of rows that does not divide the matrix: %v", c.op, err)
		}
	}
}
