package docscheck

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "rewrite the index of RATIONALE.md and the output of the commands that documents show")

// root is the repository's root, relative to this package's directory.
const root = "../.."

const (
	maxColumns      = 100 // of a line of prose
	maxTableColumns = 8
)

// A document is a Markdown file of this project.
type document struct {
	path  string // relative to the repository's root
	text  string
	lines []line
}

// line is one line of a document.
type line struct {
	number int
	text   string
	code   bool // part of a fenced or indented code block
	table  bool
}

// documents returns README.md, RATIONALE.md and everything below docs.
func documents(t *testing.T) []document {
	t.Helper()
	var docs []document
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			b, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			rel, err := filepath.Rel(root, p)
			if err != nil {
				t.Fatal(err)
			}
			docs = append(docs, document{path: filepath.ToSlash(rel), text: string(b), lines: split(string(b))})
		}
	}
	if len(docs) < 10 {
		t.Fatalf("only %d documents", len(docs))
	}
	return docs
}

func split(text string) []line {
	var lines []line
	fence, blank := false, true
	for i, s := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		l := line{number: i + 1, text: s}
		switch {
		case strings.HasPrefix(strings.TrimSpace(s), "```"):
			fence, l.code = !fence, true
		case fence:
			l.code = true
		case strings.HasPrefix(s, "    "):
			l.code = blank || len(lines) > 0 && lines[len(lines)-1].code
		case strings.HasPrefix(s, "|"):
			l.table = true
		}
		blank = strings.TrimSpace(s) == ""
		lines = append(lines, l)
	}
	return lines
}

// TestForm checks the width of prose and of tables, and that each document begins with a
// title.
func TestForm(t *testing.T) {
	for _, d := range documents(t) {
		if !strings.HasPrefix(d.text, "# ") {
			t.Errorf("%s: no title in the first line", d.path)
		}
		for _, l := range d.lines {
			switch {
			case l.code:
			case l.table:
				if n := len(cells(l.text)); n > maxTableColumns {
					t.Errorf("%s:%d: a table of %d columns, more than %d", d.path, l.number, n, maxTableColumns)
				}
			default:
				shown := link.ReplaceAllString(l.text, "]") // without link addresses
				if n := utf8.RuneCountInString(shown); n > maxColumns {
					t.Errorf("%s:%d: %d columns of prose, more than %d", d.path, l.number, n, maxColumns)
				}
			}
		}
	}
}

// cells returns the cells of one table row.
func cells(row string) []string {
	row = strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(row, "|"), "|"), `\|`, "¦")
	parts := strings.Split(row, "|")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

var (
	link = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	span = regexp.MustCompile("`([^`]+)`")
	// path matches a file or folder by its path from the repository's root.
	path = regexp.MustCompile(`^(api|arch|bench|chip|cmd|compiler|docs|examples|internal|replay|shaders|table|testdata|weights)(/[\w.*-]+)+/?$`)
	file = regexp.MustCompile(`^[\w-]+\.(go|md)$`)
)

// TestLinks checks that the targets of links and the files that documents name exist.
func TestLinks(t *testing.T) {
	docs := documents(t)
	anchors := map[string]map[string]bool{}
	for _, d := range docs {
		anchors[d.path] = map[string]bool{}
		for _, h := range headings(d, "#") {
			anchors[d.path][anchor(h)] = true
		}
	}
	for _, d := range docs {
		for _, l := range d.lines {
			if l.code {
				continue
			}
			for _, m := range link.FindAllStringSubmatch(l.text, -1) {
				if strings.Contains(m[1], "://") {
					continue
				}
				target, fragment, _ := strings.Cut(m[1], "#")
				p := d.path
				if target != "" {
					p = filepath.ToSlash(filepath.Join(filepath.Dir(d.path), target))
				}
				if _, err := os.Stat(filepath.Join(root, p)); err != nil {
					t.Errorf("%s:%d: the link to %s leads nowhere", d.path, l.number, m[1])
				} else if fragment != "" && !anchors[p][fragment] {
					t.Errorf("%s:%d: %s has no heading #%s", d.path, l.number, p, fragment)
				}
			}
			for _, m := range span.FindAllStringSubmatch(l.text, -1) {
				name := m[1]
				if !path.MatchString(name) && !file.MatchString(name) {
					continue
				}
				found, err := filepath.Glob(filepath.Join(root, name))
				if err != nil || len(found) == 0 {
					// A document may name a file in its own folder without a path.
					if found, _ = filepath.Glob(filepath.Join(root, filepath.Dir(d.path), name)); len(found) == 0 {
						t.Errorf("%s:%d: %s does not exist", d.path, l.number, name)
					}
				}
			}
		}
	}
}

