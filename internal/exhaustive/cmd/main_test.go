package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestDependent finds the tests of a package that use package exhaustive in each way.
func TestDependent(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"p.go": "package p\n\nfunc double(n int) int { return 2 * n }\n",
		"a_test.go": `package p

var size = exhaustive.Pick(2, 1)

type device struct{ n int }

func (d device) rows() int { return size }

func (d device) columns() int { return 1 }

func cases() []device { return make([]device, size) }

func both(t *testing.T, n int) { double(n) }

func TestMain(m *testing.M) { os.Exit(m.Run() + size) }

func TestDirectly(t *testing.T) { exhaustive.Only(t, "no sample") }

func TestThroughVariable(t *testing.T) { both(t, size) }

func TestThroughFunction(t *testing.T) {
	for _, d := range cases() {
		both(t, d.n)
	}
}

func TestThroughMethod(t *testing.T) { both(t, device{}.rows()) }

func FuzzToo(f *testing.F) { f.Add(size) }

func TestOther(t *testing.T) { both(t, device{}.columns()) }

func ExampleOther() { double(1) }
`,
		"b_test.go": "//go:build linux && !exhaustive\n\npackage p\n\nfunc TestTagged(t *testing.T) {}\n",
		"c_test.go": "//go:build linux\n\npackage p\n\nfunc TestOfLinux(t *testing.T) {}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := dependent(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"TestDirectly", "TestThroughVariable", "TestThroughFunction", "TestThroughMethod", "FuzzToo", "TestTagged"}
	if !slices.Equal(got, want) {
		t.Errorf("tests %v, want %v", got, want)
	}
}

// TestRun makes the pattern for a package of the repository. A package without such tests is an error,
// and so is one that go list does not find.
func TestRun(t *testing.T) {
	pattern, err := run([]string{".."})
	if want := "^(TestOnly|TestPick)$"; err != nil || pattern != want {
		t.Errorf("pattern %q, want %q: %v", pattern, want, err)
	}
	for _, c := range []struct {
		packages []string
		want     string
	}{
		{nil, "no packages"}, {[]string{"../../activation"}, "no test depends on the tag"}, {[]string{"./missing"}, "go list"},
	} {
		if pattern, err := run(c.packages); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("packages %v: pattern %q, error %v, want %q", c.packages, pattern, err, c.want)
		}
	}
}
