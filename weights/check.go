package weights

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// NotFinite describes a tensor that contains NaN or infinities.
type NotFinite struct {
	Tensor, Type string
	Count        uint64 // number of elements, or of blocks whose scales are not finite
	First        uint64 // index of the first such element or block
}

// NotFiniteError reports the tensors of a model that contain NaN or infinities.
type NotFiniteError struct {
	Path    string
	Tensors []NotFinite // ordered by file and offset
}

// Error implements error.
func (e *NotFiniteError) Error() string {
	var parts []string
	for i, t := range e.Tensors {
		if i == 8 {
			parts = append(parts, fmt.Sprintf("and %d more tensors", len(e.Tensors)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("%s (%s): %d, the first at element %d", printable(t.Tensor), t.Type, t.Count, t.First))
	}
	return fmt.Sprintf("weights: %s: NaN or infinite elements: %s", e.Path, strings.Join(parts, ", "))
}

// Check reads every tensor of the files and returns those that contain NaN or infinities, in
// elements or scales. It skips tensors of unsupported types. workers is the number of
// goroutines; below 1 means one per processor. progress, if not nil, is called after every few
// megabytes with the bytes read and the total; calls do not overlap. If ctx is done, Check
// returns its cause.
func (m *Mapped) Check(ctx context.Context, workers int, progress func(done, total uint64)) ([]NotFinite, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.files == nil {
		return nil, ErrClosed
	}
	if workers < 1 {
		workers = runtime.GOMAXPROCS(0)
	}
	c := &check{m: m, progress: progress, found: map[int]*NotFinite{}}
	for i, t := range m.dir.raw {
		_, size := t.Type.Block()
		if size = max(size, 1); t.TypeName != e4m3Name && !t.Type.Valid() {
			continue
		}
		step := uint64(touchStep / size * size)
		for at := uint64(0); at < t.Size; at += step {
			c.pieces = append(c.pieces, checkPiece{i, at, min(at+step, t.Size)})
		}
		c.total += t.Size
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for range min(workers, len(c.pieces)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(c.next.Add(1)) - 1
				if i >= len(c.pieces) {
					return
				}
				if err := c.read(c.pieces[i]); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	var list []NotFinite
	for _, f := range c.found {
		list = append(list, *f)
	}
	slices.SortFunc(list, func(a, b NotFinite) int { return cmp.Compare(m.dir.order(a.Tensor), m.dir.order(b.Tensor)) })
	return list, nil
}

// e4m3Name is the name of E4M3 in safetensors files.
const e4m3Name = "F8_E4M3"

// order returns the position of a tensor in the list ordered by file and offset.
func (d *Directory) order(name string) int {
	return slices.IndexFunc(d.raw, func(t Tensor) bool { return t.Name == name })
}

// check is the state of a Check in progress.
type check struct {
	m        *Mapped
	pieces   []checkPiece
	next     atomic.Int64
	total    uint64
	progress func(done, total uint64)

	mu    sync.Mutex // guards the fields below and calls of progress
	done  uint64
	found map[int]*NotFinite // by index of the tensor
}

// checkPiece is a byte range of a tensor.
type checkPiece struct {
	tensor     int
	start, end uint64
}

// read checks a piece. It converts a memory fault in the mapping to an error.
func (c *check) read(p checkPiece) (err error) {
	t := &c.m.dir.raw[p.tensor]
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }:
			err = fmt.Errorf("weights: %s: cannot read byte %d: was the file truncated after it was mapped?", c.m.dir.files[t.File].Path, t.Offset+p.start)
		default:
			panic(r)
		}
	}()
	b := c.m.files[t.File].data[t.Offset+p.start : t.Offset+p.end]
	elems, size := t.Type.Block()
	n, first := 0, 0
	if t.TypeName == e4m3Name {
		elems, size = 1, 1
		for i, v := range b {
			if v&0x7f == 0x7f {
				if n == 0 {
					first = i
				}
				n++
			}
		}
	} else {
		n, first = dtype.NotFinite(t.Type, b)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > 0 {
		f := c.found[p.tensor]
		at := p.start/uint64(size)*uint64(elems) + uint64(first)
		if f == nil {
			f = &NotFinite{Tensor: t.Name, Type: t.TypeName, First: at}
			c.found[p.tensor] = f
		}
		f.Count, f.First = f.Count+uint64(n), min(f.First, at)
	}
	c.done += p.end - p.start
	if c.progress != nil {
		c.progress(c.done, c.total)
	}
	return nil
}
