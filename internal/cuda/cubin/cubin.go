// Package cubin keeps the code that the CUDA driver assembled (cubins) in a directory, so that a
// later process need not assemble it again.
//
// A file's name and its header contain the key under which it was stored. Get rejects a file whose
// header, size or checksum is wrong, and Put replaces it. Several processes may use a directory at
// the same time: files are replaced atomically.
package cubin

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pianola-engine/pianola/internal/replacefile"
)

// Limit is the largest total size of a directory's files in bytes. Put removes the files that have
// not been used for the longest time.
const Limit = 256 << 20

const (
	magic      = "pianola cubin 1\n"
	headerSize = len(magic) + 2*sha256.Size + 8 // magic, key, checksum of the image, its size

	ext = ".cubin"
	// useEvery is the time after which Get records another use of a file in its modification time.
	useEvery = time.Hour
	// abandoned is the age of a temporary file whose writer has been killed.
	abandoned = time.Hour
)

// Key identifies an image: the hash of everything that it depends on.
type Key [sha256.Size]byte

// Hash computes a Key from the fields that are added to it.
type Hash struct{ h hash.Hash }

// NewHash returns a Hash without fields.
func NewHash() *Hash { return &Hash{sha256.New()} }

// Add adds a field. Different sequences of fields give different keys.
func (h *Hash) Add(field []byte) {
	h.h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(field))))
	h.h.Write(field)
}

// Strings adds fields.
func (h *Hash) Strings(fields ...string) {
	for _, f := range fields {
		h.Add([]byte(f))
	}
}

// Numbers adds fields.
func (h *Hash) Numbers(fields ...int) {
	for _, f := range fields {
		h.Add(binary.LittleEndian.AppendUint64(nil, uint64(f)))
	}
}

// Key returns the key of the fields added so far.
func (h *Hash) Key() Key { return Key(h.h.Sum(nil)) }

// Cache is a directory of images.
type Cache struct {
	dir   string
	limit int64
}

// New returns the cache in a directory, which Put creates. The directory "" keeps nothing.
func New(dir string) *Cache { return &Cache{dir, Limit} }

// On reports whether the cache has a directory.
func (c *Cache) On() bool { return c.dir != "" }

// path returns the name of a key's file.
func (c *Cache) path(k Key) string {
	return filepath.Join(c.dir, hex.EncodeToString(k[:16])+ext)
}

// ours reports whether a file name is one that path returns.
func ours(name string) bool {
	id, ok := strings.CutSuffix(name, ext)
	_, err := hex.DecodeString(id)
	return ok && err == nil && len(id) == 32
}

// Get returns an image if the directory contains an undamaged file for it.
func (c *Cache) Get(k Key) (image []byte, ok bool) {
	if !c.On() {
		return nil, false
	}
	path := c.path(k)
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() || st.Size() <= int64(headerSize) || st.Size() > c.limit {
		return nil, false
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, false
	}
	if image, ok = decode(b, k); ok && time.Since(st.ModTime()) > useEvery {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // without it, the file is only removed earlier
	}
	return image, ok
}

// header returns the header of an image's file.
func header(k Key, image []byte) []byte {
	sum := sha256.Sum256(image)
	b := append([]byte(magic), k[:]...)
	b = append(b, sum[:]...)
	return binary.LittleEndian.AppendUint64(b, uint64(len(image)))
}

// decode returns the image in a file, if the file is undamaged and belongs to the key.
func decode(b []byte, k Key) (image []byte, ok bool) {
	if len(b) <= headerSize {
		return nil, false
	}
	image = b[headerSize:]
	return image, bytes.Equal(b[:headerSize], header(k, image))
}

// Put stores an image and removes files beyond the limit. A directory that cannot be written is not
// an error for a cache; err is for tests and logs.
func (c *Cache) Put(k Key, image []byte) error {
	if !c.On() || int64(headerSize+len(image)) > c.limit {
		return nil
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	path := c.path(k)
	// A directory or a device in the file's place could not be replaced by a rename, or would be
	// read forever.
	if st, err := os.Lstat(path); err == nil && !st.Mode().IsRegular() {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	err := replacefile.Write(path, 0o600, func(w io.Writer) error {
		if _, err := w.Write(header(k, image)); err != nil {
			return err
		}
		_, err := w.Write(image)
		return err
	})
	if err != nil {
		return err
	}
	return c.trim(filepath.Base(path))
}

// trim removes the files that have not been used for the longest time, until the others are within
// the limit. It keeps the named file, and files that are not the cache's.
func (c *Cache) trim(keep string) error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	var files []fs.FileInfo
	var size int64
	for _, e := range entries {
		st, err := e.Info()
		if err != nil || !st.Mode().IsRegular() {
			continue // another process may have removed it
		}
		switch name, _, temporary := strings.Cut(st.Name(), ".tmp"); {
		case !ours(name):
		case temporary && time.Since(st.ModTime()) > abandoned:
			_ = os.Remove(filepath.Join(c.dir, st.Name()))
		case temporary:
		default:
			size += st.Size()
			files = append(files, st)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	for _, st := range files {
		if size <= c.limit {
			break
		}
		if st.Name() == keep {
			continue
		}
		if err := os.Remove(filepath.Join(c.dir, st.Name())); err == nil || os.IsNotExist(err) {
			size -= st.Size()
		}
	}
	return nil
}
