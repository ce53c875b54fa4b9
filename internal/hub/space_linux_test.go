package hub

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pianola-engine/pianola/internal/hub/hubtest"
)

// TestSmallDisk pulls to a file system that is too small, and again after it has grown. The first
// check of the space is made to pass once, as if another program filled the disk afterwards.
func TestSmallDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Skipf("mounting a small file system needs a privilege: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s := hubtest.New(t)
	model := noise(1, 1<<20)
	s.Add("org/m", map[string][]byte{"m-Q8_0.gguf": model})
	c := client(t, s)
	c.Cache = filepath.Join(dir, "hub")
	_, err := c.Pull(t.Context(), mustParse(t, "org/m"))
	wantError(t, err, "17 MiB are needed", ErrNoSpace)
	if s.Sent() != 0 {
		t.Error("bytes were sent although the space does not suffice")
	}
	c.free = func(string) (uint64, error) { return 1 << 40, nil }
	_, err = c.Pull(t.Context(), mustParse(t, "org/m"))
	wantError(t, err, "the disk is full", ErrNoSpace)
	checkCache(t, c, s)
	s.Sent()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=32m"); err != nil {
		t.Fatal(err)
	}
	c.free = nil
	pull(t, c, s, "org/m")
	if again := s.Sent(); again > int64(len(model))*3/4 {
		t.Errorf("%d of %d bytes were sent again", again, len(model))
	}
}
