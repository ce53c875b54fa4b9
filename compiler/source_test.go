package compiler

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
)

// sources parses the package without its tests.
func sources(t *testing.T) (*token.FileSet, map[string]*ast.File) {
	t.Helper()
	set, files := token.NewFileSet(), map[string]*ast.File{}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".go") && !strings.HasSuffix(e.Name(), "_test.go") {
			if files[e.Name()], err = parser.ParseFile(set, e.Name(), nil, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(files) < 10 {
		t.Fatalf("%d files", len(files))
	}
	return set, files
}

// faultsOf returns the places where a file reads labels or asks for the kind of a
// device. Labels are for people, and a chip's wishes are its data.
func faultsOf(set *token.FileSet, f *ast.File) (faults []string) {
	copied := map[ast.Node]bool{} // the kind of device that the table's header names
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Device" {
				copied[n.Value] = true
			}
		case *ast.SelectorExpr:
			from, _ := n.X.(*ast.Ident)
			pkg := ""
			if from != nil {
				pkg = from.Name
			}
			text := pkg == "strings" && slices.Contains([]string{"HasSuffix", "TrimSuffix", "CutSuffix", "HasPrefix", "TrimPrefix", "CutPrefix", "Contains"}, n.Sel.Name)
			kind := pkg == "chip" && slices.Contains([]string{"CPU", "CUDA", "Metal"}, n.Sel.Name) || n.Sel.Name == "Device" && !copied[n]
			if text || kind {
				faults = append(faults, set.Position(n.Pos()).String()+": "+pkg+"."+n.Sel.Name)
			}
		}
		return true
	})
	return faults
}

// TestSource checks that no pass matches parts of labels and that nothing depends
// on the kind of device.
func TestSource(t *testing.T) {
	set, files := sources(t)
	for _, f := range files {
		for _, fault := range faultsOf(set, f) {
			t.Error(fault)
		}
	}
	bad, err := parser.ParseFile(set, "bad.go", `package compiler
func f() bool { return c.Device == chip.CUDA || strings.HasSuffix(n.label(), ".q") || (table.Header{Device: c.Device}).Chip == "" }`, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := faultsOf(set, bad); len(got) != 3 {
		t.Errorf("%d of 3 faults found: %v", len(got), got)
	}
}

// TestRoles checks that each role has a name of its own, so that labels differ.
func TestRoles(t *testing.T) {
	seen := map[string]bool{}
	for r, name := range roleNames {
		if name == "" || seen[name] {
			t.Errorf("role %d: the name %q is missing or there twice", r, name)
		}
		seen[name] = true
	}
}
