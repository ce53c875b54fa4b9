package emu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// upload executes a table's upload section into slots' memory.
func upload(ctx context.Context, t *table.Table, src replay.Source, mem [][]byte, progress func(done, total uint64)) error {
	var done, total uint64
	for i := range t.Uploads {
		total += t.Uploads[i].SrcSize
	}
	for i := range t.Uploads {
		u := &t.Uploads[i]
		err := ctx.Err()
		if err == nil {
			err = uploadOne(t, u, src, mem)
		}
		if err != nil {
			return fmt.Errorf("emu: upload %d (%s): %w", i, u.Tensor, err)
		}
		if done += u.SrcSize; progress != nil {
			progress(done, total)
		}
	}
	return nil
}

// joined returns the rows of a joined tensor. ok is false if the tensor is not joined.
func joined(u *table.Upload, src replay.Source) (rows []byte, ok bool, err error) {
	j, ok := src.(replay.Joiner)
	if !ok || u.Op == table.UploadConst {
		return nil, false, nil
	}
	if size, ok := j.Joined(u.Tensor); !ok || u.SrcSize > size {
		return nil, false, nil
	}
	rows = make([]byte, u.SrcSize)
	return rows, true, j.ReadJoined(u.Tensor, u.SrcOffset, rows)
}

func uploadOne(t *table.Table, u *table.Upload, src replay.Source, mem [][]byte) error {
	from := t.Const
	if rows, ok, err := joined(u, src); ok || err != nil {
		if err != nil {
			return err
		}
		from, u = rows, &table.Upload{Op: u.Op, Type: u.Type, Slot: u.Slot, Cols: u.Cols, SrcSize: u.SrcSize, DstOffset: u.DstOffset}
	} else if u.Op != table.UploadConst {
		if src == nil {
			return errors.New("there is no source")
		}
		var err error
		if from, err = src.Tensor(u.Tensor); err != nil {
			return err
		}
	}
	if u.SrcOffset > uint64(len(from)) || u.SrcSize > uint64(len(from))-u.SrcOffset {
		return fmt.Errorf("offset %d + %d bytes exceeds the source's %d bytes", u.SrcOffset, u.SrcSize, len(from))
	}
	from = from[u.SrcOffset:][:u.SrcSize]
	size, ok := u.DstSize()
	to := mem[u.Slot]
	if !ok || u.DstOffset > uint64(len(to)) || size > uint64(len(to))-u.DstOffset {
		return fmt.Errorf("%d + %d bytes are past the slot's %d", u.DstOffset, size, len(to))
	}
	to = to[u.DstOffset:][:size]
	switch u.Op {
	case table.UploadTranspose, table.UploadHalf:
		transpose(u, to, from)
	case table.UploadToF32, table.UploadPlusOne:
		from = stepped(u, from)
		x := make([]float32, len(to)/4)
		if err := dtype.Dequantize(u.Type, x, from); err != nil {
			return err
		}
		for i, v := range x {
			if u.Op == table.UploadPlusOne {
				v++
			}
			binary.LittleEndian.PutUint32(to[4*i:], math.Float32bits(v))
		}
	case table.UploadTile:
		rows, _ := u.Rows()
		return dtype.Tile(u.Type, to, from, int(rows), int(u.Cols))
	default:
		copy(to, from)
	}
	return nil
}

// transpose writes every Step-th column, or half of the columns, as a row.
func transpose(u *table.Upload, to, from []byte) {
	_, size := u.Type.Block()
	cols := int(u.Cols)
	columns := len(from) / size / cols
	for i := range len(to) / size {
		row, col := i/cols, i%cols
		copy(to[i*size:][:size], from[(col*columns+u.Column(row, columns))*size:])
	}
}

// stepped returns every Step-th element.
func stepped(u *table.Upload, from []byte) (out []byte) {
	if u.Step < 2 {
		return from
	}
	_, size := u.Type.Block()
	for at := int(u.Phase) * size; at < len(from); at += int(u.Step) * size {
		out = append(out, from[at:][:size]...)
	}
	return out
}
