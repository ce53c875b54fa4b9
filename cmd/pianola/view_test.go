package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestView writes pages of one table, of one with times, and of two tables.
func TestView(t *testing.T) {
	dir := t.TempDir()
	profile, out := filepath.Join(dir, "profile.json"), filepath.Join(dir, "page.html")
	if err := os.WriteFile(profile, []byte(succeed(t, "profile", gopher, "-n", "1", "--json").stdout), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{gopher}, `"differences":[]`},
		{[]string{gopher, "--times", profile}, `"total_us":`},
		{[]string{gopher, gopher, "--no-fuse-b"}, `"kind":"only in B"`},
	} {
		succeed(t, append([]string{"view", "-o", out}, tt.args...)...)
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), tt.want) {
			t.Errorf("view %v: the page lacks %s", tt.args, tt.want)
		}
	}
	wantError(t, runCommand(t, "view"), statusUsage, "one or two")
	wantError(t, runCommand(t, "view", gopher, "-o", out, "--listen", "127.0.0.1:0"), statusUsage, "exclude each other")
	wantError(t, runCommand(t, "view", gopher, "--times-b", profile), statusUsage, "requires OTHER")
	wantError(t, runCommand(t, "view", gopher, "--listen", "0.0.0.0:0"), statusFailed, "loopback only")
	wantError(t, runCommand(t, "view", gopher, "--no-fuse", "--times", profile), statusFailed, "another table")
}

// TestViewServes reads the page from the address that view prints, and interrupts view.
func TestViewServes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan int)
	go func() {
		done <- execute(ctx, []string{"view", gopher}, strings.NewReader(""), w, io.Discard)
	}()
	url, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(strings.TrimSpace(url))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(body), "Pianola table viewer") {
		t.Errorf("the page: %v, %d bytes", err, len(body))
	}
	cancel()
	if status := <-done; status != statusDone && status != statusInterrupted {
		t.Errorf("exit status %d after an interrupt", status)
	}
}
