package metal

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/pianola-engine/pianola/dtype"
	"github.com/pianola-engine/pianola/replay/metal/driver"
	"github.com/pianola-engine/pianola/table"
)

// uploadPiece is about how many source bytes are converted at a time, between
// two looks at the context. It is a multiple of every element's size.
const uploadPiece = 4 << 20

// loader brings a table to the GPU.
type loader struct {
	d   *Device
	t   *table.Table
	src table.Source
	o   table.LoadOptions

	bytes  [][]byte // sources, by upload; nil: used where they are
	total  uint64
	mapped []mapping
}

// mapping is a source's pages that are a buffer.
type mapping struct {
	mem    []byte
	buffer driver.Buffer
}

// piece is a part of an upload: bytes of a source, and where they go.
type piece struct {
	op   table.UploadOp
	t    dtype.Type
	cols int // of a row, for UploadTile
	src  []byte
	dst  []byte
}

func uploadError(i int, u *table.Upload, err error) error {
	return fmt.Errorf("metal: upload %d (%s): %w", i, u.Tensor, err)
}

// sources finds the bytes of every upload and checks where they go.
func (l *loader) sources(ctx context.Context) error {
	l.bytes = make([][]byte, len(l.t.Uploads))
	for i := range l.t.Uploads {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("metal: load: %w", err)
		}
		u := &l.t.Uploads[i]
		src, err := l.source(u)
		if err == nil {
			err = l.check(u)
		}
		if err != nil {
			return uploadError(i, u, err)
		}
		l.bytes[i] = src
		l.total += u.SrcSize
	}
	return nil
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

// check returns why an upload cannot be converted, or does not fit its slot.
func (l *loader) check(u *table.Upload) error {
	n, ok := u.DstSize()
	if !ok {
		return fmt.Errorf("%d bytes of %v do not convert to float32", u.SrcSize, u.Type)
	}
	if u.Op == table.UploadToF32 && u.Type != dtype.F32 && u.Type != dtype.F16 && u.Type != dtype.BF16 {
		return fmt.Errorf("type %v does not convert to float32", u.Type)
	}
	if u.Op == table.UploadToF32 && u.DstOffset%4 != 0 {
		return fmt.Errorf("float32 at offset %d is not aligned", u.DstOffset)
	}
	if uint64(u.Slot) >= uint64(len(l.t.Slots)) || l.t.Slots[u.Slot].Scope != table.ScopeModel {
		return fmt.Errorf("slot %d is not one of the model", u.Slot)
	}
	if size := l.t.Slots[u.Slot].Size; u.DstOffset > size || n > size-u.DstOffset {
		return fmt.Errorf("offset %d + %d bytes is past the slot's %d", u.DstOffset, n, size)
	}
	return nil
}

// inPlace makes buffers of mapped files, for the slots that are a source's
// bytes as they are.
func (l *loader) inPlace() error {
	d := l.d
	d.weights = nil
	pager, ok := l.src.(table.Pager)
	if !ok {
		return nil
	}
	for i, stays := range l.t.InPlace() {
		src := l.bytes[i]
		if !stays || len(src) == 0 {
			continue
		}
		whole, ok := pager.Mapping(src)
		if !ok {
			continue
		}
		m, offset, err := l.wrap(whole, src)
		if err != nil {
			u := &l.t.Uploads[i]
			return uploadError(i, u, err)
		}
		if m == nil {
			continue
		}
		slot := l.t.Uploads[i].Slot
		d.model[slot] = place{buffer: m.buffer, offset: offset}
		d.memory.Mapped += uint64(len(src))
		l.bytes[i] = nil
		l.total -= uint64(len(src))
	}
	return nil
}

