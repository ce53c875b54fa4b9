package pianola_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// ranks orders the packages: each imports only packages of lower rank.
var ranks = map[string]int{
	"internal/golden": -2, "internal/packed": -2, "internal/replacefile": -2, "internal/sparse": -2, "internal/exectrace": -2, "internal/dtype": -2, "internal/decl": -1,
	"internal/gguf": 0, "internal/safetensors": 0, "arch": 0, "chip": 0, "table": 0, "internal/decl/gen": 0, "internal/neongen": 0,
	"internal/quantize": 0, "weights": 1, "internal/tokenizer": 1, "internal/chat/jinja": 0, "internal/chat": 1, "shaders": 1, "internal/cuda/ptx": 1, "internal/metal/soft": 1, "internal/device": 1,
	"internal/convert": 2, "compiler": 2, "internal/shadergen": 2, "internal/emu": 2,
	"internal/metal/driver": 2, "internal/cuda/driver": 2, "internal/cuda/fake": 2,
	"replay/cpu": 3, "replay/cuda": 3, "replay/metal": 3, "replay/null": 3,
	"replay": 4, "internal/conform": 4, "internal/metal/kernels": 4, "internal/metal/kernels/gen": 5,
	"":      5,
	"bench": 6, "internal/synth": 6, "replay/metal/darwinkit": 6,
	"cmd/pianola": 7, "bench/peer": 7, "examples/service": 7,
}

// TestRanks reads every package's imports, on every system that is built for.
func TestRanks(t *testing.T) {
	const module = "github.com/pianola-engine/pianola"
	for _, goos := range []string{"linux", "darwin", "windows"} {
		cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,Standard,Module", "./...")
		cmd.Env = append(cmd.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
			var p struct {
				ImportPath string
				Imports    []string
			}
			if err := dec.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			name, ok := inModule(module, p.ImportPath)
			if !ok {
				continue
			}
			seen++
			rank, ok := ranks[name]
			if !ok {
				t.Errorf("package %s has no rank", p.ImportPath)
			}
			for _, imp := range p.Imports {
				if imp == "C" {
					t.Errorf("%s uses cgo", p.ImportPath)
				}
				if other, ok := inModule(module, imp); ok && ranks[other] >= rank {
					t.Errorf("%s (rank %d) imports %s (rank %d)", p.ImportPath, rank, imp, ranks[other])
				}
			}
		}
		if seen != len(ranks) {
			t.Errorf("%s: %d packages, %d have ranks", goos, seen, len(ranks))
		}
	}
}

// inModule returns a package's path within the module.
func inModule(module, path string) (string, bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}
