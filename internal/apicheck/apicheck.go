// Package apicheck reads the public API of the module, writes it as text that reviewers can
// diff, counts its exported names, and finds types that the API uses but does not export.
package apicheck

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Package is a public package of the module.
type Package struct {
	Path  string // the import path
	Name  string // the path relative to the module, "" for the root
	Types *types.Package
}

// listed is one package in the output of go list -json.
type listed struct {
	ImportPath, Name, Export string
	Module                   *struct {
		Path string
		Main bool
	}
}

// Load type-checks the public packages of the module in dir, which are the packages that
// another module can import. It leaves out commands and packages below internal. It always
// loads the API of linux/amd64 without cgo, so the result is the same on every machine.
func Load(dir string) ([]*Package, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Name,Export,Module", "./...")
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, problems.Bytes())
	}
	exports := map[string]string{}
	var public []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		exports[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Main && p.Name != "main" && !internal(p.ImportPath) && p.Export != "" {
			public = append(public, p)
		}
	}
	imp := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		file, ok := exports[path]
		if !ok || file == "" {
			return nil, fmt.Errorf("no export data for %s", path)
		}
		return os.Open(file)
	})
	var all []*Package
	for _, p := range public {
		pkg, err := imp.Import(p.ImportPath)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.ImportPath, err)
		}
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, p.Module.Path), "/")
		all = append(all, &Package{Path: p.ImportPath, Name: name, Types: pkg})
	}
	return all, nil
}

// internal reports whether a package is below a directory named internal.
func internal(path string) bool {
	return strings.HasPrefix(path, "internal/") || strings.Contains(path, "/internal/") || strings.HasSuffix(path, "/internal")
}
