package weights

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// The tensors of an MXFP4 matrix in gpt-oss's format.
const (
	blocksSuffix = "_blocks" // U8 [..., blocks of a row, 16]: nibbles in order
	scalesSuffix = "_scales" // U8 [..., blocks of a row]
)

// joinBlocks returns the matrix that a tensor of blocks and the tensor of their scales form,
// under the name of the blocks. It returns nil if t is not such a tensor.
func (d *Directory) joinBlocks(t Tensor) (j *joined, names []string, what string) {
	stem, ok := strings.CutSuffix(t.Name, blocksSuffix)
	if !ok || t.TypeName != "U8" {
		return nil, nil, ""
	}
	scales, ok := d.Tensor(stem + scalesSuffix)
	if !ok {
		return nil, nil, "has no " + scalesSuffix
	}
	last := len(t.Shape) - 1
	if last < 2 || t.Shape[last] != 16 || scales.TypeName != "U8" || !slices.Equal(scales.Shape, t.Shape[:last]) {
		return nil, nil, fmt.Sprintf("shape %v, with scales of %s and shape %v", t.Shape, scales.TypeName, scales.Shape)
	}
	rows, across, ok := rowsOf(scales.Shape)
	if !ok || across == 0 || across > 1<<24 {
		return nil, nil, fmt.Sprintf("shape %v", t.Shape)
	}
	t.Shape = t.Shape[:last]
	return &joined{t: dtype.MXFP4, rows: rows, cols: across * 32, quants: t, scales: scales, across: across}, []string{scales.Name}, ""
}
