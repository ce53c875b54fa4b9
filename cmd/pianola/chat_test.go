package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// chatTemplate writes a chat template to a file and returns its path.
func chatTemplate(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "chat.jinja")
	text := "{% for m in messages %}{{ m.content }}{{ suffix }}\n{% endfor %}"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestChatPipe(t *testing.T) {
	args := []string{"chat", gopher, "--template-file", chatTemplate(t), "-n", "8", "--device", "cpu"}
	o := runWith(t, t.Context(), "func main() {\n/stats\n\nreturn nil\n/stats\n/reset\nfunc main() {\n/help\n/nonsense\n/exit\nnot read\n", args...)
	if o.status != 0 || strings.Count(o.stderr, "\n") != 1 || !strings.Contains(o.stderr, "no command /nonsense") {
		t.Fatalf("status %d, standard error %q", o.status, o.stderr)
	}
	first, rest, ok := strings.Cut(o.stdout, "\n") // an answer of 8 tokens may contain line breaks
	stats := 0
	for line := range strings.Lines(o.stdout) {
		if strings.Contains(line, "tokens prefilled") {
			stats++
			if reuses := !strings.Contains(line, " 0 reused from the context"); reuses != (stats == 2) {
				t.Errorf("turn %d: %s", stats, line)
			}
		}
	}
	if !ok || stats != 2 || !strings.Contains(rest, "/reset") || strings.Contains(o.stdout, "not read") {
		t.Errorf("standard output is %q", o.stdout)
	}
	// After /reset the same message gets the same answer.
	if strings.Count(o.stdout, first) < 2 {
		t.Errorf("%q does not occur twice in %q", first, o.stdout)
	}

	// The template receives the variables and the system message.
	o = runWith(t, t.Context(), "func main() {\n", append(args, "--var", `suffix="}"`, "--system", "package main")...)
	if o.status != 0 || o.stdout == "" {
		t.Errorf("status %d, standard error %q", o.status, o.stderr)
	}
}

func TestChatErrors(t *testing.T) {
	template := chatTemplate(t)
	for _, c := range []struct {
		stdin string
		args  []string
		want  string
	}{
		{"", nil, "no such chat template"},
		{"", []string{"--template", "x"}, "no such chat template"},
		{"", []string{"--template-file", "nowhere"}, "nowhere"},
		{"", []string{"--template-file", template, "--var", "x"}, "want NAME=JSON"},
		{"", []string{"--template-file", template, "--var", "x=y"}, "want NAME=JSON"},
		{"", []string{"--template-file", template, "--temp", "-1"}, "--temp"},
		{"a<|end_of_text|>\n", []string{"--template-file", template}, "special token"},
	} {
		wantError(t, runWith(t, t.Context(), c.stdin, append([]string{"chat", gopher}, c.args...)...), statusFailed, c.want)
	}
	wantError(t, runCommand(t, "chat", gopher, "--template-file", template, "--template", "x"), statusUsage, "exclude each other")
}
