package cuda

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
	"github.com/pianola-engine/pianola/replay/cuda/driver"
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

	instances []*Instance // by command
	patch     *Instance
	assembled []*assembled
	bytes     [][]byte // sources, by upload
	total     uint64
}

// piece is a part of an upload: bytes of a source, and where they go.
type piece struct {
	op   table.UploadOp
	t    dtype.Type
	cols int // of a row, for UploadTile
	src  []byte
	dst  driver.Ptr
	size int // bytes there
}

func uploadError(i int, u *table.Upload, err error) error {
	return fmt.Errorf("cuda: upload %d (%s): %w", i, u.Tensor, err)
}

// sources finds the bytes of every upload and checks where they go.
func (l *loader) sources(ctx context.Context) error {
	l.bytes = make([][]byte, len(l.t.Uploads))
	for i := range l.t.Uploads {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("cuda: load: %w", err)
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

// pieces cuts the uploads: whole strips of rows where they are tiled.
func (l *loader) pieces() (pieces []piece, largest int) {
	for i, src := range l.bytes {
		u := &l.t.Uploads[i]
		all, _ := u.DstSize() // checked
		step := uploadPiece
		if u.Op == table.UploadTile {
			row, _ := u.Type.Bytes(uint64(u.Cols))
			strip := dtype.TileRows * int(row)
			step = max(1, uploadPiece/strip) * strip
		}
		dst := l.d.model[u.Slot] + driver.Ptr(u.DstOffset)
		for done := 0; done < len(src); done += step {
			n := min(step, len(src)-done)
			size := int(uint64(n) * all / u.SrcSize)
			at := uint64(done) * all / u.SrcSize
			pieces = append(pieces, piece{op: u.Op, t: u.Type, cols: int(u.Cols), src: src[done:][:n], dst: dst + driver.Ptr(at), size: size})
			largest = max(largest, size)
		}
	}
	return pieces, largest
}

// staging is a pinned buffer that holds a converted piece until the GPU has it.
type staging struct {
	mem   []byte
	event driver.Event
	piece *piece
}

// upload converts the pieces in parallel, into pinned buffers that the calling
// goroutine gives to the GPU as they are filled, until ctx is done.
func (l *loader) upload(ctx context.Context) (err error) {
	pieces, largest := l.pieces()
	if l.report(0); len(pieces) == 0 {
		return nil
	}
	own := owned{drv: l.d.drv}
	// While it is in use by the GPU, a buffer is not to be freed.
	defer func() {
		err = errors.Join(err, own.free())
	}()
	workers := min(runtime.GOMAXPROCS(0), len(pieces))
	buffers := min(2*workers, len(pieces))
	up := &uploading{l: l, pieces: pieces, free: make(chan *staging, buffers), full: make(chan *staging, buffers), quit: make(chan struct{})}
	for range buffers {
		b := new(staging)
		if b.mem, err = own.pinned(largest); err == nil {
			b.event, err = own.event(false)
		}
		if err != nil {
			return fmt.Errorf("cuda: staging: %w", err)
		}
		up.free <- b
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(up.convert)
	}
	err = up.send(ctx)
	close(up.quit)
	wg.Wait()
	if e := l.d.drv.StreamSynchronize(l.d.transfer); err == nil && e != nil {
		err = fmt.Errorf("cuda: load: %w", e)
	}
	return err
}

func (l *loader) report(done uint64) {
	if l.o.Progress != nil {
		l.o.Progress(done, l.total)
	}
}

// uploading is an upload section on its way.
type uploading struct {
	l      *loader
	pieces []piece
	next   atomic.Int64
	free   chan *staging // buffers to fill
	full   chan *staging // filled ones; a nil piece says why one is not
	quit   chan struct{}

	failed atomic.Pointer[error]
}

// convert fills buffers with pieces until there are none, or quit.
func (up *uploading) convert() {
	var b *staging
	defer func() {
		if v := recover(); v != nil {
			err := error(&PanicError{v})
			up.failed.CompareAndSwap(nil, &err)
			b.piece = nil
			up.full <- b
		}
	}()
	// A mapped file may shrink: a fault becomes a panic.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for {
		select {
		case <-up.quit:
			return
		case b = <-up.free:
		}
		i := int(up.next.Add(1)) - 1
		if i >= len(up.pieces) {
			return
		}
		b.piece = &up.pieces[i]
		if err := b.piece.convert(b.mem[:b.piece.size]); err != nil {
			up.failed.CompareAndSwap(nil, &err)
			b.piece = nil
		} else if r, ok := up.l.src.(table.Releaser); ok && b.piece.op != table.UploadConst {
			r.Release(b.piece.src)
		}
		up.full <- b // has room for all of them
	}
}

// send gives filled buffers to the GPU, and free ones back to the converters.
func (up *uploading) send(ctx context.Context) error {
	drv, stream := up.l.d.drv, up.l.d.transfer
	var flying []*staging // with the GPU, in order
	var done uint64
	for sent := 0; sent < len(up.pieces); {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("cuda: load: %w", err)
		}
		var b *staging
		select {
		case b = <-up.full:
		default:
			if len(flying) > 0 {
				oldest := flying[0]
				if err := drv.EventSynchronize(oldest.event); err != nil {
					return fmt.Errorf("cuda: load: %w", err)
				}
				flying = flying[1:]
				up.free <- oldest
				continue
			}
			select {
			case b = <-up.full:
			case <-ctx.Done():
				continue
			}
		}
		if b.piece == nil {
			return fmt.Errorf("cuda: load: %w", *up.failed.Load())
		}
		if err := drv.MemcpyHtoDAsync(b.piece.dst, b.mem[:b.piece.size], stream); err != nil {
			return fmt.Errorf("cuda: load: %w", err)
		}
		if err := drv.EventRecord(b.event, stream); err != nil {
			return fmt.Errorf("cuda: load: %w", err)
		}
		flying = append(flying, b)
		sent++
		done += uint64(len(b.piece.src))
		up.l.report(done)
	}
	return nil
}

// convert writes the piece as the slot has it to dst.
func (p *piece) convert(dst []byte) error {
	switch p.op {
	case table.UploadToF32:
		return dtype.Dequantize(p.t, float32s(dst), p.src)
	case table.UploadTile:
		row, _ := p.t.Bytes(uint64(p.cols))
		return dtype.Tile(p.t, dst, p.src, len(p.src)/int(row), p.cols)
	default:
		copy(dst, p.src)
		return nil
	}
}

// float32s returns pinned bytes, which are aligned, as float32.
func float32s(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
