package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/device"
)

// staging is a pinned buffer that holds a converted piece until the GPU has copied it.
type staging struct {
	mem   []byte
	event driver.Event
	piece *device.Piece
	err   error // why it could not be filled
}

// spareBuffers is the largest number of buffers that the GPU copies or that wait for it while every
// converter fills one. Copying is faster than converting.
const spareBuffers = 4

// uploading is the state of a running upload.
type uploading struct {
	d    *Device
	u    *device.Upload
	free chan *staging // buffers to fill
	full chan *staging
	quit chan struct{}
}

// upload converts the pieces in parallel into pinned buffers. The calling goroutine copies filled
// buffers to the GPU, until ctx is done.
func (d *Device) upload(ctx context.Context, u *device.Upload) (err error) {
	pieces, largest := u.Cut()
	if pieces == 0 {
		return nil
	}
	own := owned{drv: d.drv}
	// A buffer must not be freed while the GPU uses it.
	defer func() {
		err = errors.Join(err, own.free())
	}()
	workers := min(runtime.GOMAXPROCS(0), pieces)
	buffers := min(2*workers, workers+spareBuffers, pieces)
	up := &uploading{d: d, u: u, free: make(chan *staging, buffers), full: make(chan *staging, buffers), quit: make(chan struct{})}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(up.convert)
	}
	// Pinning memory takes long. The first buffers are filled meanwhile.
	for range buffers {
		b := new(staging)
		if b.mem, err = own.pinned(largest); err == nil {
			b.event, err = own.event(false)
		}
		if err != nil {
			err = fmt.Errorf("cuda: staging: %w", err)
			break
		}
		up.free <- b
	}
	if err == nil {
		err = up.send(ctx, pieces)
	}
	close(up.quit)
	wg.Wait()
	if e := d.drv.StreamSynchronize(d.transfer); err == nil && e != nil {
		err = fmt.Errorf("cuda: load: %w", e)
	}
	return err
}

// convert fills buffers with pieces until there are none left, or quit is closed.
func (up *uploading) convert() {
	for {
		var b *staging
		select {
		case <-up.quit:
			return
		case b = <-up.free:
		}
		if b.piece = up.u.Next(); b.piece == nil {
			return
		}
		b.err = up.u.Convert(b.piece, b.mem[:b.piece.Size])
		up.full <- b // has room for all of them
	}
}

// send copies filled buffers to the GPU and returns free ones to the converters.
func (up *uploading) send(ctx context.Context, pieces int) error {
	drv, stream := up.d.drv, up.d.transfer
	var flying []*staging // in use by the GPU, in order
	for sent := 0; sent < pieces; {
		if err := up.u.Cancelled(ctx); err != nil {
			return err
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
		if b.err != nil {
			return b.err
		}
		if err := drv.MemcpyHtoDAsync(up.d.mem[b.piece.Slot]+driver.Ptr(b.piece.Offset), b.mem[:b.piece.Size], stream); err != nil {
			return fmt.Errorf("cuda: load: %w", err)
		}
		if err := drv.EventRecord(b.event, stream); err != nil {
			return fmt.Errorf("cuda: load: %w", err)
		}
		flying = append(flying, b)
		sent++
		up.u.Done(b.piece)
	}
	return nil
}
