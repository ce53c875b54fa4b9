package weights

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
)

// ErrClosed reports that a Mapped has been closed.
var ErrClosed = errors.New("weights: closed")

// Mapped is a Directory with the mapped bytes of its files, which are read-only. It may be
// used from several goroutines.
//
// The files must not change while they are mapped. Reading beyond the new end of a truncated
// file is a memory fault (SIGBUS), for which Go ends the process. This cannot be prevented,
// but truncation is detected while a model loads: Map checks sizes, and Touch returns a fault
// as an error. If another file is renamed over a mapped one, the mapping keeps the old
// content. Windows does not allow truncating a mapped file.
type Mapped struct {
	dir *Directory

	mu    sync.RWMutex // held for reading while files are used
	files []mapping    // nil once the Mapped is closed
}

// mapping is a file mapped into memory.
type mapping struct {
	data  []byte
	unmap func() error
}

// Map maps the files of the directory into memory, read-only. On systems that cannot map
// files, Map reads them. It fails if the size or modification time of a file has changed since
// its header was read.
func (d *Directory) Map() (*Mapped, error) {
	m := &Mapped{dir: d, files: make([]mapping, 0, len(d.files))}
	for i := range d.files {
		file, err := d.mapFile(i)
		if err != nil {
			m.Close()
			return nil, err
		}
		m.files = append(m.files, file)
	}
	return m, nil
}

func (d *Directory) mapFile(i int) (mapping, error) {
	path, size := d.files[i].Path, d.files[i].Size
	f, info, err := openRegular(path)
	if err != nil {
		return mapping{}, err
	}
	defer f.Close()
	if uint64(info.Size()) != size || !info.ModTime().Equal(d.changed[i]) {
		return mapping{}, fmt.Errorf("weights: %s: has changed since its header was read (%d bytes, was %d)", path, info.Size(), size)
	}
	if strconv.IntSize < 64 && size>>31 != 0 {
		return mapping{}, fmt.Errorf("weights: %s: the file of %s does not fit in the address space", path, formatBytes(size))
	}
	file, err := mapWhole(f, int(size))
	if err != nil {
		return mapping{}, fmt.Errorf("weights: %s: map: %w", path, err)
	}
	return file, nil
}

// Directory returns the directory that was mapped.
func (m *Mapped) Directory() *Directory { return m.dir }

// Release tells the system that the bytes b will not be read soon. b must be a slice of the
// bytes that Tensor returned. On systems that support it, the memory of the whole pages in b
// can then be used for other purposes.
func (m *Mapped) Release(b []byte) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.letGo(b)
}

// letGo implements Release for callers that hold the lock.
func (m *Mapped) letGo(b []byte) {
	page := uint64(os.Getpagesize())
	for _, f := range m.files {
		at, ok := offsetIn(f.data, b)
		if !ok {
			continue
		}
		start, end := (at+page-1)&^(page-1), (at+uint64(len(b)))&^(page-1)
		if start < end {
			release(f.data[start:end])
		}
		return
	}
}

// Mapping returns the memory mapping of the file that contains b, including the whole last
// page. b must be a slice of the bytes that Tensor returned.
func (m *Mapped) Mapping(b []byte) (whole []byte, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, f := range m.files {
		if _, ok := offsetIn(f.data, b); ok {
			return f.data, true
		}
	}
	return nil, false
}

// Tensor returns the bytes of a tensor in the layout of its element type. The caller must not
// modify them or use them after Close. The error is [ErrClosed], or names a tensor that does
// not exist.
func (m *Mapped) Tensor(name string) ([]byte, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.files == nil {
		return nil, ErrClosed
	}
	t, ok := m.dir.Tensor(name)
	if !ok {
		return nil, fmt.Errorf("weights: %s: no tensor %s", m.dir.path, printable(name))
	}
	if m.dir.joined[name] != nil {
		return nil, fmt.Errorf("weights: %s: tensor %s consists of several tensors: read it with ReadJoined", m.dir.path, printable(name))
	}
	end := t.Offset + t.Size
	return m.files[t.File].data[t.Offset:end:end], nil
}

// Close waits for a running Touch and unmaps the files. Further calls have no effect.
func (m *Mapped) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for i, file := range m.files {
		if err := file.unmap(); err != nil {
			errs = append(errs, fmt.Errorf("weights: %s: unmap: %w", m.dir.files[i].Path, err))
		}
	}
	m.files = nil
	return errors.Join(errs...)
}
