package main

import (
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/packed"
)

// cutModel writes a float32 model with one layer and returns its directory. change may edit it.
func cutModel(t *testing.T, change func(m *packed.Model)) string {
	t.Helper()
	config, tensors, err := packed.Read(tiny(t, "llama"))
	if err != nil {
		t.Fatal(err)
	}
	packed.Cut(config, tensors, 64)
	m, _ := packed.New(config)
	for name, f := range tensors {
		m.Tensors[name] = packed.F32(f)
	}
	if change != nil {
		change(m)
	}
	dir := t.TempDir()
	if err := m.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestCheckWeights checks that --check-weights names a tensor with NaN, in info and in eval.
func TestCheckWeights(t *testing.T) {
	const name = "model.layers.0.self_attn.q_proj.weight"
	good, bad := cutModel(t, nil), cutModel(t, func(m *packed.Model) { copy(m.Tensors[name].Data[8:], "\x00\x00\xc0\xff") })
	succeed(t, "info", good, "--check-weights")
	succeed(t, "eval", good, "--ids", "5", "-n", "1", "--check-weights")
	const what = name + " (F32): 1, the first at element 2"
	got := runCommand(t, "info", bad, "--check-weights")
	if got.status != statusFailed || !strings.Contains(got.stderr, what) || !strings.Contains(got.stdout, "architecture") || !strings.Contains(got.stdout, name) {
		t.Errorf("%+v", got)
	}
	wantError(t, runCommand(t, "eval", bad, "--ids", "5", "-n", "1", "--check-weights"), statusFailed, what)
	succeed(t, "info", bad)
}

// TestInfoUnsupported checks the output of info for a model whose weights are packed in an
// unsupported way.
func TestInfoUnsupported(t *testing.T) {
	dir := cutModel(t, func(m *packed.Model) {
		m.Config["quantization_config"] = map[string]any{"quant_method": "awq", "bits": 4}
		m.Tensors["model.layers.0.mlp.up_proj.weight"] = packed.Tensor{Type: "F8_E5M2", Shape: []int{4}, Data: make([]byte, 4)}
	})
	got := succeed(t, "info", dir).stdout
	for _, want := range []string{`config.json: quantization_config.quant_method: "awq" is not supported`, "tensor model.layers.0.mlp.up_proj.weight: type F8_E5M2", "F8_E5M2 (not supported)"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nwant %q", got, want)
		}
	}
	wantError(t, runCommand(t, "eval", dir, "--ids", "5"), statusFailed, "quant_method")
}
