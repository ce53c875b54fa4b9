// Command cmd prints a pattern for go test -run, which matches the tests of some packages whose
// cases depend on the build tag exhaustive. With and without the tag, all other tests do the same.
//
//	go run ./internal/exhaustive/cmd ./replay ./internal/conform
package main

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	pattern, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "exhaustive:", err)
		os.Exit(1)
	}
	fmt.Println(pattern)
}

// run returns the pattern for packages, which go list finds.
func run(packages []string) (string, error) {
	if len(packages) == 0 {
		return "", fmt.Errorf("no packages")
	}
	out, err := exec.Command("go", append([]string{"list", "-f", "{{.Dir}}", "--"}, packages...)...).Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w", err)
	}
	var names []string
	for dir := range strings.Lines(string(out)) {
		dir = strings.TrimSuffix(dir, "\n")
		some, err := dependent(dir)
		if err != nil {
			return "", err
		}
		if len(some) == 0 {
			return "", fmt.Errorf("%s: no test depends on the tag", dir)
		}
		names = append(names, some...)
	}
	slices.Sort(names)
	return "^(" + strings.Join(slices.Compact(names), "|") + ")$", nil
}

// on is the entry of references that stands for the build tag.
const on = "exhaustive"

// references are the names that each declaration of a package uses. A method's name begins with a
// dot, and so does the name of everything that is selected, whatever its type. Declarations of the
// same name count as one. So references has all uses, and may have more.
type references map[string][]string

// dependent returns the tests, fuzz tests and examples in a folder that use package exhaustive, or a
// declaration that does.
func dependent(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	all := references{}
	var tests []string
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		named := all.file(f)
		if strings.HasSuffix(path, "_test.go") {
			tests = append(tests, slices.DeleteFunc(named, func(name string) bool { return !isTest(name) })...)
		}
	}
	return slices.DeleteFunc(tests, func(name string) bool { return !all.reaches(name) }), nil
}

// isTest reports whether go test runs the function because of its name.
func isTest(name string) bool {
	return name != "TestMain" && (strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") || strings.HasPrefix(name, "Example"))
}

// file adds the declarations of a file and returns the names of its functions.
func (r references) file(f *ast.File) (functions []string) {
	tagged := constrained(f)
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = "." + name
			} else {
				functions = append(functions, name)
			}
			r.add(name, d, tagged)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					for _, name := range s.Names {
						r.add(name.Name, s, tagged)
					}
				case *ast.TypeSpec:
					r.add(s.Name.Name, s, tagged)
				}
			}
		}
	}
	return functions
}

// constrained reports whether the file has a build constraint with the tag.
func constrained(f *ast.File) bool {
	for _, group := range f.Comments {
		for _, c := range group.List {
			x, err := constraint.Parse(c.Text)
			if err != nil {
				continue
			}
			if strings.Contains(x.String(), on) {
				return true
			}
		}
	}
	return false
}

// add adds what a declaration uses.
func (r references) add(name string, declaration ast.Node, tagged bool) {
	if tagged {
		r[name] = append(r[name], on)
	}
	ast.Inspect(declaration, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			r[name] = append(r[name], "."+n.Sel.Name)
		case *ast.Ident:
			r[name] = append(r[name], n.Name)
		}
		return true
	})
}

// reaches reports whether a declaration uses package exhaustive, directly or through others.
func (r references) reaches(name string) bool {
	seen := map[string]bool{}
	for todo := []string{name}; len(todo) > 0; {
		last := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if last == on {
			return true
		}
		if !seen[last] {
			seen[last] = true
			todo = append(todo, r[last]...)
		}
	}
	return false
}
