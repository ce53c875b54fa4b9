package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pseudoterminal opens a pseudoterminal and returns both of its ends.
func pseudoterminal(t *testing.T) (user, terminal *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("the system has no pseudoterminals: ", err)
	}
	t.Cleanup(func() { user.Close() })
	n, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return user, terminal
}

// screen collects the output of a command and lets a test wait for a text.
type screen struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// until waits until the screen satisfies a condition.
func (s *screen) until(t *testing.T, what string, holds func(text string) bool) {
	t.Helper()
	await(t, what, func() bool { return holds(s.String()) }, s.String)
}

// await waits until a condition holds; state describes what there is if it does not.
func await(t *testing.T, what string, holds func() bool, state func() string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: there is %q", what, state())
		}
	}
}

// heldScreen is a screen that can hold back whoever writes to it.
type heldScreen struct {
	screen
	mu      sync.Mutex
	most    int           // bytes that may be written before Write waits; 0 for any number
	release chan struct{} // ends the wait
	waits   bool
}

// hold makes Write wait as soon as more than n further bytes have been written. It returns a function
// that reports whether Write waits and one that lets it go on.
func (s *heldScreen) hold(n int) (waits func() bool, release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most, s.release = len(s.String())+n, make(chan struct{})
	waits = func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.waits
	}
	return waits, sync.OnceFunc(func() { close(s.release) })
}

func (s *heldScreen) Write(p []byte) (int, error) {
	n, err := s.screen.Write(p)
	s.mu.Lock()
	wait := s.release
	if s.most == 0 || len(s.String()) <= s.most {
		wait = nil
	}
	s.waits = wait != nil
	s.mu.Unlock()
	if wait != nil {
		<-wait
	}
	return n, err
}

// startedBy returns how many goroutines a function has started that have not ended.
func startedBy(function string) int {
	b := make([]byte, 1<<20)
	return strings.Count(string(b[:runtime.Stack(b, true)]), "created by "+function+" in goroutine ")
}

// TestChatTerminal edits lines, recalls an earlier one, and interrupts an answer.
func TestChatTerminal(t *testing.T) {
	user, terminal := pseudoterminal(t)
	var out heldScreen
	var errs screen
	status := make(chan int)
	args := []string{"chat", gopher, "--template-file", chatTemplate(t), "--device", "cpu", "--chain", "1"}
	go func() { status <- execute(t.Context(), args, terminal, &out, &errs) }()
	prompts := 0
	// enter types text when the next prompt has appeared: before it, the terminal is not in raw mode.
	enter := func(text string) {
		t.Helper()
		prompts++
		errs.until(t, fmt.Sprintf("prompt %d", prompts), func(s string) bool { return strings.Count(s, "> ") >= prompts })
		fmt.Fprint(user, text)
	}
	enter("/helx\x7fp\r") // a backspace
	out.until(t, "help", func(s string) bool { return strings.Contains(s, "/reset ") && strings.Contains(s, "/exit ") })

	waits, release := out.hold(100)
	defer release() // the command must not outlive the test
	enter("func main() {\r")
	await(t, "an answer", waits, out.String)
	// The answer must not end before the interrupt has cancelled it. While its writer waits, only an
	// interrupt ends the goroutine that turn starts to wait for one, after it has cancelled the turn.
	const turn = "github.com/pianola-engine/pianola/cmd/pianola.(*talk).turn"
	if n := startedBy(turn); n != 1 {
		t.Fatalf("%d goroutines wait for an interrupt, want 1", n)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	await(t, "the end of the wait for an interrupt", func() bool { return startedBy(turn) == 0 }, errs.String)
	release()
	errs.until(t, "the interrupt", func(s string) bool { return strings.Contains(s, "the conversation continues") })

	enter("/stats\r")
	out.until(t, "figures", func(s string) bool { return strings.Contains(s, "0 reused from the context") })
	seen := len(out.String())
	enter("\x1b[A\r") // arrow up recalls the previous line, /stats
	out.until(t, "figures again", func(s string) bool { return strings.Contains(s[seen:], "tokens prefilled") })
	enter("\x04") // ctrl-D
	if s := <-status; s != 0 {
		t.Errorf("status %d, standard error %q", s, errs.String())
	}
}
