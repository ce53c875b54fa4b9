package cpu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/pianola-engine/pianola/dtype"
	"github.com/pianola-engine/pianola/table"
)

// uploadPiece is about how many source bytes are converted at a time, between
// two looks at the context. It is a multiple of every element's size.
const uploadPiece = 4 << 20

// loader executes a table's upload section.
type loader struct {
	t   *table.Table
	src table.Source
	o   table.LoadOptions

	mem            [][]byte // by slot
	copied, mapped uint64   // bytes
}

// piece is a part of an upload: bytes of a source and where they go.
type piece struct {
	op       table.UploadOp
	t        dtype.Type
	cols     int // of a row, for UploadTile
	src, dst []byte
}

// run gives every slot of model scope its memory and its bytes.
func (l *loader) run(ctx context.Context) error {
	t := l.t
	l.mem = make([][]byte, len(t.Slots))
	mayStay := t.InPlace()
	sources := make([][]byte, len(t.Uploads))
	var total, inPlace uint64
	for i := range t.Uploads {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("cpu: load: %w", err)
		}
		u := &t.Uploads[i]
		src, err := l.source(u)
		if err != nil {
			return uploadError(i, u, err)
		}
		total += u.SrcSize
		if mayStay[i] && l.usable(u, src) {
			l.mem[u.Slot] = src
			l.mapped += uint64(len(src))
			inPlace += u.SrcSize
			continue
		}
		sources[i] = src
	}
	if err := l.allocate(); err != nil {
		return err
	}
	var pieces []piece
	for i, src := range sources {
		if src == nil {
			continue
		}
		u := &t.Uploads[i]
		dst, err := l.destination(u)
		if err != nil {
			return uploadError(i, u, err)
		}
		pieces = cut(pieces, u, src, dst)
	}
	return l.execute(ctx, pieces, inPlace, total)
}

func uploadError(i int, u *table.Upload, err error) error {
	return fmt.Errorf("cpu: upload %d (%s): %w", i, u.Tensor, err)
}

// source returns an upload's source bytes, checked against what is there.
func (l *loader) source(u *table.Upload) ([]byte, error) {
	src := l.t.Const
	if u.Op != table.UploadConst {
		if l.src == nil {
			return nil, errors.New("there is no source")
		}
		var err error
		if src, err = l.src.Tensor(u.Tensor); err != nil {
			return nil, err
		}
	}
	n := uint64(len(src))
	if u.SrcOffset > n || u.SrcSize > n-u.SrcOffset {
		return nil, fmt.Errorf("offset %d + %d bytes is past the source's %d", u.SrcOffset, u.SrcSize, n)
	}
	return src[u.SrcOffset:][:u.SrcSize:u.SrcSize], nil
}

// usable reports whether kernels can use a source's bytes where they are.
func (l *loader) usable(u *table.Upload, src []byte) bool {
	s := &l.t.Slots[u.Slot]
	var unit uintptr = 1
	switch u.Type {
	case dtype.F32:
		unit = 4
	case dtype.F16, dtype.BF16:
		unit = 2
	}
	return s.Kind == table.SlotWeight && aligned(src, unit)
}

// destination returns the bytes of the slot that an upload writes.
func (l *loader) destination(u *table.Upload) ([]byte, error) {
	n, ok := u.DstSize()
	if !ok {
		return nil, fmt.Errorf("%d bytes of %v do not convert to float32", u.SrcSize, u.Type)
	}
	if u.Op == table.UploadToF32 && u.Type != dtype.F32 && u.Type != dtype.F16 && u.Type != dtype.BF16 {
		return nil, fmt.Errorf("type %v does not convert to float32", u.Type)
	}
	if u.Op == table.UploadToF32 && u.DstOffset%4 != 0 {
		return nil, fmt.Errorf("float32 at offset %d is not aligned", u.DstOffset)
	}
	mem := l.mem[u.Slot]
	if u.DstOffset > uint64(len(mem)) || n > uint64(len(mem))-u.DstOffset {
		return nil, fmt.Errorf("offset %d + %d bytes is past the slot's %d", u.DstOffset, n, len(mem))
	}
	return mem[u.DstOffset:][:n], nil
}

// allocate gives the slots of model scope that have no memory yet some of one
// block, so that they share huge pages.
func (l *loader) allocate() error {
	place := func(use func(slot int, at, size uint64)) (end uint64) {
		for i := range l.t.Slots {
			s := &l.t.Slots[i]
			if s.Scope != table.ScopeModel || l.mem[i] != nil {
				continue
			}
			use(i, end, s.Size)
			next := end + (s.Size+align-1)&^(align-1)
			if next < end {
				return math.MaxUint64
			}
			end = next
		}
		return end
	}
	size := place(func(int, uint64, uint64) {})
	block, err := allocate(size)
	if err != nil {
		return fmt.Errorf("cpu: weights: %w", err)
	}
	preferHuge(block)
	place(func(slot int, at, size uint64) {
		l.mem[slot] = block[at:][:size:size]
		l.copied += size
	})
	return nil
}

// cut appends an upload's pieces: whole strips of rows where they are tiled.
func cut(pieces []piece, u *table.Upload, src, dst []byte) []piece {
	size := uploadPiece
	if u.Op == table.UploadTile {
		row, _ := u.Type.Bytes(uint64(u.Cols)) // DstSize was checked
		strip := dtype.TileRows * int(row)
		size = max(1, uploadPiece/strip) * strip
	}
	for len(src) > 0 {
		n := min(size, len(src))
		m := int(uint64(n) * uint64(len(dst)) / uint64(len(src)))
		pieces = append(pieces, piece{op: u.Op, t: u.Type, cols: int(u.Cols), src: src[:n], dst: dst[:m]})
		src, dst = src[n:], dst[m:]
	}
	return pieces
}

// execute converts the pieces in parallel, until the context is done.
func (l *loader) execute(ctx context.Context, pieces []piece, done, total uint64) (err error) {
	var (
		next   atomic.Int64
		wg     sync.WaitGroup
		mu     sync.Mutex // progress and err
		failed error
	)
	report := func(n uint64) {
		mu.Lock()
		defer mu.Unlock()
		done += n
		if l.o.Progress != nil {
			l.o.Progress(done, total)
		}
	}
	report(0)
	for range min(runtime.GOMAXPROCS(0), len(pieces)) {
		wg.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					mu.Lock()
					failed = &PanicError{v}
					mu.Unlock()
				}
			}()
			// As in a worker: a mapped file may shrink.
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(pieces) {
					return
				}
				if err := pieces[i].convert(); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
				if r, ok := l.src.(table.Releaser); ok && pieces[i].op != table.UploadConst {
					r.Release(pieces[i].src)
				}
				report(uint64(len(pieces[i].src)))
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return fmt.Errorf("cpu: load: %w", failed)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cpu: load: %w", err)
	}
	return nil
}

func (p *piece) convert() error {
	switch p.op {
	case table.UploadToF32:
	case table.UploadTile:
		row, _ := p.t.Bytes(uint64(p.cols))
		return dtype.Tile(p.t, p.dst, p.src, len(p.src)/int(row), p.cols)
	default:
		copy(p.dst, p.src)
		return nil
	}
	dst := float32s(p.dst)
	switch p.t {
	case dtype.F16:
		f16ToF32(dst, p.src)
	case dtype.BF16:
		decodeBF16(dst, p.src)
	case dtype.F32:
		decodeF32(dst, p.src)
	}
	return nil
}