// headings returns the texts of the document's headings that begin with prefix.
func headings(d document, prefix string) []string {
	var texts []string
	for _, l := range d.lines {
		if !l.code && strings.HasPrefix(l.text, prefix) {
			if text, ok := strings.CutPrefix(strings.TrimLeft(l.text, "#"), " "); ok {
				texts = append(texts, text)
			}
		}
	}
	return texts
}

// anchor returns the URL fragment that GitHub derives from a heading.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 0x7f:
			return r
		}
		return -1
	}, strings.ToLower(heading))
}

// TestSymbols reads every table whose first columns are "file" and "symbol". Each file must
// contain the symbols in its row.
func TestSymbols(t *testing.T) {
	checked := 0
	for _, d := range documents(t) {
		symbols := false
		for _, l := range d.lines {
			if !l.table {
				symbols = false
				continue
			}
			c := cells(l.text)
			if len(c) > 2 && c[0] == "file" && c[1] == "symbol" {
				symbols = true
				continue
			}
			if !symbols || strings.HasPrefix(l.text, "|--") {
				continue
			}
			var text strings.Builder
			for _, m := range span.FindAllStringSubmatch(c[0], -1) {
				found, err := filepath.Glob(filepath.Join(root, m[1]))
				if err != nil || len(found) == 0 {
					t.Errorf("%s:%d: %s does not exist", d.path, l.number, m[1])
				}
				for _, f := range found {
					b, err := os.ReadFile(f)
					if err != nil {
						continue // a folder
					}
					text.Write(b)
				}
			}
			for _, m := range span.FindAllStringSubmatch(c[1], -1) {
				checked++
				if !regexp.MustCompile(`\b` + regexp.QuoteMeta(m[1]) + `\b`).MatchString(text.String()) {
					t.Errorf("%s:%d: %s has no %s", d.path, l.number, c[0], m[1])
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no document has a table of files and symbols")
	}
}

// TestRationale checks that every answer in docs/rationale has a question as its heading, and
// that RATIONALE.md lists all questions. The flag -update rewrites the list.
func TestRationale(t *testing.T) {
	const mark = "<!-- the index: go test ./internal/docscheck -update -->\n"
	var index strings.Builder
	var have document
	for _, d := range documents(t) {
		if d.path == "RATIONALE.md" {
			have = d
		}
		if !strings.HasPrefix(d.path, "docs/rationale/") {
			continue
		}
		title, _, _ := strings.Cut(strings.TrimPrefix(d.text, "# "), "\n")
		fmt.Fprintf(&index, "\n## %s\n\n", title)
		questions := headings(d, "## ")
		if len(questions) == 0 {
			t.Errorf("%s has no question", d.path)
		}
		for _, q := range questions {
			if !strings.HasSuffix(q, "?") {
				t.Errorf("%s: the heading %q is not a question", d.path, q)
			}
			fmt.Fprintf(&index, "- [%s](%s#%s)\n", q, d.path, anchor(q))
		}
	}
	head, list, ok := strings.Cut(have.text, mark)
	if !ok {
		t.Fatalf("RATIONALE.md has no line %q", mark)
	}
	if list == index.String() {
		return
	}
	if !*update {
		t.Fatal("RATIONALE.md does not list all questions of docs/rationale: run go test ./internal/docscheck -update")
	}
	if err := os.WriteFile(filepath.Join(root, "RATIONALE.md"), []byte(head+mark+index.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestDependencies checks that docs/rationale/dependencies.md gives a reason for each module
// in go.mod.
func TestDependencies(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "docs/rationale/dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seen := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		name, _, ok := strings.Cut(strings.TrimPrefix(s.Text(), "\t"), " v")
		if !ok || strings.Contains(s.Text(), "// indirect") {
			continue
		}
		seen++
		if !strings.Contains(string(b), "| "+name) {
			t.Errorf("docs/rationale/dependencies.md gives no reason for %s", name)
		}
	}
	if seen < 5 {
		t.Errorf("found only %d modules in go.mod", seen)
	}
}

// TestLists checks that docs/ARCHITECTURE.md lists every package and docs/MODELS.md every
// model family.
func TestLists(t *testing.T) {
	text := map[string]string{}
	for _, d := range documents(t) {
		text[d.path] = d.text
	}
	cmd := exec.Command("go", "list", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(out))
	for _, p := range packages[1:] { // the first is the root package
		if name := strings.TrimPrefix(p, packages[0]+"/"); !strings.Contains(text["docs/ARCHITECTURE.md"], "`"+name+"`") {
			t.Errorf("docs/ARCHITECTURE.md does not name package %s", name)
		}
	}
	families, err := filepath.Glob(filepath.Join(root, "arch/data/*.json"))
	if err != nil || len(families) == 0 {
		t.Fatalf("no families: %v", err)
	}
	for _, f := range families {
		if name := strings.TrimSuffix(filepath.Base(f), ".json"); !strings.Contains(text["docs/MODELS.md"], "\n| "+name+" | ") {
			t.Errorf("docs/MODELS.md does not list the family %s", name)
		}
	}
}

// TestCommands runs every command that a document shows as "$ pianola ..." and compares its
// standard output with the document. The flag -update rewrites the documents.
func TestCommands(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("commands in documents are run by sh")
	}
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", filepath.Join(bin, "pianola"), root+"/cmd/pianola").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := workplace(t)
	ran := 0
	for _, d := range documents(t) {
		for i := 0; i < len(d.lines); i++ {
			command, ok := strings.CutPrefix(d.lines[i].text, "    $ pianola ")
			if !ok {
				if command, ok = strings.CutPrefix(d.lines[i].text, "    $ go run ./cmd/pianola "); !ok {
					continue
				}
			}
			ran++
			last := i + 1
			for ; last < len(d.lines); last++ {
				l := d.lines[last]
				if l.text != "" && !strings.HasPrefix(l.text, "    ") || strings.HasPrefix(l.text, "    $ ") {
					break
				}
			}
			for last > i+1 && d.lines[last-1].text == "" {
				last--
			}
			var want strings.Builder
			for _, l := range d.lines[i+1 : last] {
				want.WriteString(strings.TrimRight(strings.TrimPrefix(l.text, "    "), " ") + "\n")
			}
			cmd := exec.Command("sh", "-c", "pianola "+command)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "CUDA_VISIBLE_DEVICES=")
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("%s:%d: %s: %v", d.path, d.lines[i].number, command, err)
				continue
			}
			got := clean(string(out))
			if strings.Trim(got, "\n") == strings.Trim(want.String(), "\n") {
				continue
			}
			if !*update {
				t.Errorf("%s:%d: pianola %s: the document shows\n%s\nthe command prints\n%s", d.path, d.lines[i].number, command, want.String(), got)
				continue
			}
			rewrite(t, d.path, d.lines[i].text, want.String(), got)
		}
	}
	if ran == 0 {
		t.Error("no document shows a command")
	}
}

// workplace returns a temporary folder with a copy of the repository's testdata, including the
// generated weights of the small models.
func workplace(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	testdata := filepath.Join(dir, "testdata")
	cmd := exec.Command("go", "run", "./internal/tinymodels/cmd", "-o", testdata)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	from, err := filepath.Abs(filepath.Join(root, "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		to := filepath.Join(testdata, e.Name())
		if _, err := os.Stat(to); err == nil {
			continue // generated
		}
		if err := os.Symlink(filepath.Join(from, e.Name()), to); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// clean drops spaces at the ends of lines.
func clean(text string) string {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n") + "\n"
}

// rewrite replaces the output that a document shows for a command.
func rewrite(t *testing.T, name, command, old, text string) {
	t.Helper()
	p := filepath.Join(root, name)
	b, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	before, after, _ := strings.Cut(string(b), command+"\n")
	for range strings.Count(old, "\n") {
		_, after, _ = strings.Cut(after, "\n")
	}
	var s strings.Builder
	s.WriteString(before + command + "\n")
	for l := range strings.Lines(text) {
		if l != "\n" {
			s.WriteString("    ")
		}
		s.WriteString(l)
	}
	s.WriteString(after)
	if err := os.WriteFile(p, []byte(s.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestSnippets compiles the programs that documents show.
func TestSnippets(t *testing.T) {
	seen := 0
	for _, d := range documents(t) {
		for _, s := range strings.Split(d.text, "```go\n")[1:] {
			s, _, _ = strings.Cut(s, "```")
			if !strings.HasPrefix(s, "package main") {
				continue
			}
			seen++
			p := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(p, []byte(s), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("go", "vet", p)
			cmd.Dir = root
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", d.path, err, out)
			}
		}
	}
	if seen == 0 {
		t.Error("no document shows a program")
	}
}
