package device

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// pieceBytes is the approximate number of source bytes converted between two checks of the
// context. It is a multiple of every element's size.
const pieceBytes = 4 << 20

// Upload is a table's upload section with its checked sources: those that are used in place, and
// the pieces of those that are converted.
type Upload struct {
	device string
	t      *table.Table
	src    replay.Source
	o      replay.LoadOptions

	bytes  [][]byte // source of each upload; nil if it is used in place or joined
	joins  []bool   // for each upload: the source consists of several tensors
	pieces []Piece
	next   atomic.Int64

	mu    sync.Mutex // guards done, and calls of Progress
	done  uint64     // converted source bytes
	total uint64
}

// Piece is a part of an upload: a range of the source and its destination.
type Piece struct {
	Slot   uint32
	Offset uint64 // in the slot
	Size   int    // bytes in the slot

	op   table.UploadOp
	t    dtype.Type
	cols int // elements per row of the destination, for UploadTile and UploadTranspose
	src  []byte

	tensor string // name of a source that consists of several tensors; src is nil
	from   uint64 // offset in that source
	length int    // source bytes that the piece counts for in the progress

	step, phase int
	row         int           // first destination row, of a transposing upload
	up          *table.Upload // a transposing upload
}

// NewUpload looks up the source of every upload and checks its destination.
func NewUpload(ctx context.Context, device string, t *table.Table, src replay.Source, o replay.LoadOptions) (*Upload, error) {
	u := &Upload{device: device, t: t, src: src, o: o, bytes: make([][]byte, len(t.Uploads)), joins: make([]bool, len(t.Uploads))}
	for i := range t.Uploads {
		if err := context.Cause(ctx); err != nil {
			return nil, u.place(err)
		}
		joins, err := u.joined(&t.Uploads[i])
		var b []byte
		if err == nil && !joins {
			b, err = u.source(&t.Uploads[i])
		}
		if err == nil {
			err = u.check(&t.Uploads[i])
		}
		if err != nil {
			return nil, u.placeAt(i, err)
		}
		u.bytes[i], u.joins[i] = b, joins
		u.total += t.Uploads[i].SrcSize
	}
	return u, nil
}

func (u *Upload) place(err error) error { return fmt.Errorf("%s: load: %w", u.device, err) }

func (u *Upload) placeAt(i int, err error) error {
	return fmt.Errorf("%s: upload %d (%s): %w", u.device, i, u.t.Uploads[i].Tensor, err)
}

// source returns an upload's source bytes. It checks that the source is long enough.
func (u *Upload) source(up *table.Upload) ([]byte, error) {
	b := u.t.Const
	if up.Op != table.UploadConst {
		if u.src == nil {
			return nil, errors.New("there is no source")
		}
		var err error
		if b, err = u.src.Tensor(up.Tensor); err != nil {
			return nil, err
		}
	}
	n := uint64(len(b))
	if up.SrcOffset > n || up.SrcSize > n-up.SrcOffset {
		return nil, fmt.Errorf("offset %d + %d bytes exceeds the source's %d bytes", up.SrcOffset, up.SrcSize, n)
	}
	return b[up.SrcOffset:][:up.SrcSize:up.SrcSize], nil
}

// joined reports whether an upload's source consists of several tensors. If so, it checks that
// the range is whole rows within the source.
func (u *Upload) joined(up *table.Upload) (bool, error) {
	j, ok := u.src.(replay.Joiner)
	if !ok || up.Op == table.UploadConst {
		return false, nil
	}
	n, ok := j.Joined(up.Tensor)
	if !ok {
		return false, nil
	}
	row, _ := up.Type.Bytes(uint64(up.Cols))
	switch {
	case up.Op != table.UploadTile && up.Op != table.UploadJoin:
		return true, fmt.Errorf("a %v matrix consists of several tensors, which operation %v cannot join", up.Type, up.Op)
	case up.SrcOffset > n || up.SrcSize > n-up.SrcOffset:
		return true, fmt.Errorf("offset %d + %d bytes exceeds the source's %d bytes", up.SrcOffset, up.SrcSize, n)
	case row == 0 || up.SrcOffset%row != 0 || up.SrcSize%row != 0:
		return true, fmt.Errorf("offset %d + %d bytes are not whole rows of %d %v elements", up.SrcOffset, up.SrcSize, up.Cols, up.Type)
	}
	return true, nil
}

