//go:build softmetal

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/metal/soft"
)

// TestMetal runs bench and profile on a Metal device simulated in software.
func TestMetal(t *testing.T) {
	if err := soft.Start("../.."); err != nil {
		t.Fatal(err)
	}
	// By a clock, since the device cuts tokens into pieces if the emulated GPU is slow.
	soft.SetClock(&soft.Clock{Price: func(*soft.Command) float64 { return 1e-5 }, Watchdog: 1})
	t.Cleanup(func() { soft.SetClock(nil) })
	model := tiny(t, "llama/model.gguf")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for mode, most := range map[string]float64{"encode": 300, "record": 40} {
		out := succeed(t, "bench", model, "--device", "metal", "--mode", mode, "--ctx", "64", "-p", "0", "-n", "16", "-r", "1", "--chain", "16", "--json")
		var r struct {
			Device   string
			Mode     string
			Calls    float64 `json:"calls_per_token"`
			Commands int
			Encode   float64 `json:"encode_ns_per_command"`
		}
		if err := json.Unmarshal([]byte(out.stdout), &r); err != nil {
			t.Fatal(err)
		}
		if r.Device != "metal" || r.Mode != mode || r.Calls <= 0 || r.Calls > most || r.Encode <= 0 {
			t.Errorf("%s", out.stdout)
		}
		if mode == "record" {
			continue
		}
		if out := succeed(t, "profile", model, "--device", "metal", "--mode", mode, "--ctx", "64", "-d", "1", "-n", "2"); !strings.Contains(out.stdout, "layer.0.") || !strings.Contains(out.stdout, "attention") {
			t.Errorf("%s", out.stdout)
		}
	}
	if out := succeed(t, "devices"); !strings.Contains(out.stdout, "metal   Apple M4 Pro (software); family Apple 9") {
		t.Errorf("%s", out.stdout)
	}
	if objects, bytes := soft.Live(); objects != 0 || bytes != 0 {
		t.Errorf("%d objects and %d bytes are not released", objects, bytes)
	}
}
