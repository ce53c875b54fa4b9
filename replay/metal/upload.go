package metal

import (
	"unsafe"

	"github.com/pianola-engine/pianola/replay/device"
	"github.com/pianola-engine/pianola/replay/metal/driver"
	"github.com/pianola-engine/pianola/table"
)

// mapping is a source's pages that are a buffer.
type mapping struct {
	mem    []byte
	buffer driver.Buffer
}

// inPlace makes buffers of mapped files, for the slots that are a source's
// bytes as they are.
func (l *loader) inPlace(u *device.Upload, src table.Source) error {
	d := l.d
	d.weights = nil
	pager, ok := src.(table.Pager)
	if !ok {
		return nil
	}
	return u.InPlace(func(up *table.Upload, src []byte) (bool, error) {
		whole, ok := pager.Mapping(src)
		if !ok {
			return false, nil
		}
		m, offset, err := l.wrap(whole, src)
		if m == nil || err != nil {
			return false, err
		}
		d.model[up.Slot] = place{buffer: m.buffer, offset: offset}
		d.memory.Mapped += uint64(len(src))
		return true, nil
	})
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
