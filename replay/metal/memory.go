package metal

import (
	"fmt"
	"unsafe"

	"github.com/pianola-engine/pianola/replay/metal/driver"
	"github.com/pianola-engine/pianola/table"
)

// owned is what must be given back, in the order in which it came to be.
type owned struct {
	drv     driver.Device
	objects []driver.Object
	memory  []unsafe.Pointer

	giveBack []func() // what others use too
}

// free gives everything back, the last first.
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

// buffer makes a zeroed buffer; none for 0 bytes.
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

// array returns memory of C for n values.
func array[T any](o *owned, n int) ([]T, error) {
	s, err := driver.Slice[T](o.drv, n)
	if err == nil {
		o.memory = append(o.memory, unsafe.Pointer(unsafe.SliceData(s)))
	}
	return s, err
}

// place is where a slot is: bytes of a buffer.
type place struct {
	buffer driver.Buffer
	offset uint64
	mem    []byte
}

// align is what slots begin at in their buffer.
const align = 256

// largestBuffer bounds buffers, beside what the GPU says: offsets in one stay
// below it.
const largestBuffer = 4 << 30

// slots allocates the slots of a scope that have no place yet, several in a
// buffer, and returns the buffers and their bytes. A slot is never cut.
func (d *Device) slots(o *owned, t *table.Table, scope table.Scope, at []place) (buffers []driver.Buffer, size uint64, err error) {
	limit := min(d.properties.MaxBuffer, largestBuffer)
	var in []int // slots of the next buffer
	var end uint64
	flush := func() error {
		b, mem, err := o.buffer(end)
		if err != nil || b == 0 {
			in, end = nil, 0
			return err
		}
		buffers, size = append(buffers, b), size+end
		for _, i := range in {
			at[i].buffer = b
			at[i].mem = mem[at[i].offset:][:t.Slots[i].Size:t.Slots[i].Size]
		}
		in, end = nil, 0
		return nil
	}
	for i := range t.Slots {
		s := &t.Slots[i]
		if s.Scope != scope || at[i].buffer != 0 {
			continue
		}
		n := (s.Size + align - 1) &^ (align - 1)
		if s.Size > limit || n > limit {
			return nil, 0, fmt.Errorf("metal: slots of the %v: slot %s: %d bytes are more than a buffer's %d", scope, s.Name, s.Size, limit)
		}
		if end+n > limit {
			if err := flush(); err != nil {
				return nil, 0, fmt.Errorf("metal: slots of the %v: %w", scope, err)
			}
		}
		at[i].offset = end
		in, end = append(in, i), end+n
	}
	if err := flush(); err != nil {
		return nil, 0, fmt.Errorf("metal: slots of the %v: %w", scope, err)
	}
	return buffers, size, nil
}
