package compiler

import (
	"errors"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// TestVerifyProgram checks that the program verify has the same kernels as decode with the same
// constants and threads, so that the arithmetic of a row is the same. Each command computes all rows,
// except commands of kernels that compute a single row.
func TestVerifyProgram(t *testing.T) {
	const draft = 3
	for _, path := range tiny(t) {
		for _, c := range chips {
			in := input(t, path, c, Options{Draft: draft})
			s, err := newState(in)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range passes {
				if err := p.apply(s); err != nil {
					t.Fatalf("%s, %s: %s: %v", path, c, p.name, err)
				}
				if err := verify(s, p.name); err != nil {
					t.Fatalf("%s, %s: %v", path, c, err)
				}
			}
			type arithmetic struct {
				spec    table.Spec
				threads uint32
			}
			of := func(name string) (list []arithmetic) {
				p, _, ok := s.t.Program(name)
				if !ok {
					t.Fatalf("%s, %s: no program %s", path, c, name)
				}
				for _, cmd := range s.t.ProgramCmds(p) {
					switch cmd.Kernel {
					case kernels.Argmax, kernels.ArgmaxPart, kernels.Accept, kernels.Draft:
						continue
					}
					if a := (arithmetic{s.t.Specs[cmd.Spec], cmd.Threadgroup[0]}); !slices.Contains(list, a) {
						list = append(list, a)
					}
				}
				return list
			}
			if d, v := of(table.ProgramDecode), of(table.ProgramVerify); !slices.Equal(d, v) {
				t.Errorf("%s, %s: decode has %v, verify %v", path, c, d, v)
			}
		}
	}
	in := input(t, tiny(t)[0], "cpu", Options{Draft: table.MaxDraft + 1})
	var e *DraftError
	if _, err := Compile(in); !errors.As(err, &e) || e.Max != table.MaxDraft {
		t.Errorf("a long draft: %v", err)
	}
}
