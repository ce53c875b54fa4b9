package device

import (
	"github.com/pianola-engine/pianola/table"
)

// transposeBlock is the number of source columns that are transposed at a time: one cache line of
// the source.
const transposeBlock = 32

// cutRows cuts a transposing upload into pieces, each about pieceBytes of destination rows. It
// returns the size of the largest piece.
func (u *Upload) cutRows(up *table.Upload, src []byte, all uint64) (largest int) {
	_, elem := up.Type.Block()
	row := int(up.Cols) * elem
	rows := int(all) / row
	each := max(pieceBytes/row/transposeBlock, 1) * transposeBlock
	done := 0
	for at := 0; at < rows; at += each {
		n := min(each, rows-at)
		upTo := int(scale(uint64(at+n), uint64(len(src)), uint64(rows)))
		u.pieces = append(u.pieces, Piece{
			Slot: up.Slot, Offset: up.DstOffset + uint64(at*row), Size: n * row, op: up.Op, t: up.Type, cols: int(up.Cols), src: src,
			up: up, row: at, length: upTo - done,
		})
		done = upTo
		largest = max(largest, n*row)
	}
	return largest
}

// transpose writes the rows of the piece, which are columns of the source.
func (p *Piece) transpose(dst []byte) {
	_, elem := p.t.Block()
	columns := len(p.src) / elem / p.cols
	rows := len(dst) / elem / p.cols
	for from := 0; from < rows; from += transposeBlock {
		n := min(transposeBlock, rows-from)
		for c := range p.cols {
			line := p.src[c*columns*elem:][:columns*elem]
			for r := from; r < from+n; r++ {
				copy(dst[(r*p.cols+c)*elem:][:elem], line[p.up.Column(p.row+r, columns)*elem:])
			}
		}
	}
}

// everyNth returns every step-th element or row of size bytes, starting with number phase.
func everyNth(src []byte, size, step, phase int) []byte {
	out := make([]byte, 0, len(src)/step)
	for at := phase * size; at < len(src); at += step * size {
		out = append(out, src[at:at+size]...)
	}
	return out
}

// rows returns the source rows that Step and Phase select.
func (p *Piece) rows() []byte {
	if p.step < 2 {
		return p.src
	}
	row, _ := p.t.Bytes(uint64(p.cols)) // whole rows: NewUpload has checked it
	return everyNth(p.src, int(row), p.step, p.phase)
}
