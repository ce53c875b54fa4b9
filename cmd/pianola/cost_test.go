package main

import (
	"strings"
	"testing"
)

// TestCostJSON checks the fields of the contract, and that labels add up to the totals.
func TestCostJSON(t *testing.T) {
	for _, args := range [][]string{
		{"cost", gopher, "--chip", "m4-pro", "--json"},
		{"cost", "--shape", "qwen3-0.6b", "--quant", "Q8_0", "--chip", "m1", "--prefill", "700", "--json"},
		{"cost", "--shape", "gemma-3-1b", "--chip", "h200", "-d", "1000", "--batch", "48", "--json"},
	} {
		out := succeed(t, args...).stdout
		fields := decode[map[string]any](t, out)
		for _, name := range []string{
			"chip", "decode_tok_s", "prefill_tok_s", "dispatches", "barriers", "compulsory_bytes", "requested_bytes", "longest_submission_ms", "labels",
		} {
			if v, ok := fields[name]; !ok || v == 0.0 {
				t.Errorf("%v: %s is %v", args, name, v)
			}
		}
		res := decode[costResult](t, out)
		var sum costLine
		for _, l := range res.Labels {
			sum.Dispatches += l.Dispatches
			sum.Barriers += l.Barriers
			sum.Compulsory += l.Compulsory
			sum.Requested += l.Requested
			sum.MS += l.MS
		}
		if sum.Dispatches != res.Dispatches || sum.Barriers != res.Barriers || sum.Compulsory != res.Compulsory || sum.Requested != res.Requested {
			t.Errorf("%v: the labels have %+v, the total is %+v", args, sum, res)
		}
		if sum.MS < 0.999*res.MS || sum.MS > 1.001*res.MS || res.LongestSubmission > res.MS {
			t.Errorf("%v: labels take %v ms, all %v, the longest submission %v", args, sum.MS, res.MS, res.LongestSubmission)
		}
	}
}

// TestCostShape checks that a shape costs as much as a file of that shape.
func TestCostShape(t *testing.T) {
	path := t.TempDir() + "/gopher.gguf"
	succeed(t, "synth", "gopher", "--quant", "Q4_0", "-o", path)
	file := succeed(t, "cost", path, "--chip", "m4-max").stdout
	shape := succeed(t, "cost", "--shape", "gopher", "--quant", "Q4_0", "--chip", "m4-max").stdout
	if file != shape || !strings.Contains(file, "layer.*.attn.qkv") {
		t.Errorf("a file:\n%s\na shape:\n%s", file, shape)
	}
	roll := t.TempDir() + "/gopher.roll"
	succeed(t, "compile", path, "--chip", "m4-max", "-o", roll)
	if out := succeed(t, "cost", roll).stdout; out != file {
		t.Errorf("a roll:\n%s\na file:\n%s", out, file)
	}
}
