package batch

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/pages"
	"github.com/pianola-engine/pianola/internal/spill"
)

// fakePage is the size of a page of the fake device.
const fakePage = 8 * pages.Size

func (d *fake) PageSize(int) int { return fakePage }

func (d *fake) content(c *PageCopy) []uint64 {
	return d.rows[c.Kind][int(c.Page)*pages.Size:][:pages.Size]
}

func (d *fake) Save(list []PageCopy) error {
	err := d.failing("save")
	for i := range list {
		b := make([]byte, 0, fakePage)
		for _, v := range d.content(&list[i]) {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		if err != nil {
			clear(b)
		}
		for _, p := range list[i].Pieces {
			b = b[copy(p, b):]
		}
	}
	return err
}

func (d *fake) Restore(list []PageCopy) error {
	err := d.failing("restore")
	for i := range list {
		b := slices.Concat(list[i].Pieces...)
		for row := range d.content(&list[i]) {
			if d.content(&list[i])[row] = binary.LittleEndian.Uint64(b[8*row:]); err != nil {
				d.content(&list[i])[row] = 0xbad
			}
		}
	}
	return err
}

// disk is a file whose reads and writes fail as they are told.
type disk struct {
	*os.File
	read, write func(p []byte) error // may be nil
}

func (d *disk) ReadAt(p []byte, at int64) (int, error) {
	n, err := d.File.ReadAt(p, at)
	if d.read != nil && err == nil {
		if err = d.read(p); err != nil {
			n /= 2
		}
	}
	return n, err
}

func (d *disk) WriteAt(p []byte, at int64) (int, error) {
	if d.write != nil {
		if err := d.write(p); err != nil {
			return len(p) / 2, err
		}
	}
	return d.File.WriteAt(p, at)
}

// spilling returns an option with a store of little memory and a file.
func spilling(t *testing.T, kinds []pages.Kind, d *disk) (*spill.Store, func(*Options)) {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	d.File = f
	s, err := spill.New(spill.Options{
		Sizes: slices.Repeat([]int{fakePage}, len(kinds)), Memory: 64 << 10, File: 1 << 20, Create: func() (spill.File, error) { return d, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after Engine.Close
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, func(o *Options) { o.Spill = s }
}

// settle waits until an idle engine has copied all pages that it wants to copy.
func settle(t *testing.T, e *Engine) {
	t.Helper()
	settled := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		all := true
		for kind := range e.copies.kinds {
			u := e.store.Usage(kind)
			e.store.Coldest(kind, max(1, u.Pages/4)-u.Free, func(c pages.Cold) bool {
				all = all && (e.copies.store.Has(spill.ID{Key: *c.Key, Kind: kind}) || !e.copies.worth(kind, c.At))
				return all
			})
		}
		return all
	}
	for end := time.Now().Add(time.Minute); !settled(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("cold pages are not copied: %+v", e.copies.store.Stats())
		}
	}
}

// TestCopies evicts a prompt and reads its pages back.
func TestCopies(t *testing.T) {
	kinds := []pages.Kind{{Name: "full", Pages: 12}}
	s, o := spilling(t, kinds, &disk{})
	e, d := open(t, kinds, 4, o)
	prompt := numbers(0, 300)
	ask1 := func(space string, tokens []int32) Figures {
		t.Helper()
		c := e.NewContext(space)
		defer c.Close()
		st, err := c.Start(ask(tokens, 5, settings{seed: 1}))
		if err != nil {
			t.Fatal(err)
		}
		got, err := collect(bg, st)
		st.Close(len(got))
		if want := alone(kinds, tokens, 5, settings{seed: 1}); err != nil || !slices.Equal(got, want) {
			t.Fatalf("%v, %v, want %v", got, err, want)
		}
		return st.Figures()
	}
	others := func(space string) {
		for i := range 8 {
			ask1(space, numbers(37*i+1, 250))
			settle(t, e)
		}
	}
	ask1("", prompt)
	others("")
	if s.Stats().Put == 0 {
		t.Fatalf("%+v", s.Stats())
	}
	d.filled = 0
	if f := ask1("", prompt); f.Restored < 256-64 || f.Hit+f.Restored+f.Filled != 300 || d.filled != f.Filled {
		t.Errorf("%+v; %d positions were computed", f, d.filled)
	}
	if f := ask1("another namespace", prompt); f.Restored > 0 || f.Filled != 300 {
		t.Errorf("in another namespace: %+v", f)
	}
	others("")
	// A prompt that parts from the first one takes the pages before that.
	if f := ask1("", append(slices.Clone(prompt[:200]), numbers(500, 90)...)); f.Restored+f.Hit < 128 || f.Restored+f.Hit > 192 {
		t.Errorf("with a common beginning: %+v", f)
	}
	released(t, e)
}

// TestCopiesInvariance runs random requests of which many begin with pages that have been evicted, some with
// a damaged file or a device that fails. Each must get the tokens that it gets alone.
func TestCopiesInvariance(t *testing.T) {
	errFault := errors.New("injected")
	var n atomic.Int64
	every := func(k int64, err error) func([]byte) error {
		return func([]byte) error {
			if n.Add(1)%k == 0 {
				return err
			}
			return nil
		}
	}
	windows := []pages.Kind{{Name: "full", Pages: 60}, {Name: "window", Pages: 30, Window: 100, Sinks: 4}}
	few := []pages.Kind{{Name: "full", Pages: 26}}
	for _, c := range []struct {
		name  string
		kinds []pages.Kind
		disk  disk
		call  string // of the device, which fails at times
	}{
		{"full", few, disk{}, ""},
		{"windows", windows, disk{}, ""},
		{"full disk", few, disk{write: every(20, io.ErrShortWrite)}, ""},
		{"no disk", few, disk{write: func([]byte) error { return errFault }}, ""},
		{"short reads", windows, disk{read: every(5, io.ErrUnexpectedEOF)}, ""},
		{"damaged", few, disk{read: func(p []byte) error { p[int(n.Add(1))%len(p)] ^= byte(n.Load() % 3); return nil }}, ""},
		{"slow", few, disk{read: func([]byte) error { time.Sleep(3 * time.Millisecond); return nil }}, ""},
		{"save", windows, disk{}, "save"},
		{"restore", windows, disk{}, "restore"},
		{"run", few, disk{}, "run"},
		{"place", few, disk{}, "place"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, o := spilling(t, c.kinds, &c.disk)
			e, d := open(t, c.kinds, 12, func(opts *Options) {
				o(opts)
				opts.Ahead, opts.Schedule.Chain = 24, 10
			})
			calls := rand.New(rand.NewPCG(4, 4))
			d.fault = func(call string) error {
				if call == c.call && calls.IntN(9) == 0 {
					return errFault
				}
				return nil
			}
			v := &invariance{e: e, d: d, kinds: c.kinds, left: 150, fails: errFault}
			v.all(t, 16)
			released(t, e)
			st := s.Stats()
			if st.Put == 0 || st.Restored == 0 && c.name != "save" {
				t.Errorf("the load did not reach everything: %+v, %+v", v.counts, st)
			}
			if v.failed > 0 != (c.call == "run" || c.call == "place") {
				t.Errorf("%d requests failed", v.failed)
			}
			t.Logf("%+v, %+v", v.counts, st)
		})
	}
}

// TestCopiesClose closes the engine while pages are read back from a disk that does not answer.
func TestCopiesClose(t *testing.T) {
	kinds := []pages.Kind{{Name: "full", Pages: 12}}
	answer := make(chan struct{})
	var reads atomic.Int64
	s, o := spilling(t, kinds, &disk{read: func([]byte) error { reads.Add(1); <-answer; return nil }})
	e, _ := open(t, kinds, 4, o)
	for i := range 12 {
		c := e.NewContext("")
		if _, err := run(c, ask(numbers(37*i, 250), 2, settings{})); err != nil {
			t.Fatal(err)
		}
		c.Close()
		settle(t, e)
	}
	s.Release() // only the file has the pages
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			c := e.NewContext("")
			defer c.Close()
			got, err := run(c, ask(numbers(37*i, 250), 2, settings{}))
			if want := alone(kinds, numbers(37*i, 250), 2, settings{}); err == nil && !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			if err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
	all.Wait() // a disk that does not answer delays a request and does not stop it
	if reads.Load() == 0 {
		t.Errorf("nothing was read: %+v", s.Stats())
	}
	e.Close()
	close(answer)
}
