package metal

import (
	"fmt"
	"unsafe"

	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/table"
)

// owned lists resources that must be released, in order of creation.
type owned struct {
	drv     driver.Device
	objects []driver.Object
	memory  []unsafe.Pointer

	giveBack []func() // functions that release shared resources
}

// free releases everything in reverse order.
func (o *owned) free() {
	for i := len(o.objects) - 1; i >= 0; i-- {
		o.drv.Release(o.objects[i])
	}
	for _, p := range o.memory {
		o.drv.Free(p)
	}
	for _, f := range o.giveBack {
		f()
	}
	o.objects, o.memory, o.giveBack = nil, nil, nil
}

func (o *owned) add(x driver.Object) { o.objects = append(o.objects, x) }

// buffer creates a zeroed buffer, or none for 0 bytes.
func (o *owned) buffer(n uint64) (driver.Buffer, []byte, error) {
	if n == 0 {
		return 0, nil, nil
	}
	b, mem, err := o.drv.Buffer(n)
	if err != nil {
		return 0, nil, fmt.Errorf("%d bytes: %w", n, err)
	}
	o.add(b)
	return b, mem, nil
}

func (o *owned) label(text string) (driver.Label, error) {
	l, err := o.drv.Label(text)
	if err == nil {
		o.add(l)
	}
	return l, err
}

// array returns C memory for n values.
func array[T any](o *owned, n int) ([]T, error) {
	s, err := driver.Slice[T](o.drv, n)
	if err == nil {
		o.memory = append(o.memory, unsafe.Pointer(unsafe.SliceData(s)))
	}
	return s, err
}

// place is the place of a slot: a range of a buffer.
type place struct {
	buffer driver.Buffer
	offset uint64
	mem    []byte
}

// align is the alignment of slots in their buffer.
const align = 256

// largestBuffer bounds the size of buffers in addition to the GPU's limit, so that offsets stay
// below it.
const largestBuffer = 4 << 30

// slots allocates the fixed slots of a scope that have no place yet, and returns the buffers and
// their size.
func (d *Device) slots(o *owned, t *table.Table, scope table.Scope, at []place) (buffers []driver.Buffer, size uint64, err error) {
	var parts []part
	for i := range t.Slots {
		if t.Slots[i].Scope == scope && at[i].buffer == 0 && !d.caches.Has(i) {
			parts = append(parts, part{i, t.Slots[i].Size})
		}
	}
	buffers, size, err = d.fit(o, t, parts, at)
	if err != nil {
		return nil, 0, fmt.Errorf("metal: slots of the %v: %w", scope, err)
	}
	return buffers, size, nil
}

// part is a slot and the size to allocate for it.
type part struct {
	slot int
	size uint64
}

// room returns the size of a slot in a buffer.
func room(t *table.Table, p part, limit uint64) (uint64, error) {
	n := (p.size + align - 1) &^ (align - 1)
	if p.size > limit || n > limit {
		return 0, fmt.Errorf("slot %s: %d bytes exceed a buffer's %d", t.Slots[p.slot].Name, p.size, limit)
	}
	return n, nil
}

// fit allocates slots, several per buffer, and returns the buffers and their size. It never
// divides a slot.
func (d *Device) fit(o *owned, t *table.Table, parts []part, at []place) (buffers []driver.Buffer, size uint64, err error) {
	limit := min(d.properties.MaxBuffer, largestBuffer)
	var in []part // of the next buffer
	var end uint64
	flush := func() error {
		b, mem, err := o.buffer(end)
		if err != nil || b == 0 {
			in, end = nil, 0
			return err
		}
		buffers, size = append(buffers, b), size+end
		for _, p := range in {
			to := &at[p.slot]
			to.buffer, to.mem = b, mem[to.offset:][:p.size:p.size]
		}
		in, end = nil, 0
		return nil
	}
	for _, p := range parts {
		n, err := room(t, p, limit)
		if err != nil {
			return nil, 0, err
		}
		if end+n > limit {
			if err := flush(); err != nil {
				return nil, 0, err
			}
		}
		at[p.slot].offset = end
		in, end = append(in, p), end+n
	}
	return buffers, size, flush()
}
