package cubin

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func key(fields ...string) Key {
	h := NewHash()
	h.Strings(fields...)
	return h.Key()
}

// TestKey checks that the boundaries of fields count.
func TestKey(t *testing.T) {
	first := key("a", "b")
	if key("ab", "c") == key("a", "bc") || key("a") == key("a", "") || key("a", "b") != first {
		t.Error("keys of different fields are equal, or keys of equal fields differ")
	}
}

// put stores an image that Get must return.
func put(t *testing.T, c *Cache, k Key, image []byte) {
	t.Helper()
	if err := c.Put(k, image); err != nil {
		t.Fatal(err)
	}
	if got, ok := c.Get(k); !ok || !bytes.Equal(got, image) {
		t.Fatalf("Get returns %d bytes, %v", len(got), ok)
	}
}

// TestDamage changes each byte of a file in turn, truncates it to each length, and replaces it by
// other things. Get must reject each of them, and Put must replace it.
func TestDamage(t *testing.T) {
	c := New(filepath.Join(t.TempDir(), "a", "b"))
	k, image := key("x"), []byte("\x7fELF code")
	if _, ok := c.Get(k); ok {
		t.Error("Get finds a file that was never stored")
	}
	put(t, c, k, image)
	path := c.path(k)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	reject := func(what string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, ok := c.Get(k); ok {
			t.Errorf("%s: Get returns %q", what, got)
		}
	}
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 1
		reject(fmt.Sprintf("byte %d changed", i), b)
		reject(fmt.Sprintf("%d bytes", i), good[:i])
	}
	reject("a byte too many", append(bytes.Clone(good), 0))
	put(t, c, key("y"), image)
	foreign, err := os.ReadFile(c.path(key("y")))
	if err != nil {
		t.Fatal(err)
	}
	reject("another key's file", foreign)
	put(t, c, k, image)

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Get(k); ok {
		t.Error("Get reads a directory")
	}
	put(t, c, k, image)
}

// TestTrim checks that the files that were not used for the longest time are removed, and that
// other files stay.
func TestTrim(t *testing.T) {
	c := New(t.TempDir())
	c.limit = int64(3 * (headerSize + 100))
	image := bytes.Repeat([]byte{7}, 100)
	for _, name := range []string{"mine.txt", "mine.cubin", c.path(key("z"))[len(c.dir)+1:] + ".tmp1"} {
		if err := os.WriteFile(filepath.Join(c.dir, name), make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	age := func(k Key, d time.Duration) {
		t.Helper()
		at := time.Now().Add(-d)
		if err := os.Chtimes(c.path(k), at, at); err != nil {
			t.Fatal(err)
		}
	}
	a, b, d := key("a"), key("b"), key("d")
	for i, k := range []Key{a, b, d} {
		put(t, c, k, image)
		age(k, time.Duration(30-i)*time.Hour)
	}
	if _, ok := c.Get(a); !ok { // a is used: b is now the oldest
		t.Fatal("a file within the limit was removed")
	}
	temporary := c.path(key("z")) + ".tmp1"
	at := time.Now().Add(-2 * abandoned)
	if err := os.Chtimes(temporary, at, at); err != nil {
		t.Fatal(err)
	}
	put(t, c, key("e"), image)
	for name, want := range map[string]bool{c.path(a): true, c.path(b): false, c.path(d): true, temporary: false,
		filepath.Join(c.dir, "mine.txt"): true, filepath.Join(c.dir, "mine.cubin"): true} {
		if _, err := os.Stat(name); (err == nil) != want {
			t.Errorf("%s exists: %v, want %v", filepath.Base(name), err == nil, want)
		}
	}
	if err := c.Put(key("huge"), make([]byte, c.limit)); err != nil {
		t.Error(err)
	}
	if _, ok := c.Get(key("huge")); ok {
		t.Error("an image larger than the limit is kept")
	}
	if _, ok := c.Get(a); !ok {
		t.Error("an image larger than the limit displaces others")
	}
}

// TestUnwritable checks that a cache without a usable directory misses, and that Put returns the
// reason.
func TestUnwritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, fails := range map[string]bool{"": false, file: true, filepath.Join(file, "below"): true, "/proc/nonexistent": true} {
		c := New(dir)
		if err := c.Put(key("x"), []byte("code")); (err != nil) != fails {
			t.Errorf("%q: %v", dir, err)
		}
		if _, ok := c.Get(key("x")); ok || c.On() != (dir != "") {
			t.Errorf("%q: found", dir)
		}
	}
}

// TestConcurrent lets several goroutines, each with a Cache of its own, store and read the same
// keys with a limit that makes them remove each other's files.
func TestConcurrent(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			c := New(dir)
			c.limit = 3000
			for i := range 60 {
				n := i % 5
				k, image := key(fmt.Sprint(n)), bytes.Repeat([]byte{byte(n)}, 700+n)
				if got, ok := c.Get(k); ok && !bytes.Equal(got, image) {
					t.Errorf("key %d has another image", n)
				}
				if err := c.Put(k, image); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	c := New(dir)
	c.limit = 3000
	put(t, c, key("last"), make([]byte, 700))
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 3 {
		t.Errorf("%d files, %v", len(entries), err)
	}
}
