package pianola_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// ranks assigns a rank to each package. A package imports only packages of lower rank.
var ranks = map[string]int{
	"internal/golden": 0, "internal/webpage": 0, "internal/view": 3, "internal/ptxstore": 0, "internal/replacefile": 0, "internal/sparse": 0, "internal/exectrace": 0, "internal/dtype": 0, "internal/activation": 0,
	"internal/speculate": 0, "internal/sampler": 0, "internal/chat/jinja": 0, "internal/neongen": 0, "internal/docscheck": 0, "internal/exhaustive": 0, "internal/exhaustive/cmd": 0, "internal/pages": 0, "internal/recurrent": 0, "internal/sequence": 0, "internal/schedule": 1, "internal/batch": 2, "internal/hub": 2, "internal/hub/hubtest": 0,
	"internal/hostmem": 0, "internal/spill": 1,
	"internal/decl": 1, "internal/gguf": 1, "internal/safetensors": 1, "arch": 1, "chip": 1, "internal/quantize": 1, "internal/tokenizer": 1, "internal/chat": 1, "internal/metal/soft": 1, "internal/metal/joined": 0,
	"table": 2, "internal/tinymodels": 2, "internal/decl/gen": 2, "internal/dtype/gen": 2, "weights": 2, "shaders": 2, "internal/cuda/ptx": 2, "internal/metal/driver": 2, "internal/cuda/driver": 2, "internal/cuda/cubin": 2, "internal/cuda/fake": 2,
	"internal/kernels": 3, "internal/tinymodels/cmd": 3, "internal/testmodels": 3, "internal/packed": 4, "internal/pressure": 0, "internal/kvrows": 3, "replay": 4, "internal/convert": 3, "internal/tinymodels/describe": 3, "internal/tinymodels/peer": 4, "internal/shadergen": 3, "internal/synth": 3,
	"compiler": 4, "internal/cost": 4, "internal/batchtest": 5, "internal/device": 5, "internal/emu": 5,
	"replay/cpu": 6, "replay/cuda": 6, "replay/metal": 6, "replay/null": 6,
	"internal/metal/kernels": 7, "internal/cuda/kernels": 7, "internal/metal/kernels/gen": 8,
	"":                    9,
	"internal/serve/keys": 0, "internal/serve/fleet": 0, "internal/serve/observe": 0, "internal/serve/engine": 0, "internal/serve/turn": 1, "internal/serve/page": 4,
	"internal/serve/enginetest": 3,
	"internal/serve/fields":     0,
	"internal/serve/backend":    1,
	"internal/serve/answers":    2,
	"internal/serve/responses":  2, "internal/serve/anthropic": 2, "internal/serve/transcript": 4,
	"internal/serve/openai": 5,
	"internal/apicheck":     0, "internal/apicheck/cmd": 1,
	"internal/serve/local": 10, "internal/serve": 6, "bench": 10, "internal/conform": 10, "internal/e2e": 10,
	"cmd/pianola": 11, "bench/peer": 11, "examples/service": 11, "examples/c": 11, "internal/metal/pipelines": 10, "internal/macreport": 1,
}

// TestRanks checks the imports of every package, for every supported operating system.
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
