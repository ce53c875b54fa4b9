package cuda

import (
	"errors"
	"fmt"
	"math"
	"runtime"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/table"
)

// enter makes the context current on the calling goroutine's thread and locks the goroutine to it
// until leave.
func (d *Device) enter() error {
	runtime.LockOSThread()
	if err := d.drv.CtxPush(d.ctx); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("cuda: %w", err)
	}
	return nil
}

// leave undoes enter. If it fails, it joins its error to err.
func (d *Device) leave(err *error) {
	if e := d.drv.CtxPop(); e != nil {
		*err = errors.Join(*err, fmt.Errorf("cuda: %w", e))
	}
	runtime.UnlockOSThread()
}

// owned lists resources that must be freed, in order of creation. The context must be current
// when it is used.
type owned struct {
	drv   *driver.Driver
	frees []func() error
}

// free frees everything in reverse order. Errors of a lost device are ignored: its context frees
// everything.
func (o *owned) free() error {
	var errs []error
	for i := len(o.frees) - 1; i >= 0; i-- {
		if err := o.frees[i](); err != nil && !errors.Is(err, ErrDeviceLost) {
			errs = append(errs, fmt.Errorf("cuda: %w", err))
		}
	}
	o.frees = nil
	return errors.Join(errs...)
}

func (o *owned) add(free func() error) { o.frees = append(o.frees, free) }

// memory allocates n bytes of device memory, or none if n is 0.
func (o *owned) memory(n uint64) (driver.Ptr, error) {
	if n == 0 {
		return 0, nil
	}
	p, err := o.drv.MemAlloc(n)
	if err != nil {
		return 0, fmt.Errorf("%d bytes: %w", n, err)
	}
	o.add(func() error { return o.drv.MemFree(p) })
	return p, nil
}

// pinned allocates n bytes of host memory that the device copies from and to.
func (o *owned) pinned(n int) ([]byte, error) {
	b, err := o.drv.MemHostAlloc(n)
	if err != nil {
		return nil, fmt.Errorf("%d pinned bytes: %w", n, err)
	}
	o.add(func() error { return o.drv.MemFreeHost(b) })
	return b, nil
}

func (o *owned) stream() (driver.Stream, error) {
	s, err := o.drv.StreamCreate()
	if err == nil {
		o.add(func() error { return o.drv.StreamDestroy(s) })
	}
	return s, err
}

func (o *owned) event(timing bool) (driver.Event, error) {
	e, err := o.drv.EventCreate(timing)
	if err == nil {
		o.add(func() error { return o.drv.EventDestroy(e) })
	}
	return e, err
}

// align is the alignment of slots in their block.
const align = 256

// fixed reports whether a slot has the given scope and is not a cache that grows.
func (d *Device) fixed(t *table.Table, slot int, scope table.Scope) bool {
	return t.Slots[slot].Scope == scope && !d.caches.Has(slot)
}

// place assigns each fixed slot of a scope an offset in a block and returns the size of the
// block.
func (d *Device) place(t *table.Table, scope table.Scope, use func(slot int, at uint64)) (uint64, error) {
	var end uint64
	for i := range t.Slots {
		s := &t.Slots[i]
		if !d.fixed(t, i, scope) {
			continue
		}
		use(i, end)
		if s.Size > math.MaxInt64-align-end {
			return 0, fmt.Errorf("slot %s: size %d out of range", s.Name, s.Size)
		}
		end += (s.Size + align - 1) &^ (align - 1)
	}
	return end, nil
}

// slots allocates the fixed slots of a scope as one zeroed block and sets their addresses in mem.
// It returns the address and the size of the block.
func (d *Device) slots(o *owned, t *table.Table, scope table.Scope, mem []driver.Ptr) (base driver.Ptr, size uint64, err error) {
	size, err = d.place(t, scope, func(slot int, at uint64) { mem[slot] = driver.Ptr(at) })
	if err != nil {
		return 0, 0, fmt.Errorf("cuda: %w", err)
	}
	if base, err = d.zeroed(o, size); err != nil {
		return 0, 0, fmt.Errorf("cuda: slots of the %v: %w", scope, err)
	}
	for i := range t.Slots {
		if d.fixed(t, i, scope) {
			mem[i] += base
		}
	}
	return base, size, nil
}

// zeroed allocates n zeroed bytes of device memory.
func (d *Device) zeroed(o *owned, n uint64) (driver.Ptr, error) {
	base, err := o.memory(n)
	if err == nil && n > 0 {
		err = d.clear(base, n)
	}
	return base, err
}

// clear fills n bytes of device memory with zeros and waits.
func (d *Device) clear(base driver.Ptr, n uint64) error {
	if err := d.drv.MemsetD8Async(base, 0, n, d.transfer); err != nil {
		return err
	}
	return d.drv.StreamSynchronize(d.transfer)
}
