package replay

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/pianola-engine/pianola/table"
)

// A snapshot is a session's context on disk. All integers are little-endian.
//
//	 0  magic      "PIANOLS\x1a"
//	 8  version    u32, SnapshotVersion
//	12  flags      u32: 1: a token is pending; 2: of the parts below there are only tokens and checksum
//	16  model      [32]u8, the table's fingerprint of the model
//	48  table      [32]u8, fingerprint of the table
//	80  context    u32, the table's
//	84  positions  u32, in the KV caches
//	88  written    u32, positions that a rotating cache has seen
//	92  vocab      u32, the table's
//	96  rolls      u32, how often the context has rolled over
//	100 tokens     u32 each: of all positions, then the pending one
//	    logits     [vocab] float32 that the pending token was chosen from, if there is one
//	    states     of layers with recurrent state, if the model has such layers: the position u32, at most
//	               that of the context, and for each layer the state there, from which the rest of the
//	               context is prefilled again
//	    rows       of the KV caches, those that are in use
//	    checksum   SHA-256 of all bytes before it
//
// Rows are stored in blocks of snapshotRows, so that Restore allocates memory only for rows
// that it has read. Each block holds, for every cache in the order of slots, the rows of
// each head, then the scales of each head if the cache has scales. The rows have the layout
// of the table's slots, so any device that replays the table can restore them. If the
// caches of a table cannot be divided into rows, the snapshot holds the whole caches.
//
// A snapshot of a model for many sequences has only tokens: the next call of the session that is restored
// computes their rows again, with the same bits, unless the pages of other sessions have them.
const (
	snapshotMagic  = "PIANOLS\x1a"
	snapshotHeader = 100
	snapshotRows   = 256

	flagPending = 1
	flagTokens  = 2
)

// SnapshotVersion is the version of the format that Snapshot writes and Restore reads.
const SnapshotVersion = 1

// Errors of Restore. Other errors that Restore returns come from the reader or the device,
// or are ErrClosed.
var (
	ErrNotSnapshot     = errors.New("replay: not a snapshot of a session")
	ErrSnapshotVersion = errors.New("replay: unknown version of the snapshot format")
	ErrSnapshotModel   = errors.New("replay: the snapshot belongs to another model")
	ErrSnapshotTable   = errors.New("replay: the snapshot belongs to another table of this model")
	ErrSnapshotDamaged = errors.New("replay: the snapshot is damaged")
)

// Snapshot writes the context to w: its tokens, the logits of the pending token, and the
// rows of the KV caches in use. It does not write stop ids and other options.
func (s *Session) Snapshot(w io.Writer) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.done()
	if err := s.ready(); err != nil {
		return err
	}
	s.settle()
	sum := sha256.New()
	out := bufio.NewWriterSize(w, 1<<18)
	if err := s.snapshot(io.MultiWriter(out, sum)); err != nil {
		return s.closedOr(err)
	}
	if _, err := out.Write(sum.Sum(nil)); err != nil {
		return err
	}
	return out.Flush()
}

func (s *Session) snapshot(w io.Writer) error {
	fingerprint, err := s.m.fingerprint()
	if err != nil {
		return err
	}
	h := &s.m.t.Header
	b := append(make([]byte, 0, snapshotHeader), snapshotMagic...)
	flags := uint32(0)
	if s.pending {
		flags = flagPending
	}
	high := s.high
	if s.par != nil {
		flags, high = flags|flagTokens, s.n
	}
	le := binary.LittleEndian
	b = le.AppendUint32(b, SnapshotVersion)
	b = le.AppendUint32(b, flags)
	b = append(b, h.ModelFP[:]...)
	b = append(b, fingerprint[:]...)
	for _, v := range []uint32{h.Context, uint32(s.n), uint32(high), h.Vocab, s.rolls} {
		b = le.AppendUint32(b, v)
	}
	if s.par != nil {
		for _, id := range s.par.c.Tokens() {
			b = le.AppendUint32(b, uint32(id))
		}
	}
	if _, err := w.Write(b); err != nil || s.par != nil {
		return err
	}
	return s.eachPart(func(slot uint32, offset uint64, p []byte, _ int) error {
		if slot == table.NoSlot {
			_, err := w.Write(p)
			return err
		}
		if err := s.m.dev.Read(s.id, slot, offset, p); err != nil {
			return err
		}
		_, err := w.Write(p)
		return err
	})
}

