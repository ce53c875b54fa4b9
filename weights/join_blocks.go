package weights

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// Suffixes of the tensors that form an MXFP4 matrix in gpt-oss's format.
const (
	blocksSuffix = "_blocks" // U8 [..., blocks per row, 16]: nibbles in column order
	scalesSuffix = "_scales" // U8 [..., blocks per row]
)

// joinBlocks returns the matrix that consists of the block tensor t and the tensor of its
// scales. The matrix has the name of t. joinBlocks returns nil if t is not a block tensor.
func (d *Directory) joinBlocks(t Tensor) (j *joined, names []string, what string) {
	stem, ok := strings.CutSuffix(t.Name, blocksSuffix)
	if !ok || t.TypeName != "U8" {
		return nil, nil, ""
	}
	scales, ok := d.Tensor(stem + scalesSuffix)
	if !ok {
		return nil, nil, "lacks the tensor with suffix " + scalesSuffix
	}
	last := len(t.Shape) - 1
	if last < 2 || t.Shape[last] != 16 || scales.TypeName != "U8" || !slices.Equal(scales.Shape, t.Shape[:last]) {
		return nil, nil, fmt.Sprintf("shape %v does not match scales of type %s and shape %v", t.Shape, scales.TypeName, scales.Shape)
	}
	rows, across, ok := rowsOf(scales.Shape)
	if !ok || across == 0 || across > 1<<24 {
		return nil, nil, fmt.Sprintf("shape %v", t.Shape)
	}
	t.Shape = t.Shape[:last]
	return &joined{t: dtype.MXFP4, rows: rows, cols: across * 32, quants: t, scales: scales, across: across}, []string{scales.Name}, ""
}
