package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// typeList is a list macro of types.h, which expands X for each type that kernels are compiled
// for. Its groups are the macro's head and its types.
var typeList = regexp.MustCompile(`(?m)^(#define PIANOLA_\w+\(X\) \\\n)((?: +X\(\w+\)(?: \\)?\n)+)`)

var typeName = regexp.MustCompile(`X\((\w+)\)`)

// limit removes all quantised types except the named ones, which are separated by commas, from
// the lists of types.h in the build folder. It removes none if types is "".
func (p *project) limit(types string) error {
	if types == "" {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(p.build, "types.h"))
	if err != nil {
		return err
	}
	shorter, err := limited(string(text), strings.Split(types, ","))
	if err != nil {
		return fmt.Errorf("types.h: %w", err)
	}
	return p.put("types.h", shorter)
}

// limited returns the text of types.h whose lists have only the types in names.
func limited(text string, names []string) (string, error) {
	var known []string
	text = typeList.ReplaceAllStringFunc(text, func(list string) string {
		m := typeList.FindStringSubmatch(list)
		var kept []string
		for _, x := range typeName.FindAllStringSubmatch(m[2], -1) {
			if known = append(known, x[1]); slices.Contains(names, x[1]) {
				kept = append(kept, "    "+x[0])
			}
		}
		return m[1] + strings.Join(kept, " \\\n") + "\n"
	})
	for _, name := range names {
		if !slices.Contains(known, name) {
			return "", fmt.Errorf("no list has the type %q", name)
		}
	}
	return text, nil
}
