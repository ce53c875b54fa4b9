package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	minPiece = 1 << 20  // bytes of a range
	maxPiece = 64 << 20 // bytes of a range
	enough   = 1 << 10  // bytes that count as progress
	tellStep = 1 << 20  // bytes between two reports of progress
)

// meter counts the bytes of a Pull and reports them.
type meter struct {
	mu                sync.Mutex
	done, total, told int64
	tell              func(done, total uint64)
	note              func(text string)
}

// say passes a sentence to note.
func (m *meter) say(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.note != nil {
		m.note(text)
	}
}

// add counts n bytes, which are negative if they have to be downloaded again.
func (m *meter) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	if m.tell != nil && (m.done >= m.told+tellStep || m.done == m.total && m.told != m.done) {
		m.told = m.done
		m.tell(uint64(m.done), uint64(m.total))
	}
}

// each calls f for 0 to n-1 from up to width goroutines. The first error cancels the other calls.
func each(ctx context.Context, n, width int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, width) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || ctx.Err() != nil {
					return
				}
				if err := f(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// download is the download of one file.
type download struct {
	*session
	repo  *repository
	file  File
	url   *url.URL
	part  *part
	meter *meter
}

// errNoRanges reports a server that answers a request for a range with the whole file.
var errNoRanges = errors.New("the server does not support ranges")

// fetch downloads a file and makes its blob, unless it is there or another process makes it.
func (s *session) fetch(ctx context.Context, r *repository, commit string, f File, m *meter) error {
	unlock, err := r.lock(ctx, f.Hash, func() { m.say("another process is downloading " + f.Name) })
	if err != nil {
		return err
	}
	defer unlock()
	if r.present(f, commit) {
		m.add(f.Size)
		return nil
	}
	u, err := s.fileURL(r.id, commit, f.Name)
	if err != nil {
		return err
	}
	piece := cmp.Or(s.Piece, min(max(f.Size/int64(2*cap(s.slots)), minPiece), maxPiece))
	p, err := openPart(r.root, blobPath(f.Hash)+partExt, f.Size, piece, s.writer)
	if err != nil {
		return err
	}
	defer p.f.Close() // an error if finish has closed it
	m.add(p.done())
	d := &download{s, r, f, u, p, m}
	if err := d.pieces(ctx); errors.Is(err, errNoRanges) {
		err = d.whole(ctx)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return d.commit(ctx)
}

// fileURL returns the address of a file.
func (s *session) fileURL(id ID, commit, name string) (*url.URL, error) {
	parts := strings.Split(name, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return s.url("/" + id.path() + "/resolve/" + commit + "/" + strings.Join(parts, "/"))
}

// commit verifies the part and makes it the blob.
func (d *download) commit(ctx context.Context) error {
	name := blobPath(d.file.Hash)
	if err := d.part.verify(ctx, d.file); err != nil {
		if errors.Is(err, ErrContent) {
			d.part.f.Close()
			return errors.Join(err, d.repo.root.Remove(name+partExt))
		}
		return err
	}
	if err := d.part.finish(); err != nil {
		return err
	}
	return d.repo.root.Rename(name+partExt, name)
}

// pieces downloads what the part lacks, several ranges at once.
func (d *download) pieces(ctx context.Context) error {
	return each(ctx, len(d.part.count), cap(d.slots), d.piece)
}

// piece downloads what piece k lacks.
func (d *download) piece(ctx context.Context, k int) error {
	start := int64(k) * d.part.piece
	end := min(start+d.part.piece, d.part.size)
	return d.retry(ctx, func() (bool, error) {
		before := d.part.count[k]
		if start+before == end {
			return true, nil
		}
		err := d.ranged(ctx, k, start+before, end)
		return d.part.count[k]-before >= min(enough, (end-start)/64+1), err
	})
}

// open sends the request for a file or a range, when a connection is free.
func (d *download) open(ctx context.Context, ranges string) (*http.Response, func(), error) {
	select {
	case d.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	release := func() { <-d.slots }
	resp, err := d.do(ctx, http.MethodGet, d.url, ranges)
	if err != nil {
		release()
		return nil, nil, err
	}
	done := func() { resp.Body.Close(); release() }
	err = d.check(resp)
	if encoding := resp.Header.Get("Content-Encoding"); err == nil && encoding != "" && encoding != "identity" {
		err = fail(fmt.Sprintf("the server sends the file with the encoding %.40q", encoding), ErrContent)
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return resp, done, nil
}

// ranged downloads the bytes from start to end into piece k.
func (d *download) ranged(ctx context.Context, k int, start, end int64) error {
	resp, done, err := d.open(ctx, fmt.Sprintf("bytes=%d-%d", start, end-1))
	if err != nil {
		return err
	}
	defer done()
	if resp.StatusCode != http.StatusPartialContent {
		if start != 0 || end != d.part.size {
			return errNoRanges
		}
		return d.copyWhole(resp, func(b []byte) error { return d.part.add(k, b) })
	}
	var first, last, size int64
	if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &size); err != nil || first != start || last < first || last >= end {
		return fail(fmt.Sprintf("the server answers a request for bytes %d-%d with the range %.60q", start, end-1, resp.Header.Get("Content-Range")), ErrContent)
	}
	if size != d.part.size {
		return d.wrongSize(size)
	}
	return d.copy(resp.Body, last+1-start, func(b []byte) error { return d.part.add(k, b) })
}

func (d *download) wrongSize(size int64) error {
	return fail(fmt.Sprintf("the server has %d bytes, but its listing has %d", size, d.part.size), ErrContent)
}

// copy passes n bytes of a body to add, and counts them.
func (d *download) copy(body io.Reader, n int64, add func(b []byte) error) error {
	buf := make([]byte, 64<<10)
	for n > 0 {
		got, err := body.Read(buf[:min(int64(len(buf)), n)])
		if got > 0 {
			if err := add(buf[:got]); err != nil {
				return d.writeError(err)
			}
			d.meter.add(int64(got))
			n -= int64(got)
		}
		if n > 0 && err == io.EOF {
			return &temporary{err: fmt.Errorf("the connection ended %d bytes early", n)}
		} else if n > 0 && err != nil {
			return err
		}
	}
	return nil
}

// copyWhole copies an answer that has the whole file.
func (d *download) copyWhole(resp *http.Response, add func(b []byte) error) error {
	if resp.ContentLength >= 0 && resp.ContentLength != d.part.size {
		return d.wrongSize(resp.ContentLength)
	}
	if err := d.copy(resp.Body, d.part.size, add); err != nil {
		return err
	}
	if n, _ := io.ReadFull(resp.Body, make([]byte, 1)); n > 0 {
		return fail(fmt.Sprintf("the server has more bytes than its listing, which has %d", d.part.size), ErrContent)
	}
	return nil
}

// whole downloads the file from its beginning with one connection, from a server without ranges.
func (d *download) whole(ctx context.Context) error {
	return d.retry(ctx, func() (bool, error) {
		d.meter.add(-d.part.done())
		if err := d.part.reset(); err != nil {
			return false, d.writeError(err)
		}
		resp, done, err := d.open(ctx, "")
		if err != nil {
			return false, err
		}
		defer done()
		k := 0
		full := d.part.full()
		return false, d.copyWhole(resp, func(b []byte) error {
			for len(b) > 0 {
				n := min(int64(len(b)), full[k]-d.part.count[k])
				if err := d.part.add(k, b[:n]); err != nil {
					return err
				}
				if b = b[n:]; d.part.count[k] == full[k] {
					k++
				}
			}
			return nil
		})
	})
}

// writeError describes an error of writing the part, which is kept.
func (d *download) writeError(err error) error {
	if isFull(err) {
		return fail("the disk is full: "+d.repo.cache, ErrNoSpace)
	}
	return err
}
