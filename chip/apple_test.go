package chip

import (
	"strings"
	"testing"
)

// TestForGPU finds the chip data for GPUs by name, family and number of cores.
func TestForGPU(t *testing.T) {
	const unknown = "not known"
	for _, c := range []struct {
		name          string
		family, cores int
		chip          string
		gbs           float64
		note          string // text that the note contains; "" means no note
	}{
		// GPUs as Apple sells them.
		{"Apple M1", 7, 8, "m1", 68.25, ""}, {"Apple M1", 7, 7, "m1-7", 68.25, ""},
		{"Apple M1 Pro", 7, 16, "m1-pro", 200, ""}, {"Apple M1 Pro", 7, 14, "m1-pro-14", 200, ""},
		{"Apple M1 Max", 7, 32, "m1-max", 400, ""}, {"Apple M1 Max", 7, 24, "m1-max-24", 400, ""},
		{"Apple M1 Ultra", 7, 64, "m1-ultra", 800, ""}, {"Apple M1 Ultra", 7, 48, "m1-ultra-48", 800, ""},
		{"Apple M2", 8, 10, "m2", 100, ""}, {"Apple M2", 8, 8, "m2-8", 100, ""},
		{"Apple M2 Pro", 8, 19, "m2-pro", 200, ""}, {"Apple M2 Pro", 8, 16, "m2-pro-16", 200, ""},
		{"Apple M2 Max", 8, 38, "m2-max", 400, ""}, {"Apple M2 Max", 8, 30, "m2-max-30", 400, ""},
		{"Apple M2 Ultra", 8, 76, "m2-ultra", 800, ""}, {"Apple M2 Ultra", 8, 60, "m2-ultra-60", 800, ""},
		{"Apple M3", 9, 10, "m3", 100, ""}, {"Apple M3", 9, 8, "m3-8", 100, ""},
		{"Apple M3 Pro", 9, 18, "m3-pro", 150, ""}, {"Apple M3 Pro", 9, 14, "m3-pro-14", 150, ""},
		{"Apple M3 Max", 9, 40, "m3-max", 400, ""}, {"Apple M3 Max", 9, 30, "m3-max-30", 300, ""},
		{"Apple M3 Ultra", 9, 80, "m3-ultra", 819, ""}, {"Apple M3 Ultra", 9, 60, "m3-ultra-60", 819, ""},
		{"Apple M4", 9, 10, "m4", 120, ""}, {"Apple M4", 9, 8, "m4-8", 120, ""},
		{"Apple M4 Pro", 9, 20, "m4-pro", 273, ""}, {"Apple M4 Pro", 9, 16, "m4-pro-16", 273, ""},
		{"Apple M4 Max", 9, 40, "m4-max", 546, ""}, {"Apple M4 Max", 9, 32, "m4-max-32", 410, ""},
		{"Apple M5", 10, 10, "m5", 153, ""}, {"Apple M5", 10, 8, "m5-8", 153, ""},
		{"Apple M5 Pro", 10, 20, "m5-pro", 307, ""}, {"Apple M5 Pro", 10, 16, "m5-pro-16", 307, ""},
		{"Apple M5 Max", 10, 40, "m5-max", 614, ""}, {"Apple M5 Max", 10, 32, "m5-max-32", 460, ""},
		// The system's registry has no number of cores, or one that no known chip has.
		{"Apple M4 Max", 9, 0, "m4-max", 546, ""}, {"Apple M4", 9, 9, "m4-9", 120, "m4 has 10 cores"},
		{"Apple M4 Pro (software)", 9, 20, "m4-pro", 273, ""},
		// A later macOS may report another family for a known GPU.
		{"Apple M4", 10, 10, "m4", 120, "its family is Apple 10"}, {"Apple M4", 0, 10, "m4", 120, ""},
		// An unknown GPU gets the data of the latest chip of its family and tier, or of the closest one.
		{"Apple M6", 11, 10, "m5", 153, unknown}, {"Apple M6 Max", 11, 40, "m5-max", 614, unknown},
		{"Apple M6 Pro", 11, 24, "m5-pro-24", 307, "the data are those of m5-pro; m5-pro has 20 cores"},
		{"Apple M5 Ultra", 10, 80, "m5-max-80", 614, "the data are those of m5-max; m5-max has 40 cores"},
		{"Apple M10", 14, 0, "m5", 153, unknown}, {"Apple M10 Max", 14, 32, "m5-max-32", 460, unknown},
		{"Apple A18 Pro", 9, 5, "m4-5", 120, unknown}, {"Apple A17", 9, 6, "m4-6", 120, unknown}, {"Apple A14", 7, 4, "m1-4", 68.25, unknown},
		{"Apple Paravirtual device", 5, 0, "m1", 68.25, unknown}, {"", 0, 0, "m1", 68.25, unknown}, {"AMD Radeon Pro 5500M", 0, 0, "m1", 68.25, unknown},
	} {
		got, note, err := ForGPU(GPU{c.name, c.family, c.cores})
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if got.Name != c.chip || got.BandwidthGBs != c.gbs || (c.note == "") != (note == "") || !strings.Contains(note, c.note) || got.Variants != nil {
			t.Errorf("%q, family %d, %d cores: %s, %v GB/s, %q; want %s, %v GB/s, %q", c.name, c.family, c.cores, got.Name, got.BandwidthGBs, note, c.chip, c.gbs, c.note)
		}
		if c.cores > 0 && got.Cores != c.cores {
			t.Errorf("%q: %d cores, want %d", c.name, got.Cores, c.cores)
		}
		if known, err := Lookup(c.chip); err == nil && note == "" && known.Fingerprint() != got.Fingerprint() {
			t.Errorf("%s: ForGPU selects another chip", c.chip)
		}
	}
}

// FuzzForGPU passes arbitrary names, families and numbers of cores.
func FuzzForGPU(f *testing.F) {
	f.Add("Apple M4 Max", 9, 32)
	f.Add("Apple M99 Ultra Pro", 30, 1)
	f.Add("-", -1, -5)
	f.Fuzz(func(t *testing.T, name string, family, cores int) {
		c, note, err := ForGPU(GPU{name, family, cores})
		if err == nil && (c.Validate() != nil || c.Device != Metal) {
			t.Errorf("%q, %d, %d: %+v, %q", name, family, cores, c, note)
		}
	})
}