// check returns an error if an upload cannot be converted or does not fit its slot.
func (u *Upload) check(up *table.Upload) error {
	n, ok := up.DstSize()
	switch {
	case !ok && up.Op == table.UploadTile:
		return fmt.Errorf("%d bytes of %v are not rows of %d elements that can be tiled", up.SrcSize, up.Type, up.Cols)
	case !ok && up.Transposes():
		return fmt.Errorf("%d bytes of %v are not %d rows that can be transposed taking every %d-th column", up.SrcSize, up.Type, up.Cols, max(up.Step, 1))
	case !ok:
		return fmt.Errorf("%d bytes of %v cannot be converted to float32", up.SrcSize, up.Type)
	case toFloat(up.Op) && up.Type != dtype.F32 && up.Type != dtype.F16 && up.Type != dtype.BF16:
		return fmt.Errorf("type %v cannot be converted to float32", up.Type)
	case toFloat(up.Op) && up.DstOffset%4 != 0:
		return fmt.Errorf("float32 at offset %d is not aligned", up.DstOffset)
	case uint64(up.Slot) >= uint64(len(u.t.Slots)) || u.t.Slots[up.Slot].Scope != table.ScopeModel:
		return fmt.Errorf("slot %d does not have model scope", up.Slot)
	}
	if size := u.t.Slots[up.Slot].Size; up.DstOffset > size || n > size-up.DstOffset {
		return fmt.Errorf("offset %d + %d bytes exceeds the slot's %d bytes", up.DstOffset, n, size)
	}
	return nil
}

// toFloat reports whether an operation converts elements to float32.
func toFloat(op table.UploadOp) bool { return op == table.UploadToF32 || op == table.UploadPlusOne }

// InPlace calls use with each source that a slot could use in place. If use takes it, it is not
// converted.
func (u *Upload) InPlace(use func(up *table.Upload, src []byte) (taken bool, err error)) error {
	for i, stays := range u.t.InPlace() {
		if !stays || len(u.bytes[i]) == 0 {
			continue
		}
		taken, err := use(&u.t.Uploads[i], u.bytes[i])
		if err != nil {
			return u.placeAt(i, err)
		}
		if taken {
			u.done += uint64(len(u.bytes[i]))
			u.bytes[i] = nil
		}
	}
	return nil
}

// Cut cuts the uploads into pieces and reports the start of the upload. A piece of a tiled upload
// is a number of whole strips of rows. Cut returns the number of pieces and the size in its slot
// of the largest.
func (u *Upload) Cut() (count, largest int) {
	for i, src := range u.bytes {
		up := &u.t.Uploads[i]
		all, _ := up.DstSize() // checked by NewUpload
		if up.Transposes() {
			largest = max(largest, u.cutRows(up, src, all))
			continue
		}
		step := pieceBytes
		if up.Op == table.UploadTile || up.Op == table.UploadJoin {
			row, _ := up.Type.Bytes(uint64(up.Cols))
			strip := dtype.TileRows * int(row) * int(max(up.Step, 1))
			step = max(1, pieceBytes/strip) * strip
		}
		length := len(src)
		if u.joins[i] {
			length = int(up.SrcSize)
		}
		for at := 0; at < length; {
			end := min(at+step, length)
			from, to := scale(uint64(at), all, up.SrcSize), scale(uint64(end), all, up.SrcSize)
			p := Piece{Slot: up.Slot, Offset: up.DstOffset + from, Size: int(to - from), op: up.Op, t: up.Type, cols: int(up.Cols), length: end - at,
				step: int(max(up.Step, 1)), phase: int(up.Phase)}
			if u.joins[i] {
				p.tensor, p.from = up.Tensor, up.SrcOffset+uint64(at)
			} else {
				p.src = src[at:end]
			}
			u.pieces = append(u.pieces, p)
			largest = max(largest, p.Size)
			at = end
		}
	}
	u.report(0)
	return len(u.pieces), largest
}

