package pianola_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestExamples checks that every exported name of the package, methods included, appears in the
// name or in the code of an example. It compares names only, so that Chat.Reset shows
// Session.Reset too.
func TestExamples(t *testing.T) {
	shown := map[string]bool{}
	parse(t, true, func(d ast.Decl) {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Example") {
			return
		}
		for _, part := range strings.Split(strings.TrimPrefix(f.Name.Name, "Example"), "_") {
			shown[part] = true
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				shown[id.Name] = true
			}
			return true
		})
	})
	var missing []string
	names := 0
	want := func(name, of string) {
		if !ast.IsExported(name) || of != "" && !ast.IsExported(of) {
			return
		}
		// Values find these methods by their interfaces: error, encoding.TextMarshaler.
		if slices.Contains([]string{"Error", "Unwrap", "MarshalText", "UnmarshalText"}, name) {
			return
		}
		names++
		if !shown[name] {
			missing = append(missing, strings.TrimPrefix(of+"."+name, "."))
		}
	}
	parse(t, false, func(d ast.Decl) {
		switch d := d.(type) {
		case *ast.FuncDecl:
			of := ""
			if d.Recv != nil {
				of = receiver(d.Recv.List[0].Type)
			}
			want(d.Name.Name, of)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					want(s.Name.Name, "")
				case *ast.ValueSpec:
					for _, n := range s.Names {
						want(n.Name, "")
					}
				}
			}
		}
	})
	slices.Sort(missing)
	if len(missing) > 0 || names < 150 {
		t.Errorf("%d of %d exported names appear in no example: %s", len(missing), names, strings.Join(missing, " "))
	}
}

// receiver returns the name of a method's type.
func receiver(of ast.Expr) string {
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if id, ok := of.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// parse visits the declarations of the Go files of this directory, either those of tests or the
// others.
func parse(t *testing.T, tests bool, visit func(ast.Decl)) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") != tests {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			visit(d)
		}
	}
}
