package metal

import (
	"unsafe"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// mapping is a mapped file with the tensors that are used in place.
type mapping struct {
	mem     []byte
	tensors []span
	windows []span
	at      []int           // window of each tensor; -1: none
	buffers []driver.Buffer // buffers of the windows, created when they are needed
	next    int             // index of the next tensor
}

// inPlace creates buffers of mapped files for the slots whose content is a source's bytes
// unchanged.
func (l *loader) inPlace(u *device.Upload, src replay.Source) error {
	d := l.d
	d.weights = nil
	pager, ok := src.(replay.Pager)
	if !ok {
		return nil
	}
	// InPlace visits the same tensors twice in the same order. In between, the mappings are cut
	// into windows.
	files := map[uintptr]*mapping{}
	err := u.InPlace(func(_ *table.Upload, src []byte) (bool, error) {
		if whole, ok := d.usable(pager, src); ok {
			m := files[addressOf(whole)]
			if m == nil {
				m = &mapping{mem: whole}
				files[addressOf(whole)] = m
			}
			first := uint64(addressOf(src) - addressOf(whole))
			m.tensors = append(m.tensors, span{first, first + uint64(len(src))})
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	for _, m := range files {
		m.windows, m.at = windows(m.tensors, uint64(d.properties.Page), min(d.properties.MaxBuffer, largestBuffer))
		m.buffers = make([]driver.Buffer, len(m.windows))
	}
	return u.InPlace(func(up *table.Upload, src []byte) (bool, error) {
		whole, ok := d.usable(pager, src)
		if !ok {
			return false, nil
		}
		m := files[addressOf(whole)]
		tensor, at := m.tensors[m.next], m.at[m.next]
		m.next++
		if at < 0 {
			return false, nil
		}
		b, err := l.wrap(m, at)
		if err != nil {
			return false, err
		}
		d.model[up.Slot] = place{buffer: b, offset: tensor.first - m.windows[at].first, mem: src}
		d.memory.Mapped += uint64(len(src))
		return true, nil
	})
}

// usable returns the mapping that contains src, if the GPU can use src there.
func (d *Device) usable(pager replay.Pager, src []byte) (whole []byte, ok bool) {
	if whole, ok = pager.Mapping(src); !ok {
		return nil, false
	}
	page, base, at := uintptr(d.properties.Page), addressOf(whole), addressOf(src)
	if page == 0 || base%page != 0 || at < base || at+uintptr(len(src)) > base+uintptr(len(whole)) {
		return nil, false
	}
	a := uintptr(d.o.Kernels.BindingAlign)
	return whole, a == 0 || at%a == 0
}

// wrap returns the buffer of a window. The mapping contains the whole last page, even if the file
// ends within it.
func (l *loader) wrap(m *mapping, window int) (driver.Buffer, error) {
	if b := m.buffers[window]; b != 0 {
		return b, nil
	}
	w := m.windows[window]
	b, err := l.d.drv.Wrap(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(m.mem)), w.first)), w.end-w.first))
	if err != nil {
		return 0, err
	}
	l.d.own.add(b)
	l.d.weights = append(l.d.weights, b)
	m.buffers[window] = b
	return b, nil
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