// eachPart calls f with each part of the session's slots that a snapshot contains, in
// order: its slot and offset, a buffer of its size, and the number of positions for which
// the KV caches must have room.
func (s *Session) eachPart(f func(slot uint32, offset uint64, p []byte, positions int) error) error {
	tokens := s.n
	if s.pending {
		tokens++
	}
	if tokens > 0 {
		if err := f(s.m.tokens, 0, s.bytes[:4*tokens], 0); err != nil {
			return err
		}
	}
	if s.pending {
		if err := f(s.m.logits, uint64(s.row)*uint64(s.m.t.Header.Vocab)*4, make([]byte, 4*s.m.t.Header.Vocab), 0); err != nil {
			return err
		}
	}
	if s.n == 0 {
		return nil
	}
	if err := s.eachState(f); err != nil {
		return err
	}
	if s.m.caches == nil {
		return s.eachSlot(f)
	}
	var buf []byte
	for from := 0; from < s.n; from += snapshotRows {
		positions := min(from+snapshotRows, s.n)
		for i := range s.m.caches {
			c := &s.m.caches[i]
			first, end := c.Used(from), c.Used(positions)
			for part := range c.Parts() {
				offset, size := c.Span(part, first, end)
				if size == 0 {
					continue
				}
				if uint64(len(buf)) < size {
					buf = make([]byte, size)
				}
				if err := f(c.Slot, offset, buf[:size], positions); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// eachSlot calls f with the whole KV caches.
func (s *Session) eachSlot(f func(slot uint32, offset uint64, p []byte, positions int) error) error {
	buf := make([]byte, 1<<18)
	for i := range s.m.t.Slots {
		slot := &s.m.t.Slots[i]
		if slot.Kind != table.SlotKV {
			continue
		}
		for at := uint64(0); at < slot.Size; at += uint64(len(buf)) {
			p := buf[:min(uint64(len(buf)), slot.Size-at)]
			if err := f(uint32(i), at, p, int(s.m.t.Header.Context)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Restore returns a session with the context of a snapshot. The snapshot must come from the
// same table; the device may be a different one. Restore reads no byte after the snapshot.
// It allocates memory as it reads rows, so that a damaged file cannot make it allocate more
// than the file holds.
func (m *Model) Restore(r io.Reader, o SessionOptions) (*Session, error) {
	s, err := m.NewSession(o)
	if err != nil {
		return nil, err
	}
	if err := s.restore(r); err != nil {
		return nil, errors.Join(s.closedOr(err), s.Close())
	}
	return s, nil
}

func (s *Session) restore(r io.Reader) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.done()
	in := &snapshotReader{r: r, sum: sha256.New()}
	to, err := s.m.readHeader(in)
	if err != nil {
		return err
	}
	if s.par != nil {
		return s.restoreParallel(in, to)
	}
	s.setPlace(to)
	err = s.eachPart(func(slot uint32, offset uint64, p []byte, positions int) error {
		if err := in.read(p); err != nil {
			return err
		}
		switch slot {
		case table.NoSlot:
			return nil
		case s.m.tokens:
			if err := s.checkTokens(p); err != nil {
				return err
			}
		}
		if positions > 0 {
			if err := s.m.dev.Reserve(s.id, positions); err != nil {
				return err
			}
		}
		return s.m.dev.Write(s.id, slot, offset, p)
	})
	if err != nil {
		return err
	}
	return in.check()
}

// restoreParallel restores the context of a session of a model for many sequences.
func (s *Session) restoreParallel(in *snapshotReader, to place) error {
	n := to.n
	if to.pending {
		n++
	}
	p := make([]byte, 4*n)
	if err := in.read(p); err != nil {
		return err
	}
	if err := s.checkTokens(p); err != nil {
		return err
	}
	if err := in.check(); err != nil {
		return err
	}
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(binary.LittleEndian.Uint32(p[4*i:]))
	}
	if err := s.par.c.Set(tokens); err != nil {
		return s.parallelError(err)
	}
	s.setPlace(place{n: to.n, pending: to.pending, rolls: to.rolls})
	return nil
}

// checkTokens returns an error unless all tokens of a snapshot are in the vocabulary.
func (s *Session) checkTokens(p []byte) error {
	vocab := s.m.t.Header.Vocab
	for i := 0; i < len(p); i += 4 {
		if id := binary.LittleEndian.Uint32(p[i:]); id >= vocab {
			return fmt.Errorf("%w: token %d: id %d is not in 0..%d", ErrSnapshotDamaged, i/4, id, vocab-1)
		}
	}
	return nil
}

// snapshotReader reads a snapshot and computes its checksum.
type snapshotReader struct {
	r   io.Reader
	at  uint64
	sum hash.Hash
}

// read fills p.
func (r *snapshotReader) read(p []byte) error {
	n, err := io.ReadFull(r.r, p)
	r.at += uint64(n)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: it ends at byte %d", ErrSnapshotDamaged, r.at)
	}
	r.sum.Write(p)
	return err
}

// check reads the checksum and compares it with that of the bytes before it.
func (r *snapshotReader) check() error {
	want := r.sum.Sum(nil)
	var got [sha256.Size]byte
	if err := r.read(got[:]); err != nil {
		return err
	}
	if !bytes.Equal(got[:], want) {
		return fmt.Errorf("%w: its checksum does not match", ErrSnapshotDamaged)
	}
	return nil
}

// readHeader reads a snapshot's header and checks that it belongs to the table.
func (m *Model) readHeader(in *snapshotReader) (to place, err error) {
	fingerprint, err := m.fingerprint()
	if err != nil {
		return to, err
	}
	var b [snapshotHeader]byte
	if err := in.read(b[:len(snapshotMagic)+4]); err != nil {
		if errors.Is(err, ErrSnapshotDamaged) {
			err = ErrNotSnapshot
		}
		return to, err
	}
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	if string(b[:len(snapshotMagic)]) != snapshotMagic {
		return to, ErrNotSnapshot
	}
	if v := u32(8); v != SnapshotVersion {
		return to, fmt.Errorf("%w: %d, this program reads %d: make the snapshot again", ErrSnapshotVersion, v, SnapshotVersion)
	}
	if err := in.read(b[12:]); err != nil {
		return to, err
	}
	h := &m.t.Header
	flags, n, high := u32(12), u32(84), u32(88)
	switch {
	case [32]byte(b[16:48]) != h.ModelFP:
		return to, ErrSnapshotModel
	case [32]byte(b[48:80]) != fingerprint:
		return to, ErrSnapshotTable
	case u32(80) != h.Context || u32(92) != h.Vocab:
		return to, fmt.Errorf("%w: a context of %d and a vocabulary of %d are not the table's", ErrSnapshotDamaged, u32(80), u32(92))
	case flags&^(flagPending|flagTokens) != 0 || (flags&flagTokens != 0) != (m.engine != nil):
		return to, fmt.Errorf("%w: flags %#x", ErrSnapshotDamaged, flags)
	case n > high || high > h.Context:
		return to, fmt.Errorf("%w: %d of %d positions in a context of %d", ErrSnapshotDamaged, n, high, h.Context)
	}
	to = place{n: int(n), high: int(high), pending: flags&flagPending != 0, rolls: u32(96)}
	return to, nil
}
