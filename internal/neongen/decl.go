package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
)

// decl is a function that Go declares without a body.
type decl struct {
	name, doc string // doc is the Go signature
	params    []param
}

// param is a parameter. It takes 8 bytes of the frame and one general register.
type param struct{ name, c string }

// cTypes maps parameter types to C. Arrays are passed by address.
var cTypes = map[string]string{
	"int": "int64_t", "*int": "int64_t *", "*byte": "uint8_t *", "*int8": "int8_t *", "*int16": "int16_t *", "*int32": "int32_t *", "*float32": "float *",
	"*columns": "float *", // a struct of arrays of float32
}

// declared returns the functions without a body that the Go files in dir declare for arm64.
func declared(dir string) (map[string]*decl, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*_arm64.go"))
	if err != nil {
		return nil, err
	}
	funcs := map[string]*decl{}
	for _, path := range paths {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body != nil {
				continue
			}
			d, err := newDecl(fn)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			funcs[d.name] = d
		}
	}
	return funcs, nil
}

func newDecl(fn *ast.FuncDecl) (*decl, error) {
	d := &decl{name: fn.Name.Name}
	if fn.Type.Results != nil || fn.Recv != nil {
		return nil, fmt.Errorf("%s has results or a receiver", d.name)
	}
	var fields []string
	for _, field := range fn.Type.Params.List {
		typ := types.ExprString(field.Type)
		key := typ
		if p, ok := field.Type.(*ast.StarExpr); ok {
			if a, ok := p.X.(*ast.ArrayType); ok {
				key = "*" + types.ExprString(a.Elt)
			}
		}
		c, ok := cTypes[key]
		if !ok {
			return nil, fmt.Errorf("%s: a parameter has the unsupported type %s", d.name, typ)
		}
		var names []string
		for _, n := range field.Names {
			names = append(names, n.Name)
			d.params = append(d.params, param{n.Name, c})
		}
		fields = append(fields, strings.Join(names, ", ")+" "+typ)
	}
	if len(d.params) > len(argRegs) {
		return nil, fmt.Errorf("%s has %d parameters, more than %d", d.name, len(d.params), len(argRegs))
	}
	d.doc = fmt.Sprintf("func %s(%s)", d.name, strings.Join(fields, ", "))
	return d, nil
}

// prototypes returns C declarations of the functions. The compiler checks the definitions
// against them. Their calling convention preserves no vector register, so functions save none
// on the stack.
func prototypes(funcs map[string]*decl) string {
	var lines []string
	for _, d := range funcs {
		var params []string
		for _, p := range d.params {
			params = append(params, p.c)
		}
		lines = append(lines, fmt.Sprintf("void %s(%s) __attribute__((preserve_none));\n", d.name, strings.Join(params, ", ")))
	}
	slices.Sort(lines)
	return "#include <stdint.h>\n" + strings.Join(lines, "")
}
