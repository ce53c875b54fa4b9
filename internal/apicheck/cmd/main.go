// Command cmd writes the public API of the module to the directory api, one file for each
// package. With -check it writes nothing and reports the files that differ from the API.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pianola-engine/pianola/internal/apicheck"
)

func main() {
	check := flag.Bool("check", false, "report files that differ from the API instead of writing them")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(check bool) error {
	all, err := apicheck.Load(".")
	if err != nil {
		return err
	}
	want := map[string][]byte{}
	for _, p := range all {
		want[filepath.Join("api", p.File())] = []byte(p.Text())
	}
	have, err := filepath.Glob("api/*")
	if err != nil {
		return err
	}
	changed := 0
	report := func(path, what string) {
		changed++
		fmt.Fprintf(os.Stderr, "%s: %s\n", path, what)
	}
	for _, path := range have {
		if want[path] != nil {
			continue
		}
		if check {
			report(path, "does not belong to a public package")
		} else if err := os.Remove(path); err != nil {
			return err
		}
	}
	for path, text := range want {
		now, err := os.ReadFile(path)
		switch {
		case err == nil && bytes.Equal(now, text):
		case check:
			report(path, "differs from the public API")
		default:
			if err := os.WriteFile(path, text, 0o644); err != nil {
				return err
			}
		}
	}
	if changed > 0 {
		return fmt.Errorf("the public API has changed: run make api to accept it")
	}
	return nil
}
