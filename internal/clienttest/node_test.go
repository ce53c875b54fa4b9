package clienttest

import (
	"context"
	"flag"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var node = flag.String("node", "", "directory with the files of the directory node and its installed packages")

// TestNode runs the tests of the npm packages, each against a service of its own.
func TestNode(t *testing.T) {
	if *node == "" {
		t.Skip("without -node, the npm packages are not tested")
	}
	scripts, err := filepath.Glob(filepath.Join(*node, "*.test.mjs"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%s has no tests: %v", *node, err)
	}
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(script), ".test.mjs"), func(t *testing.T) {
			t.Parallel()
			start(t).run(t, script)
		})
	}
}

// run runs a script against the service. All its tests must pass, and there must be some.
func (s *service) run(t *testing.T, script string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "node", script, s.url, s.control, key).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if passed := strings.Count(string(out), "\n✔ ") + strings.Count(string(out), "\nok "); passed == 0 && err == nil {
		t.Errorf("no test has passed:\n%s", out)
	}
}
