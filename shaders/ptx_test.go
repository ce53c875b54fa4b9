//go:build !nocuda

package shaders

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// TestPTX makes sure that every entry of the manifest is in the PTX of every architecture.
func TestPTX(t *testing.T) {
	m, err := Made()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range m.Kernels {
		if len(k.Entries) == 0 {
			continue // only Apple GPUs have the kernel
		}
		for _, a := range m.Architectures {
			text, err := PTX(k.File, a)
			if err != nil {
				t.Error(err)
				continue
			}
			if !bytes.Contains(text, []byte(".target "+a+"\n")) {
				t.Errorf("%s is not for %s", k.File, a)
			}
			for _, e := range k.Entries {
				if !bytes.Contains(text, []byte(".entry "+e.Name+"(")) {
					t.Errorf("%s for %s has no entry %s", k.File, a, e.Name)
				}
			}
		}
	}
	for _, e := range m.Exact {
		text, err := PTX(e.File, e.Architecture)
		if err != nil || !bytes.Contains(text, []byte(".target "+e.Architecture+"\n")) {
			t.Errorf("%+v: %v", e, err)
		}
		for _, k := range m.Kernels {
			for _, entry := range k.Entries {
				if k.File == e.File && !bytes.Contains(text, []byte(".entry "+entry.Name+"(")) {
					t.Errorf("%+v has no entry %s", e, entry.Name)
				}
			}
		}
		if e.File == "halves.metal" && bytes.Count(text, []byte("wgmma.mma_async")) == 0 {
			t.Error("no warpgroup products")
		}
	}
}

// TestNoCUDA makes sure that the tag nocuda keeps PTX out of programs.
func TestNoCUDA(t *testing.T) {
	for tags, want := range map[string]bool{"": true, "nocuda": false} {
		out, err := exec.Command("go", "list", "-tags", tags, "-f", "{{.EmbedFiles}}", ".").Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(out), "ptx/"); got != want || !strings.Contains(string(out), "manifest.json") {
			t.Errorf("-tags %q: PTX embedded: %t, want %t", tags, got, want)
		}
	}
}
