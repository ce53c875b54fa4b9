package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const (
	windowSize = 64 << 10

	// maxMemory bounds the memory of a decoded header. The largest vocabularies (262k tokens,
	// 515k merges) take about 25 MiB.
	maxMemory = 96 << 20
)

// errMemory reports a header larger than any real one.
var errMemory = fmt.Errorf("header takes more than %d MiB", maxMemory>>20)

// reader reads little-endian values sequentially through a window of the file.
type reader struct {
	r      io.ReaderAt
	size   uint64 // size of the file in bytes
	pos    uint64 // offset of the next value, at most size
	window []byte // bytes of the file, beginning at start
	start  uint64
	buf    []byte // the memory that backs window
	memory uint64 // bytes that may still be allocated
}

func newReader(r io.ReaderAt, size uint64) *reader {
	return &reader{r: r, size: size, buf: make([]byte, min(size, windowSize)), memory: maxMemory}
}

func (d *reader) left() uint64 { return d.size - d.pos }

// eof returns the error for a read of n bytes beyond the end of the file.
func (d *reader) eof(n uint64) error {
	return fmt.Errorf("%d bytes at %d are past the end of the file at %d: %w", n, d.pos, d.size, io.ErrUnexpectedEOF)
}

// next returns the next n bytes, at most windowSize. They are valid until the next call.
func (d *reader) next(n uint64) ([]byte, error) {
	if n > d.left() {
		return nil, d.eof(n)
	}
	if d.pos < d.start || d.pos+n > d.start+uint64(len(d.window)) {
		if err := d.fill(); err != nil {
			return nil, err
		}
	}
	b := d.window[d.pos-d.start:][:n]
	d.pos += n
	return b, nil
}

// fill moves the window to pos.
func (d *reader) fill() error {
	b := d.buf[:min(uint64(len(d.buf)), d.left())]
	if n, err := d.r.ReadAt(b, int64(d.pos)); n < len(b) {
		d.window = nil
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // the file is shorter than the size passed to Decode
		}
		return fmt.Errorf("read at %d: %w", d.pos, err)
	}
	d.window, d.start = b, d.pos
	return nil
}

func (d *reader) skip(n uint64) error {
	if n > d.left() {
		return d.eof(n)
	}
	d.pos += n
	return nil
}

// charge subtracts n from the bytes that may still be allocated.
func (d *reader) charge(n uint64) error {
	if n > d.memory {
		return errMemory
	}
	d.memory -= n
	return nil
}

// checkCount checks that the rest of the file has room for count items of at least minSize
// bytes, and charges cost bytes of memory for each.
func (d *reader) checkCount(count, minSize, cost uint64) error {
	if count > d.left()/minSize {
		return fmt.Errorf("count %d does not fit in the remaining %d bytes: %w", count, d.left(), io.ErrUnexpectedEOF)
	}
	if count > maxMemory {
		return errMemory
	}
	return d.charge(count * cost)
}

func (d *reader) uint32() (uint32, error) {
	b, err := d.next(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (d *reader) uint64() (uint64, error) {
	b, err := d.next(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// stringLen reads the length of a string and checks that the file contains that many bytes.
func (d *reader) stringLen() (uint64, error) {
	n, err := d.uint64()
	if err != nil {
		return 0, err
	}
	if n > d.left() {
		return 0, fmt.Errorf("string: %w", d.eof(n))
	}
	return n, nil
}

func (d *reader) string() (string, error) {
	n, err := d.stringLen()
	if err != nil {
		return "", err
	}
	if err := d.charge(n); err != nil {
		return "", err
	}
	var b strings.Builder
	b.Grow(int(n))
	if err := d.copyTo(&b, n); err != nil {
		return "", err
	}
	return b.String(), nil
}

// name reads a key or the name of a tensor.
func (d *reader) name() (string, error) {
	n, err := d.stringLen()
	if err != nil {
		return "", err
	}
	if n == 0 || n > maxName {
		return "", fmt.Errorf("is %d bytes long, want 1 to %d", n, maxName)
	}
	if err := d.charge(n); err != nil {
		return "", err
	}
	b, err := d.next(n)
	if err != nil {
		return "", err
	}
	return string(b), nil
}

// copyTo reads n bytes and appends them to b.
func (d *reader) copyTo(b *strings.Builder, n uint64) error {
	for n > 0 {
		chunk, err := d.next(min(n, windowSize))
		if err != nil {
			return err
		}
		b.Write(chunk)
		n -= uint64(len(chunk))
	}
	return nil
}

// quote returns a key or name for an error message. It quotes and shortens long or unusual
// names, so that the message stays on one line.
func quote(s string) string {
	const limit = 128
	plain := len(s) <= limit
	for i := 0; plain && i < len(s); i++ {
		plain = s[i] > ' ' && s[i] < 0x7f
	}
	if plain {
		return s
	}
	if len(s) > limit {
		return strconv.QuoteToASCII(s[:limit]) + "..."
	}
	return strconv.QuoteToASCII(s)
}
