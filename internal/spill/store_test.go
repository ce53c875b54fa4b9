package spill

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/pages"
)

// faulty is a file in memory that fails as it is told.
type faulty struct {
	mu    sync.Mutex
	b     []byte
	full  int                         // writes past this many bytes fail; 0 means none
	read  func(p []byte) (int, error) // replaces what a read has returned; may be nil
	write func() error                // may be nil
}

func (f *faulty) ReadAt(p []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at >= int64(len(f.b)) {
		return 0, io.EOF
	}
	n := copy(p, f.b[at:])
	if f.read != nil {
		return f.read(p[:n])
	}
	return n, nil
}

func (f *faulty) WriteAt(p []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.write != nil {
		if err := f.write(); err != nil {
			return 0, err
		}
	}
	if f.full > 0 && int(at)+len(p) > f.full {
		n := max(0, f.full-int(at))
		f.grow(int(at) + n)
		return copy(f.b[min(int(at), len(f.b)):], p[:n]), syscall.ENOSPC
	}
	f.grow(int(at) + len(p))
	return copy(f.b[at:], p), nil
}

func (f *faulty) grow(n int) {
	if n > len(f.b) {
		f.b = append(f.b, make([]byte, n-len(f.b))...)
	}
}

func (f *faulty) Close() error { return nil }

// id returns the name of a copy.
func id(n, kind int) ID {
	return ID{*pages.Namespace(string(binary.LittleEndian.AppendUint32(nil, uint32(n)))), kind}
}

var sizes = []int{9000, 30000}

// content returns what the copy with a name has.
func content(id ID) []byte {
	r := rand.NewChaCha8(id.Key)
	b := make([]byte, sizes[id.Kind])
	r.Read(b)
	b[0] = byte(id.Kind)
	return b
}

func open(t testing.TB, o Options) *Store {
	t.Helper()
	o.Sizes = sizes
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// put puts a copy and reports whether there was memory for it.
func put(s *Store, id ID) bool {
	c := s.Put(id)
	if c == nil {
		return false
	}
	b := content(id)
	for _, p := range c.Pieces {
		b = b[copy(p, b):]
	}
	c.Done(true)
	return true
}

// mustPut puts a copy, for which it waits until the file has others.
func mustPut(t testing.TB, s *Store, id ID) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !put(s, id); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("there is never memory for a copy")
		}
	}
}

// get brings blocks back. It returns the number of blocks before the first one that is lost.
func get(t testing.TB, s *Store, blocks [][]ID) int {
	t.Helper()
	r := s.Open(blocks)
	defer r.Close()
	done := 0
	for end := time.Now().Add(time.Minute); done < len(blocks); time.Sleep(100 * time.Microsecond) {
		ready, lost := r.Ready()
		for ; done < ready; done++ {
			for i, p := range r.Pages(done) {
				if !bytes.Equal(slices.Concat(p...), content(blocks[done][i])) {
					t.Fatalf("block %d: page %d has another content", done, i)
				}
			}
			r.Done(done + 1)
		}
		if lost {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("stuck at block %d of %d", done, len(blocks))
		}
	}
	return done
}

// TestMemory keeps as many copies as there is memory for, the ones that were used last.
func TestMemory(t *testing.T) {
	s := open(t, Options{Memory: 1 << 20})
	for n := range 100 {
		mustPut(t, s, id(n, n%2))
		if !s.Has(id(0, 0)) || get(t, s, [][]ID{{id(0, 0)}}) != 1 {
			t.Fatalf("after %d copies the one that is used all the time is lost", n)
		}
	}
	if s.Has(id(1, 1)) || !s.Has(id(99, 1)) {
		t.Error("not the oldest copies were dropped")
	}
	if put(s, id(99, 1)) {
		t.Error("a copy was put twice")
	}
	st := s.Stats()
	if st.Put != 100 || st.Restored != 100 || st.Memory == 0 || st.Memory > 1<<20 || st.File != 0 || st.Faults != 0 {
		t.Errorf("%+v", st)
	}
	if n := s.Release(); n != st.Memory || s.Stats().Memory != 0 || s.Has(id(99, 1)) {
		t.Errorf("%d bytes of %d released", n, st.Memory)
	}
	if put(s, id(1, 0)) {
		t.Error("the memory is taken again at once")
	}
}

