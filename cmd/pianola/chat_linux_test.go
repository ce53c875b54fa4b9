package main

import (
	"bytes"
	"fmt"
	"os"
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
	for end := time.Now().Add(time.Minute); !holds(s.String()); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: the screen is %q", what, s.String())
		}
	}
}

// TestChatTerminal edits lines, recalls an earlier one, and interrupts an answer.
func TestChatTerminal(t *testing.T) {
	user, terminal := pseudoterminal(t)
	var out, errs screen
	status := make(chan int)
	args := []string{"chat", gopher, "--template-file", chatTemplate(t), "--device", "cpu", "--chain", "1"}
	go func() { status <- execute(t.Context(), args, terminal, &out, &errs) }()
	prompts := func(n int) func(string) bool {
		return func(text string) bool { return strings.Count(text, "> ") >= n }
	}
	errs.until(t, "the first prompt", prompts(1))
	fmt.Fprint(user, "/helx\x7fp\r") // a backspace
	out.until(t, "help", func(s string) bool { return strings.Contains(s, "/reset ") })
	errs.until(t, "the second prompt", prompts(2))
	fmt.Fprint(user, "func main() {\r")
	out.until(t, "an answer", func(s string) bool { return len(s) > 200 })
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	errs.until(t, "the interrupt", func(s string) bool { return strings.Contains(s, "the conversation continues") })
	fmt.Fprint(user, "/stats\r")
	out.until(t, "figures", func(s string) bool { return strings.Contains(s, "0 reused from the context") })
	seen := len(out.String())
	fmt.Fprint(user, "\x1b[A\r") // arrow up recalls the previous line, /stats
	out.until(t, "figures again", func(s string) bool { return strings.Contains(s[seen:], "tokens prefilled") })
	fmt.Fprint(user, "\x04") // ctrl-D
	if s := <-status; s != 0 {
		t.Errorf("status %d, standard error %q", s, errs.String())
	}
}
