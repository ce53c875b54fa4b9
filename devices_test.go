package pianola

import (
	"errors"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/testmodels"
)

// TestTarget checks which device the options select on a machine without a GPU or without
// kernels for it.
func TestTarget(t *testing.T) {
	automatic := []Options{{}, {Device: "auto"}}
	if on, err := newMetal("", MetalOptions{}); err == nil { // the test runs on a Mac, or on Metal in software
		if err := on.dev.Close(); err != nil {
			t.Error(err)
		}
		automatic = nil
	} else if !strings.HasPrefix(err.Error(), "pianola: device metal: ") {
		t.Errorf("%v", err)
	}
	for _, o := range append(automatic, Options{Device: "cpu", Mode: "encode"}, Options{Threads: 1}) {
		if on, err := newDevice(o); err != nil || on.device != DeviceCPU || on.mode != ModeEncode || !on.stays {
			t.Errorf("%+v: %+v, %v", o, on, err)
		}
	}
	for want, o := range map[string]Options{
		"device cuda: Options.Threads is for the CPU device":  {Device: "cuda", Threads: 2},
		"device cuda: no NVIDIA ":                             {Device: "cuda"},
		"device metal: Options.Threads is for the CPU device": {Device: "metal", Threads: 2},
		"device metal does not support mode resident: ":       {Device: "metal", Mode: "resident"},
		"device cpu does not support mode record: ":           {Mode: "record"},
	} {
		var missing *DeviceError
		if _, err := newDevice(o); !errors.As(err, &missing) || !strings.HasPrefix(err.Error(), "pianola: "+want) {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
	var unknown *ValueError
	for want, o := range map[string]Options{
		`unknown mode "fast" (valid: encode, record, resident)`:   {Device: "cuda", Mode: "fast"},
		`unknown device "abacus" (valid: auto, cpu, metal, cuda)`: {Device: "abacus"},
		`unknown KV type "q4" (valid: f16, q8_0)`:                 {Device: "cpu", Table: TableOptions{KV: "q4"}},
	} {
		if _, err := Open(t.Context(), testmodels.Path(t, "testdata/tiny/qwen2"), o); !errors.As(err, &unknown) || err.Error() != "pianola: "+want {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
}