// wrap returns a buffer that has src in it, and where: of the whole mapping, or
// of src's own pages if that is too large for a buffer. It returns nil where the
// GPU cannot use src in its place.
func (l *loader) wrap(whole, src []byte) (*mapping, uint64, error) {
	d := l.d
	page := uintptr(d.properties.Page)
	base, at := addressOf(whole), addressOf(src)
	if page == 0 || base%page != 0 || at < base || at+uintptr(len(src)) > base+uintptr(len(whole)) {
		return nil, 0, nil
	}
	if a := uintptr(d.o.Kernels.BindingAlign); a > 0 && at%a != 0 {
		return nil, 0, nil
	}
	from, to := base, base+uintptr(len(whole))
	limit := uintptr(min(d.properties.MaxBuffer, largestBuffer))
	if to-from > limit-page {
		from, to = at&^(page-1), at+uintptr(len(src))
	}
	to = (to + page - 1) &^ (page - 1) // the last page is there in whole
	if to-from > limit {
		return nil, 0, nil
	}
	for i := range l.mapped {
		if m := &l.mapped[i]; addressOf(m.mem) == from && len(m.mem) == int(to-from) {
			return m, uint64(at - from), nil
		}
	}
	mem := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(whole)), from-base)), to-from)
	b, err := d.drv.Wrap(mem)
	if err != nil {
		return nil, 0, err
	}
	d.own.add(b)
	d.weights = append(d.weights, b)
	l.mapped = append(l.mapped, mapping{mem, b})
	return &l.mapped[len(l.mapped)-1], uint64(at - from), nil
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// pieces cuts the uploads: whole strips of rows where they are tiled.
func (l *loader) pieces() (pieces []piece) {
	for i, src := range l.bytes {
		u := &l.t.Uploads[i]
		all, _ := u.DstSize() // checked
		step := uploadPiece
		if u.Op == table.UploadTile {
			row, _ := u.Type.Bytes(uint64(u.Cols))
			strip := dtype.TileRows * int(row)
			step = max(1, uploadPiece/strip) * strip
		}
		dst := l.d.model[u.Slot].mem
		for done := 0; done < len(src); done += step {
			n := min(step, len(src)-done)
			size := uint64(n) * all / u.SrcSize
			at := u.DstOffset + uint64(done)*all/u.SrcSize
			pieces = append(pieces, piece{op: u.Op, t: u.Type, cols: int(u.Cols), src: src[done:][:n], dst: dst[at:][:size:size]})
		}
	}
	return pieces
}

// upload converts the pieces in parallel, into the buffers, until ctx is done.
func (l *loader) upload(ctx context.Context) error {
	pieces := l.pieces()
	up := &uploading{l: l, ctx: ctx, pieces: pieces}
	l.report(0)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(pieces)) {
		wg.Go(up.convert)
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("metal: load: %w", err)
	}
	if err := up.failed.Load(); err != nil {
		return fmt.Errorf("metal: load: %w", *err)
	}
	return nil
}

func (l *loader) report(done uint64) {
	if l.o.Progress != nil {
		l.o.Progress(done, l.total)
	}
}

// uploading is an upload section on its way.
type uploading struct {
	l      *loader
	ctx    context.Context
	pieces []piece
	next   atomic.Int64
	failed atomic.Pointer[error]

	mu   sync.Mutex // guards done, and reports
	done uint64
}

// convert converts pieces until there are none, or one has failed.
func (up *uploading) convert() {
	defer func() {
		if v := recover(); v != nil {
			err := error(&PanicError{v})
			up.failed.CompareAndSwap(nil, &err)
		}
	}()
	// A mapped file may shrink: a fault becomes a panic.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for up.failed.Load() == nil && up.ctx.Err() == nil {
		i := int(up.next.Add(1)) - 1
		if i >= len(up.pieces) {
			return
		}
		p := &up.pieces[i]
		if err := p.convert(); err != nil {
			up.failed.CompareAndSwap(nil, &err)
			return
		}
		if r, ok := up.l.src.(table.Releaser); ok && p.op != table.UploadConst {
			r.Release(p.src)
		}
		up.mu.Lock()
		up.done += uint64(len(p.src))
		up.l.report(up.done)
		up.mu.Unlock()
	}
}

// convert writes the piece as the slot has it.
func (p *piece) convert() error {
	switch p.op {
	case table.UploadToF32:
		return dtype.Dequantize(p.t, float32s(p.dst), p.src)
	case table.UploadTile:
		row, _ := p.t.Bytes(uint64(p.cols))
		return dtype.Tile(p.t, p.dst, p.src, len(p.src)/int(row), p.cols)
	default:
		copy(p.dst, p.src)
		return nil
	}
}

// float32s returns a buffer's bytes, which are aligned, as float32.
func float32s(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
