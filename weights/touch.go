package weights

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// touchStep is the number of bytes that a worker of Touch touches at a time. It is a multiple
// of every page size.
const touchStep = 4 << 20

// Touched is the result of Touch.
type Touched struct {
	Bytes   uint64 // size of the touched pages in bytes
	Elapsed time.Duration
	Skipped bool   // nothing was touched
	Reason  string // why it was skipped
}

// Touch reads one byte of each page with tensor data, so that the pages are in memory before
// the first token needs them. workers is the number of goroutines; below 1 means one per
// processor. If the system reports its free memory and the pages would not fit, Touch does
// nothing.
//
// progress, if not nil, is called after every few megabytes with the bytes of the touched
// pages and the total; calls do not overlap. If ctx is done, Touch returns its cause. It
// returns an error if a file was truncated after it was mapped.
func (m *Mapped) Touch(ctx context.Context, workers int, progress func(done, total uint64)) (Touched, error) {
	return m.touch(ctx, nil, workers, progress, AvailableMemory)
}

// TouchTensors is like Touch, but only for the tensors for which want returns true.
func (m *Mapped) TouchTensors(ctx context.Context, want func(name string) bool, workers int, progress func(done, total uint64)) (Touched, error) {
	return m.touch(ctx, want, workers, progress, AvailableMemory)
}

func (m *Mapped) touch(ctx context.Context, want func(name string) bool, workers int, progress func(done, total uint64), available func() (uint64, bool)) (Touched, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.files == nil {
		return Touched{}, ErrClosed
	}
	start := time.Now()
	spans, total := m.pages(uint64(os.Getpagesize()), want)
	if free, ok := available(); ok && total > free {
		return Touched{
			Skipped: true,
			Reason:  fmt.Sprintf("%s of weights, %s of free memory", formatBytes(total), formatBytes(free)),
			Elapsed: time.Since(start),
		}, nil
	}
	done, err := m.touchSpans(ctx, spans, workers, func(done uint64) {
		if progress != nil {
			progress(done, total)
		}
	})
	return Touched{Bytes: done, Elapsed: time.Since(start)}, err
}

// span is a range of whole pages of a file. The last page of a file may be
// short.
type span struct {
	file       int
	start, end uint64
}

// pages returns the pages that hold data of the tensors for which want returns true, and the sum
// of their sizes. A nil want selects all tensors. Each page is in one span, and no span is longer than touchStep.
func (m *Mapped) pages(pageSize uint64, want func(name string) bool) (spans []span, total uint64) {
	var last span
	flush := func() {
		for s := last.start; s < last.end; s += touchStep {
			e := min(s+touchStep, last.end)
			spans = append(spans, span{last.file, s, e})
			total += e - s
		}
	}
	for _, t := range m.dir.raw { // ordered by file and offset
		if want != nil && !want(t.Name) {
			continue
		}
		start := t.Offset &^ (pageSize - 1)
		end := min((t.Offset+t.Size+pageSize-1)&^(pageSize-1), m.dir.files[t.File].Size)
		if t.File == last.file && start <= last.end && last.end > 0 {
			last.end = max(last.end, end)
			continue
		}
		flush()
		last = span{t.File, start, end}
	}
	flush()
	return spans, total
}

// touchSpans divides the spans among the workers and returns the number of bytes touched.
func (m *Mapped) touchSpans(ctx context.Context, spans []span, workers int, progress func(done uint64)) (uint64, error) {
	if workers < 1 {
		workers = runtime.GOMAXPROCS(0)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		next atomic.Int64
		mu   sync.Mutex // guards done and calls of progress
		done uint64
		wg   sync.WaitGroup
	)
	for range min(workers, len(spans)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(spans) {
					return
				}
				if err := m.touchSpan(spans[i]); err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				done += spans[i].end - spans[i].start
				progress(done)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return done, context.Cause(ctx)
}

// touchSpan reads a byte of each page of a span. It converts a memory fault to an error.
func (m *Mapped) touchSpan(s span) (err error) {
	at := s.start
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }: // a memory fault
			err = fmt.Errorf("weights: %s: cannot read byte %d: was the file truncated after it was mapped?", m.dir.files[s.file].Path, at)
		default:
			panic(r)
		}
	}()
	var sum byte
	data, page := m.files[s.file].data, uint64(os.Getpagesize())
	for ; at < s.end; at += page {
		sum += data[at]
	}
	runtime.KeepAlive(sum) // keeps the compiler from removing the reads
	return nil
}

// formatBytes formats a number of bytes in a binary unit, such as "3.5 GiB".
func formatBytes(n uint64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	value, unit := float64(n)/1024, 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", value, units[unit])
}
