package hub

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/hub/hubtest"
)

// childVariable makes the test binary pull a model instead of running tests. Its value is the
// endpoint, the cache and the ID, separated by spaces.
const childVariable = "PIANOLA_HUB_TEST_CHILD"

func TestMain(m *testing.M) {
	words := strings.Fields(os.Getenv(childVariable))
	if len(words) == 0 {
		os.Exit(m.Run())
	}
	id, err := ParseID(words[2])
	if err == nil {
		c := &Client{Endpoint: words[0], Cache: words[1], Piece: 64 << 10}
		_, err = c.Pull(context.Background(), id)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child returns a process that pulls org/m.
func child(t *testing.T, s *hubtest.Server, c *Client) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s org/m", childVariable, c.Endpoint, c.Cache))
	return cmd
}

// TestWaiting pulls a file that another client is downloading. The second client says that it waits.
func TestWaiting(t *testing.T) {
	s := hubtest.New(t)
	s.Pause = 10 * time.Millisecond
	s.Add("org/m", map[string][]byte{"m-Q8_0.gguf": noise(1, 100<<10)})
	first := client(t, s)
	second := *first
	waits := make(chan string, 10)
	second.Note = func(text string) { waits <- text }
	done := make(chan error)
	first.Progress = func(uint64, uint64) {
		first.Progress = nil
		go func() { _, err := second.Pull(t.Context(), ID{"org", "m", "", "main"}); done <- err }()
		if text := <-waits; text != "another process is downloading m-Q8_0.gguf" {
			t.Error(text)
		}
	}
	pull(t, first, s, "org/m")
	if err := <-done; err != nil || s.Sent() != 100<<10 {
		t.Errorf("the second client: %v", err)
	}
}

// TestTwoProcesses pulls one model in three processes at once. Each file is transferred once.
func TestTwoProcesses(t *testing.T) {
	s := hubtest.New(t)
	s.Pause = 2 * time.Millisecond
	s.Add("org/m", hfFiles())
	c := client(t, s)
	var total int64
	for name, b := range hfFiles() {
		if name != "README.md" && name != "pytorch_model.bin" {
			total += int64(len(b))
		}
	}
	errs := make(chan error, 3)
	for range 3 {
		cmd := child(t, s, c)
		go func() {
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			errs <- err
		}()
	}
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if sent := s.Sent(); sent != total {
		t.Errorf("%d bytes were sent, want %d", sent, total)
	}
	checkCache(t, c, s)
	left, _ := filepath.Glob(filepath.Join(c.Cache, "models--org--m", "*", "*"+partExt+"*"))
	if found, err := c.Cached(mustParse(t, "org/m")); err != nil || len(left) != 0 {
		t.Errorf("%s, %v; left over: %q", found, err, left)
	}
}

// killAfter runs a process and kills it after the server has sent about n bytes. It returns the number
// of bytes that were sent, and what the process wrote and returned.
func killAfter(t *testing.T, s *hubtest.Server, cmd *exec.Cmd, n int64) (sent int64, stderr string, err error) {
	t.Helper()
	var text strings.Builder
	cmd.Stderr = &text
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case err := <-done:
			return sent + s.Sent(), text.String(), err
		case <-time.After(time.Millisecond):
			if sent += s.Sent(); sent > n {
				cmd.Process.Kill()
			}
		}
	}
}

// TestKill kills a process that pulls a model, after random numbers of bytes, until one succeeds. The cache is whole
// after each kill, and what was received is not transferred again, except for what was in buffers.
func TestKill(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a killed process keeps its files open for a moment")
	}
	s := hubtest.New(t)
	s.Pause = 5 * time.Millisecond
	model := noise(9, 2<<20)
	s.Add("org/m", map[string][]byte{"m-Q8_0.gguf": model})
	const buffers = 3 << 20 // of sockets and pipes, for 8 connections and one kill
	late := 0
	for round := 0; round < exhaustive.Pick(20, 3); round++ {
		c := client(t, s)
		kills, sent := 0, int64(0)
		for {
			now, stderr, err := killAfter(t, s, child(t, s, c), rand.Int64N(600_000))
			sent += now
			checkCache(t, c, s)
			if err == nil {
				break
			}
			if stderr != "" {
				t.Fatalf("round %d: %s", round, stderr)
			}
			if kills++; kills > 100 {
				t.Fatal("the download does not proceed")
			}
		}
		if kills == 0 && late < 20 { // this goroutine did not run until everything had been sent
			late++
			round--
			continue
		}
		if path, err := c.Cached(mustParse(t, "org/m")); err != nil || kills == 0 {
			t.Errorf("round %d: %s, %v after %d kills", round, path, err, kills)
		}
		if most := int64(len(model)) + int64(kills)*buffers/8; sent > most {
			t.Errorf("round %d: %d bytes were sent in %d kills, want at most %d", round, sent, kills, most)
		}
		t.Logf("round %d: %d kills, %d of %d bytes sent", round, kills, sent, len(model))
	}
}

// TestPart opens parts of every damaged form. A damaged one begins again, and none panics.
func TestPart(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	content := noise(1, 1000)
	p, err := openPart(root, "p", 1000, 300, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, n := range []int{300, 10, 0, 100} {
		if err := p.add(k, content[300*k:][:n]); err != nil {
			t.Fatal(err)
		}
	}
	p.f.Close()
	good, err := root.ReadFile("p")
	if err != nil {
		t.Fatal(err)
	}
	open := func(b []byte, size int64) *part {
		t.Helper()
		if err := root.WriteFile("p", b, 0o666); err != nil {
			t.Fatal(err)
		}
		p, err := openPart(root, "p", size, 300, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.f.Close()
		for k, n := range p.full() {
			if p.count[k] < 0 || p.count[k] > n {
				t.Errorf("piece %d has %d bytes", k, p.count[k])
			}
		}
		return p
	}
	if p := open(good, 1000); p.done() != 410 {
		t.Errorf("%d bytes", p.done())
	}
	if p := open(content, 1000); p.done() != 1000 {
		t.Errorf("without a trailer: %d bytes", p.done())
	}
	for _, n := range []int{0, 1, 999, 1001, 1020, len(good) - 1} {
		if p := open(good[:n], 1000); p.done() != 0 {
			t.Errorf("cut to %d: %d bytes", n, p.done())
		}
	}
	if p := open(good, 999); p.done() != 0 {
		t.Errorf("of another size: %d bytes", p.done())
	}
	for at := 1000; at < len(good); at++ {
		for _, v := range []byte{0, 1, 0x7f, 0x80, 0xff} {
			b := append([]byte{}, good...)
			b[at] = v
			open(b, 1000)
		}
	}
}

// TestKilledBeforeRename leaves a complete part without its trailer, as a process does that is killed
// between the last two steps. The next run transfers nothing.
func TestKilledBeforeRename(t *testing.T) {
	s := hubtest.New(t)
	model := noise(1, 100_000)
	s.Add("org/m", map[string][]byte{"m-Q8_0.gguf": model})
	for _, content := range [][]byte{model, noise(2, len(model))} {
		c := client(t, s)
		at := filepath.Join(c.Cache, "models--org--m", "blobs", hubtest.Hash("m.gguf", model)+partExt)
		if err := os.MkdirAll(filepath.Dir(at), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, content, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Pull(t.Context(), mustParse(t, "org/m")); err != nil {
			wantError(t, err, "the SHA-256 of the download", ErrContent)
		}
		pull(t, c, s, "org/m")
		if sent := s.Sent(); sent != 0 && sent != int64(len(model)) {
			t.Errorf("%d bytes were sent", sent)
		}
	}
}