// scale returns n*all/of for n up to of. The product may need more than 64 bits.
func scale(n, all, of uint64) uint64 {
	hi, lo := bits.Mul64(n, all)
	q, _ := bits.Div64(hi, lo, of)
	return q
}

// Next returns a piece that no other call has returned, or nil if there is none.
func (u *Upload) Next() *Piece {
	if i := u.next.Add(1) - 1; i < int64(len(u.pieces)) {
		return &u.pieces[i]
	}
	return nil
}

// Convert converts a piece to dst, which has the piece's size and is aligned to 4 bytes, and then
// releases the source. It returns a panic, such as a memory fault because the source's file has
// shrunk, as an error.
func (u *Upload) Convert(p *Piece, dst []byte) (err error) {
	// Turn a fault of mapped memory into a panic.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			err = u.place(&PanicError{v})
		}
	}()
	if p.tensor != "" {
		return u.convertJoined(p, dst)
	}
	if err := p.convert(dst); err != nil {
		return u.place(err)
	}
	// Several pieces read the source of a transposing upload, so it is not released.
	if r, ok := u.src.(replay.Releaser); ok && p.op != table.UploadConst && p.op != table.UploadTranspose && p.op != table.UploadHalf {
		r.Release(p.src)
	}
	return nil
}

// convertJoined converts a piece of a source that consists of several tensors.
func (u *Upload) convertJoined(p *Piece, dst []byte) error {
	rows := dst
	whole := p.op == table.UploadJoin && p.step == 1
	if !whole {
		rows = make([]byte, p.length)
	}
	err := u.src.(replay.Joiner).ReadJoined(p.tensor, p.from, rows) // joined has checked that it is a Joiner
	if err == nil && !whole {
		of := *p
		of.src = rows
		err = of.convert(dst)
	}
	if err != nil {
		return u.place(err)
	}
	return nil
}

func (p *Piece) convert(dst []byte) error {
	switch p.op {
	case table.UploadToF32:
		toF32(p.t, dst, p.src, p.step, p.phase)
	case table.UploadTranspose, table.UploadHalf:
		p.transpose(dst)
	case table.UploadPlusOne:
		toF32(p.t, dst, p.src, 0, 0)
		for i := range float32s(dst) {
			float32s(dst)[i]++
		}
	case table.UploadTile:
		row, _ := p.t.Bytes(uint64(p.cols))
		src := p.rows()
		return dtype.Tile(p.t, dst, src, len(src)/int(row), p.cols)
	default:
		copy(dst, p.rows())
	}
	return nil
}

// toF32 converts F16, BF16 or F32 elements to float32. A loop per type takes between a seventh
// and half of the time of dtype.Dequantize, which calls a function per element for these types.
func toF32(t dtype.Type, dst, src []byte, step, phase int) {
	x := float32s(dst)
	if step > 1 {
		_, elem := t.Block()
		src = everyNth(src, elem, step, phase)
	}
	switch t {
	case dtype.F16:
		for i := range x {
			x[i] = dtype.F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case dtype.BF16:
		for i := range x {
			x[i] = dtype.BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
		}
	default:
		copy(dst, src) // little-endian, like every device
	}
}

// Done reports that a piece has been stored in its slot.
func (u *Upload) Done(p *Piece) { u.report(uint64(p.length)) }

func (u *Upload) report(n uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.done += n
	if u.o.Progress != nil {
		u.o.Progress(u.done, u.total)
	}
}

// Cancelled returns the reason why the upload is to end, or nil.
func (u *Upload) Cancelled(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return u.place(err)
	}
	return nil
}

// Fill converts all pieces in parallel and stores them in the memory of the slots. It stops when
// ctx is done.
func (u *Upload) Fill(ctx context.Context, slot func(i uint32) []byte) error {
	count, _ := u.Cut()
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), count) {
		wg.Go(func() {
			for failed.Load() == nil && ctx.Err() == nil {
				p := u.Next()
				if p == nil {
					return
				}
				if err := u.Convert(p, slot(p.Slot)[p.Offset:][:p.Size:p.Size]); err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				u.Done(p)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return u.Cancelled(ctx)
}
