package replay_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// snapshotOf returns a snapshot of a session with some positions.
func snapshotOf(t testing.TB, m *replay.Model, positions int) []byte {
	t.Helper()
	s := session(t, m, replay.SessionOptions{})
	generate(t, s, prompt(positions), 1)
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// summed returns a snapshot with a correct checksum.
func summed(b []byte) []byte {
	sum := sha256.Sum256(b[:len(b)-sha256.Size])
	copy(b[len(b)-sha256.Size:], sum[:])
	return b
}

// TestRestoreRefuses damages a snapshot, and restores it on other models and tables: each
// error is a documented one, and no session remains.
func TestRestoreRefuses(t *testing.T) {
	m := loadedOnCPU(t, "llama", 32, compiler.Options{})
	good := snapshotOf(t, m, 40)
	before := m.Memory()
	put := func(at int, v uint32) func(b []byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint32(b[at:], v); return summed(b) }
	}
	for _, c := range []struct {
		name   string
		change func(b []byte) []byte
		want   error
	}{
		{"empty", func(b []byte) []byte { return nil }, replay.ErrNotSnapshot},
		{"magic", put(0, 1), replay.ErrNotSnapshot},
		{"roll", func(b []byte) []byte { return append([]byte("PIANOLA\x1a"), b[8:]...) }, replay.ErrNotSnapshot},
		{"version", put(8, 2), replay.ErrSnapshotVersion},
		{"flags", put(12, 2), replay.ErrSnapshotDamaged},
		{"model", put(16, 1), replay.ErrSnapshotModel},
		{"table", put(48, 1), replay.ErrSnapshotTable},
		{"context", put(80, 1<<20), replay.ErrSnapshotDamaged},
		{"positions past the context", put(84, 1<<31), replay.ErrSnapshotDamaged},
		{"positions past the written", put(84, 41), replay.ErrSnapshotDamaged},
		{"written past the context", put(88, 513), replay.ErrSnapshotDamaged},
		{"vocabulary", put(92, 7), replay.ErrSnapshotDamaged},
		{"token", put(100+4*13, 512), replay.ErrSnapshotDamaged},
		{"more positions", func(b []byte) []byte { return put(84, 512)(put(88, 512)(b)) }, replay.ErrSnapshotDamaged},
		{"fewer positions", put(84, 39), replay.ErrSnapshotDamaged},
		{"row", func(b []byte) []byte { b[len(b)-40] ^= 1; return b }, replay.ErrSnapshotDamaged},
		{"checksum", func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, replay.ErrSnapshotDamaged},
		{"cut", func(b []byte) []byte { return b[:len(b)-1] }, replay.ErrSnapshotDamaged},
		{"cut header", func(b []byte) []byte { return b[:50] }, replay.ErrSnapshotDamaged},
	} {
		s, err := m.Restore(bytes.NewReader(c.change(slices.Clone(good))), replay.SessionOptions{})
		if s != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	for name, other := range map[string]*replay.Model{
		"model": loadedOnCPU(t, "qwen3", 32, compiler.Options{}),
		"table": loadedOnCPU(t, "llama", 32, compiler.Options{Context: 256}),
	} {
		want := map[string]error{"model": replay.ErrSnapshotModel, "table": replay.ErrSnapshotTable}[name]
		if _, err := other.Restore(bytes.NewReader(good), replay.SessionOptions{}); !errors.Is(err, want) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	fault := errors.New("fault")
	if _, err := m.Restore(io.MultiReader(bytes.NewReader(good[:200]), iotest.ErrReader(fault)), replay.SessionOptions{}); !errors.Is(err, fault) {
		t.Errorf("a reader's error: %v", err)
	}
	if now := m.Memory(); now.Sessions != before.Sessions {
		t.Errorf("%+v, before %+v", now, before)
	}
	if s, err := m.Restore(iotest.OneByteReader(bytes.NewReader(good)), replay.SessionOptions{}); err != nil {
		t.Error(err)
	} else if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestRestoreMemory restores a file whose header claims the whole context, but which is cut
// short: Restore allocates memory only for the rows in the file.
func TestRestoreMemory(t *testing.T) {
	m := loadedOnCPU(t, "llama", 32, compiler.Options{})
	b := snapshotOf(t, m, 40)
	binary.LittleEndian.PutUint32(b[84:], 512)
	binary.LittleEndian.PutUint32(b[88:], 512)
	all := session(t, m, replay.SessionOptions{Reserve: 512})
	whole := kvBytes(m)
	if err := all.Close(); err != nil {
		t.Fatal(err)
	}
	fresh := loadedOnCPU(t, "llama", 32, compiler.Options{})
	if _, err := fresh.Restore(bytes.NewReader(b), replay.SessionOptions{}); !errors.Is(err, replay.ErrSnapshotDamaged) {
		t.Fatal(err)
	}
	if k := fresh.Memory().Kinds[table.SlotKV]; k.Active != 0 || k.Peak >= whole {
		t.Errorf("%+v of %d", k, whole)
	}
}

// TestSnapshotWriter checks that an error of the writer is returned, at any byte.
func TestSnapshotWriter(t *testing.T) {
	m := loadedOnCPU(t, "llama", 32, compiler.Options{})
	s := session(t, m, replay.SessionOptions{})
	generate(t, s, prompt(40), 1)
	for _, n := range []int64{0, 50, 1 << 12, 20000} {
		if err := s.Snapshot(&limited{n}); err != io.ErrShortWrite {
			t.Errorf("a writer of %d bytes: %v", n, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Snapshot(io.Discard); err != replay.ErrClosed {
		t.Errorf("closed: %v", err)
	}
}

type limited struct{ left int64 }

func (w *limited) Write(p []byte) (int, error) {
	if w.left -= int64(len(p)); w.left < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

// FuzzRestore restores arbitrary files: each is refused, or gives a session that decodes.
func FuzzRestore(f *testing.F) {
	m := loadedOnCPU(f, "llama", 32, compiler.Options{})
	good := snapshotOf(f, m, 3)
	f.Add(good)
	f.Add(good[:100])
	f.Add(snapshotOf(f, m, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, fixed(b, good)} {
			s, err := m.Restore(bytes.NewReader(b), replay.SessionOptions{Chain: 2})
			if err != nil {
				continue
			}
			if s.Len() > 0 {
				if err := s.Rewind(s.Len() - 1); err != nil {
					t.Error(err)
				}
				if _, _, err := s.Chain(t.Context(), 2); err != nil {
					t.Error(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// fixed returns a snapshot with correct fingerprints and checksum, so that it passes the
// first checks.
func fixed(b, good []byte) []byte {
	if len(b) < 100+sha256.Size {
		return nil
	}
	b = slices.Clone(b)
	copy(b[:12], good)
	copy(b[16:84], good[16:])
	copy(b[92:96], good[92:])
	return summed(b)
}
