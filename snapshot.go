package pianola

import (
	"bufio"
	"fmt"
	"io"
	"os"

	"github.com/pianola-engine/pianola/internal/replacefile"
	"github.com/pianola-engine/pianola/replay"
)

// Why Restore refuses a snapshot.
var (
	ErrNotSnapshot     = replay.ErrNotSnapshot
	ErrSnapshotVersion = replay.ErrSnapshotVersion
	ErrSnapshotModel   = replay.ErrSnapshotModel   // of other tensors or another configuration
	ErrSnapshotTable   = replay.ErrSnapshotTable   // compiled with other options, or for another chip
	ErrSnapshotDamaged = replay.ErrSnapshotDamaged // cut short, or changed
)

// Fork returns a new session that goes on from where s is: both then generate
// independently, each as if it had come there alone. What is in use of the KV caches is
// copied on the device. The error is ErrBusy while s generates, ErrClosed once it
// or its model is closed. Close frees the fork's memory.
func (s *Session) Fork() (*Session, error) {
	if !s.mu.TryLock() {
		return nil, ErrBusy
	}
	defer s.mu.Unlock()
	f, err := s.s.Fork()
	if err != nil {
		return nil, err
	}
	return &Session{m: s.m, s: f, reuse: s.reuse, endless: s.endless}, nil
}

// Snapshot writes the context to w, so that Restore goes on from it: tokens, the
// logits of the pending one and the rows in use of the KV caches, with the
// fingerprints of model and table and a checksum. It has the context's text in
// clear. Errors are those of Fork, and w's.
func (s *Session) Snapshot(w io.Writer) error {
	if !s.mu.TryLock() {
		return ErrBusy
	}
	defer s.mu.Unlock()
	return s.s.Snapshot(w)
}

// SnapshotFile writes the context to a file that only its owner reads. The file is
// replaced when the snapshot is complete, or stays as it was.
func (s *Session) SnapshotFile(path string) error {
	if err := replacefile.Write(path, 0o600, s.Snapshot); err != nil {
		return fmt.Errorf("pianola: snapshot %s: %w", path, err)
	}
	return nil
}

// Restore returns a session with the context of a snapshot. It must be of this
// model and of the same table, which is to say compiled with the same options for
// the same chip; the device may be another one that replays it. Otherwise the error
// is one of those above. A fingerprint of a model tells shapes, names and
// configuration: weights of one shape are not told apart. Bytes behind the snapshot are
// not read.
func (m *Model) Restore(r io.Reader, o SessionOptions) (*Session, error) {
	s, err := m.m.Restore(r, m.replayOptions(o))
	if err != nil {
		return nil, err
	}
	return &Session{m: m, s: s, reuse: !o.NoReuse, endless: o.Rollover != replay.Rollover{}}, nil
}

// RestoreFile is Restore of a file.
func (m *Model) RestoreFile(path string, o SessionOptions) (*Session, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("pianola: restore: %w", err)
	}
	defer f.Close()
	s, err := m.Restore(bufio.NewReaderSize(f, 1<<18), o)
	if err != nil {
		return nil, fmt.Errorf("pianola: restore %s: %w", path, err)
	}
	return s, nil
}