// TestFile puts more copies than there is memory for and brings them back from the file, also a block that is
// larger than a quarter of the memory, and several at a time.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Memory: 1, Dir: dir, File: 64 << 20})
	if runtime.GOOS != "windows" {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("the file can be seen: %v, %v", left, err)
		}
	}
	var blocks [][]ID
	for n := range 200 {
		blocks = append(blocks, []ID{id(n, 0), id(n, 1)})
		mustPut(t, s, id(n, 0))
		mustPut(t, s, id(n, 1))
	}
	for range 2 {
		if n := get(t, s, blocks); n != len(blocks) {
			t.Errorf("%d of %d blocks came back", n, len(blocks))
		}
	}
	var together sync.WaitGroup
	for i := range 8 {
		together.Go(func() {
			if n := get(t, s, blocks[10*i:]); n != len(blocks)-10*i {
				t.Errorf("%d: %d blocks came back", i, n)
			}
		})
	}
	together.Wait()
	st := s.Stats()
	if st.Put != 400 || st.Faults != 0 || st.File < 200*39000 || st.Memory > 300<<10 {
		t.Errorf("%+v", st)
	}
	s.Release()
	if n := get(t, s, blocks[:5]); n != 5 {
		t.Errorf("%d blocks are left after the memory was released", n)
	}
}

// TestBounds bounds the file.
func TestBounds(t *testing.T) {
	f := &faulty{}
	s := open(t, Options{Memory: 1, File: 1 << 20, Create: func() (File, error) { return f, nil }})
	for n := range 300 {
		mustPut(t, s, id(n, n%2))
	}
	if st := s.Stats(); st.File > 1<<20 || st.Faults > 0 {
		t.Errorf("%+v", st)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.b) > 1<<20 {
		t.Errorf("the file has %d bytes", len(f.b))
	}
}

// TestFaults damages the file in every way. A copy then is what was put or lost.
func TestFaults(t *testing.T) {
	fault := errors.New("fault")
	r := rand.New(rand.NewPCG(1, 2))
	for name, f := range map[string]*faulty{
		"full disk":    {full: 500 << 10},
		"no writes":    {write: func() error { return fault }},
		"some writes":  {write: func() error { return []error{nil, nil, nil, fault}[r.IntN(4)] }},
		"no reads":     {read: func([]byte) (int, error) { return 0, fault }},
		"short reads":  {read: func(p []byte) (int, error) { return r.IntN(len(p) + 1), nil }},
		"late errors":  {read: func(p []byte) (int, error) { return len(p), io.EOF }},
		"a wrong bit":  {read: func(p []byte) (int, error) { p[r.IntN(len(p))] ^= 1 << r.IntN(8); return len(p), nil }},
		"other bytes":  {read: func(p []byte) (int, error) { copy(p, content(id(7, 1))); return len(p), nil }},
		"zeros":        {read: func(p []byte) (int, error) { clear(p); return len(p), nil }},
		"rare damages": {read: func(p []byte) (int, error) { p[0] ^= byte(r.IntN(20) / 19); return len(p), nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Options{Memory: 1, File: 8 << 20, Create: func() (File, error) { return f, nil }})
			found, lost := 0, 0
			for round := range 3 {
				for n := range 60 {
					put(s, id(n, n%2))
					time.Sleep(50 * time.Microsecond)
				}
				for n := range 60 {
					if !s.Has(id(n, n%2)) {
						continue
					}
					if get(t, s, [][]ID{{id(n, n%2)}}) == 1 {
						found++
					} else if lost++; s.Has(id(n, n%2)) {
						t.Errorf("round %d: copy %d is damaged and kept", round, n)
					}
				}
			}
			st := s.Stats()
			if found == 0 || st.Faults == 0 != (name == "late errors") || lost > st.Faults {
				t.Errorf("%d found, %d lost, %+v", found, lost, st)
			}
		})
	}
}

// TestOptions refuses options without sense, and a directory that does not exist.
func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"no such file": {Sizes: sizes, Dir: t.TempDir() + "/none", File: 1 << 20},
		"0 bytes":      {Sizes: []int{0}},
		"no kinds":     {},
		"memory":       {Sizes: []int{1 << 30, 1 << 30}, Memory: 1 << 62},
	} {
		if s, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, %v", o, s, err)
		}
	}
}

// FuzzFile reads copies back from a file that somebody else writes to.
func FuzzFile(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1}, uint16(100))
	f.Add(bytes.Repeat([]byte{0x12, 0, 7, 200}, 30), uint16(60000))
	f.Fuzz(func(t *testing.T, damage []byte, size uint16) {
		file := &faulty{}
		s := open(t, Options{Memory: 1, File: 1 << 20, Create: func() (File, error) { return file, nil }})
		for n := range 12 {
			mustPut(t, s, id(n, n%2))
		}
		file.mu.Lock()
		for ; len(damage) >= 4; damage = damage[4:] { // a place and a byte
			if at := int(binary.LittleEndian.Uint16(damage)) * int(damage[2]+1) / 16; at < len(file.b) {
				file.b[at] = damage[3]
			}
		}
		file.b = file.b[:min(len(file.b), 16*int(size))]
		file.mu.Unlock()
		for n := range 12 {
			if s.Has(id(n, n%2)) {
				get(t, s, [][]ID{{id(n, n%2)}}) // checks the content
			}
		}
	})
}
