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

// sources parses the package's files, except tests.
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

// faultsOf returns the positions at which a file reads parts of labels or tests the kind of a device.
// Labels are only for people to read, and the compiler must use the data of a chip.
func faultsOf(set *token.FileSet, f *ast.File) (faults []string) {
	copied := map[ast.Node]bool{} // expressions that copy the kind of device to the table's header
	add := func(n ast.Node, what string) {
		faults = append(faults, set.Position(n.Pos()).String()+": "+what)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Device" {
				copied[n.Value] = true
			}
		case *ast.CallExpr:
			if of, ok := n.Fun.(*ast.SelectorExpr); ok && isPackage(of.X, "strings") && (suffixes[of.Sel.Name] || slices.ContainsFunc(n.Args, readsLabel)) {
				add(n, "strings."+of.Sel.Name)
			}
		case *ast.SelectorExpr:
			if n.Sel.Name == "Device" && !copied[n] || isPackage(n.X, "chip") && devices[n.Sel.Name] {
				add(n, n.Sel.Name)
			}
		}
		return true
	})
	return faults
}

var (
	suffixes = map[string]bool{"HasSuffix": true, "TrimSuffix": true, "CutSuffix": true}
	devices  = map[string]bool{"CPU": true, "CUDA": true, "Metal": true}
)

// isPackage reports whether an expression is the name of a package.
func isPackage(x ast.Expr, name string) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == name
}

// readsLabel reports whether an expression contains a label.
func readsLabel(x ast.Expr) (found bool) {
	ast.Inspect(x, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && (id.Name == "label" || id.Name == "Label") {
			found = true
		}
		return true
	})
	return found
}

// TestSource checks that no pass matches parts of labels and that no code depends on the kind of
// device.
func TestSource(t *testing.T) {
	set, files := sources(t)
	for _, f := range files {
		for _, fault := range faultsOf(set, f) {
			t.Error(fault)
		}
	}
	bad, err := parser.ParseFile(set, "bad.go", `package compiler
func f() bool {
	switch c.Device { // 1
	case chip.CUDA: // 2
		return strings.HasSuffix(name, ".q") // 3
	}
	return strings.Contains(n.label(), "attn") || strings.Contains(order, ",") || (table.Header{Device: c.Device}).Chip == "" // 4
}`, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := faultsOf(set, bad); len(got) != 4 {
		t.Errorf("%d of 4 faults found: %v", len(got), got)
	}
}

// TestRoles checks that the names of roles are unique, so that labels differ.
func TestRoles(t *testing.T) {
	seen := map[string]bool{}
	for r, name := range roleNames {
		if name == "" || seen[name] {
			t.Errorf("role %d: the name %q is empty or occurs twice", r, name)
		}
		seen[name] = true
	}
}
