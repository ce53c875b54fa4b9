package hub

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"strconv"
)

// partExt is appended to a blob's name while it is downloaded. Other tools use other endings:
// huggingface_hub would append to a file of its own ending.
const partExt = ".pianola"

// partMagic begins the trailer of a part.
var partMagic = []byte("PIANOLA\x01")

// maxPieces bounds the number of pieces of a part.
const maxPieces = 1 << 16

// part is a file that is being downloaded. It has the content, of size bytes, and behind it a
// trailer: the magic, the size, the size of a piece, and for each piece the number of its bytes
// that are there. All numbers have 64 bits. Without the trailer the content is complete.
type part struct {
	f     *os.File
	w     io.WriterAt // f, unless a test replaces it
	size  int64
	piece int64
	count []int64 // bytes of each piece; only the goroutine of a piece changes its element
}

// openPart opens or creates the part with a name for a file of size bytes. It keeps what an earlier
// run has downloaded.
func openPart(root *os.Root, name string, size, piece int64, wrap func(io.WriterAt) io.WriterAt) (*part, error) {
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	p := &part{f: f, w: f, size: size, piece: max(piece, (size+maxPieces-1)/maxPieces, 1)}
	if wrap != nil {
		p.w = wrap(f)
	}
	st, err := f.Stat()
	if err == nil && !p.load(st.Size()) {
		err = p.reset()
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return p, nil
}

// load reads the trailer of a file of n bytes. It reports whether the file is a part of this size.
func (p *part) load(n int64) bool {
	if n == p.size && n > 0 {
		p.count = p.full()
		return true
	}
	head := make([]byte, len(partMagic)+16)
	if _, err := p.f.ReadAt(head, p.size); err != nil || !bytes.HasPrefix(head, partMagic) {
		return false
	}
	size, piece := int64(binary.LittleEndian.Uint64(head[8:])), int64(binary.LittleEndian.Uint64(head[16:]))
	if size != p.size || piece < 1 || (size+piece-1)/piece > maxPieces {
		return false
	}
	p.piece = piece
	full := p.full()
	count := make([]byte, 8*len(full))
	if n != p.size+int64(len(head)+len(count)) {
		return false
	}
	if _, err := p.f.ReadAt(count, p.size+int64(len(head))); err != nil {
		return false
	}
	p.count = make([]int64, len(full))
	for k := range p.count {
		p.count[k] = int64(binary.LittleEndian.Uint64(count[8*k:]))
		if p.count[k] < 0 || p.count[k] > full[k] {
			return false
		}
	}
	return true
}

// full returns the number of bytes of each piece.
func (p *part) full() []int64 {
	n := make([]int64, (p.size+p.piece-1)/p.piece)
	for k := range n {
		n[k] = min(p.piece, p.size-int64(k)*p.piece)
	}
	return n
}

// reset forgets what has been downloaded.
func (p *part) reset() error {
	if err := p.f.Truncate(0); err != nil {
		return err
	}
	p.count = make([]int64, len(p.full()))
	trailer := binary.LittleEndian.AppendUint64(bytes.Clone(partMagic), uint64(p.size))
	trailer = binary.LittleEndian.AppendUint64(trailer, uint64(p.piece))
	_, err := p.w.WriteAt(append(trailer, make([]byte, 8*len(p.count))...), p.size)
	return err
}

// done returns the number of bytes that are there.
func (p *part) done() (n int64) {
	for _, c := range p.count {
		n += c
	}
	return n
}

// add appends bytes to piece k and records them.
func (p *part) add(k int, b []byte) error {
	if _, err := p.w.WriteAt(b, int64(k)*p.piece+p.count[k]); err != nil {
		return err
	}
	n := p.count[k] + int64(len(b))
	at := p.size + int64(len(partMagic)+16+8*k)
	if _, err := p.w.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(n)), at); err != nil {
		return err
	}
	p.count[k] = n
	return nil
}

// newHash returns the hash function for a file: SHA-256, or Git's hash of a blob.
func newHash(f File) (h hash.Hash, name string) {
	if len(f.Hash) == 2*sha256.Size {
		return sha256.New(), "SHA-256"
	}
	h = sha1.New()
	io.WriteString(h, "blob "+strconv.FormatInt(f.Size, 10)+"\x00")
	return h, "Git hash"
}

// verify compares the hash of the content with the one that the hub announced.
func (p *part) verify(ctx context.Context, f File) error {
	h, name := newHash(f)
	buf := make([]byte, 1<<20)
	for at := int64(0); at < p.size; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := p.f.ReadAt(buf[:min(int64(len(buf)), p.size-at)], at)
		if n == 0 {
			return fmt.Errorf("reading the download: %w", err)
		}
		h.Write(buf[:n])
		at += int64(n)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != f.Hash {
		return fail(fmt.Sprintf("the %s of the download is %s, want %s; it was deleted", name, got, f.Hash), ErrContent)
	}
	return nil
}

// finish removes the trailer and closes the file. The content is on the disk afterwards.
func (p *part) finish() error {
	err := p.f.Truncate(p.size)
	if err == nil {
		err = p.f.Sync()
	}
	if closeErr := p.f.Close(); err == nil {
		err = closeErr
	}
	return err
}
