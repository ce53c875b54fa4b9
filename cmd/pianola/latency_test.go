package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestBenchLatency checks that --latency adds the latencies to the JSON object and keeps every other
// field, and checks the text, the SVG and the benchmark lines.
func TestBenchLatency(t *testing.T) {
	file := filepath.Join(t.TempDir(), "latency.svg")
	args := []string{"bench", gopher, "-p", "64", "-n", "32", "-r", "1", "--latency", "--requests", "4"}
	res := decode[struct {
		Device  string
		TTFT    float64 `json:"ttft_ms"`
		Latency map[string]any
	}](t, succeed(t, append(args, "--json", "--svg", file)...).stdout)
	if res.Device != "cpu" || res.TTFT <= 0 {
		t.Errorf("%+v", res)
	}
	for name, n := range map[string]float64{"ttft": 4, "itl": 0, "tpot": 4 * 31, "cancel_prefill": 0, "cancel_decode": 0, "deadline": 0} {
		d, ok := res.Latency[name].(map[string]any)
		if !ok || n > 0 && d["count"] != n {
			t.Errorf("%s is %v, want %v values", name, res.Latency[name], n)
		}
		last := 0.0
		for _, q := range []string{"min_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms"} {
			v, ok := d[q].(float64)
			if !ok || v < last {
				t.Errorf("%s: %s is %v, after %v", name, q, d[q], last)
			}
			last = v
		}
	}
	svg, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(svg), "gopher-q8_0.gguf on cpu") || !strings.HasSuffix(string(svg), "</svg>\n") {
		t.Errorf("%v, an SVG of %d bytes", err, len(svg))
	}
	text := succeed(t, append(args, "--load", "1", "--chain", "8")...).stdout
	for _, part := range []string{"prefill", "tok/s", "p99", "inter-token", "7.75 tokens a delivery", "allocate"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in\n%s", part, text)
		}
	}
	lines := succeed(t, append(args, "--benchfmt")...).stdout
	if strings.Count(lines, "\nBenchmarkLatency/model=gopher-q8_0.gguf/") < 3 {
		t.Errorf("benchmark lines\n%s", lines)
	}
}

func TestBenchLatencyUsage(t *testing.T) {
	for _, c := range []struct {
		status int
		args   string
		want   string
	}{
		{2, "--svg x.svg", "--svg requires --latency"},
		{2, "--requests 3", "--requests requires --latency"},
		{2, "--load 3", "--load requires --latency"},
		{2, "--latency --chain 1,2", "single --chain length"},
		{2, "--latency -d 5", "--latency and -d exclude each other"},
		{1, "--latency --requests 0", "--requests 0: must be at least 1"},
		{1, "--latency --load -1", "--load -1: must be at least 0"},
		{1, "--latency -p 0", "requires -p of at least 1 and -n of at least 2"},
		{1, "--latency -n 1", "requires -p of at least 1 and -n of at least 2"},
		{1, "--latency --svg /not/there/x.svg", "/not/there"},
	} {
		wantError(t, runCommand(t, append([]string{"bench", gopher}, strings.Fields(c.args)...)...), c.status, c.want)
	}
}

func TestRealTime(t *testing.T) {
	procs := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(procs) // the command raises GOMAXPROCS
	res := decode[struct{ Latency map[string]any }](t, succeed(t, "bench", gopher, "-p", "16", "-n", "16", "-r", "1",
		"--latency", "--requests", "2", "--real-time", "--json").stdout)
	if l := res.Latency; l["real_time"] != true || l["chain_ms"] != 5.0 {
		t.Errorf("%v", l)
	}
	runtime.GOMAXPROCS(procs)
	res = decode[struct{ Latency map[string]any }](t, succeed(t, "bench", gopher, "-p", "16", "-n", "16", "-r", "1",
		"--latency", "--requests", "2", "--chain-ms", "2.5", "--json").stdout)
	if l := res.Latency; l["real_time"] != false || l["chain_ms"] != 2.5 {
		t.Errorf("%v", l)
	}
	args := []string{"run", gopher, "-p", "func main() {", "-n", "20"}
	if a, b := succeed(t, args...).stdout, succeed(t, append(args, "--real-time", "--chain-ms", "1")...).stdout; a != b {
		t.Errorf("in real time\n%s\nwant\n%s", b, a)
	}
	wantError(t, runCommand(t, append(args, "--chain-ms", "0")...), 1, "--chain-ms 0: must be in 0.01..60000")
	wantError(t, runCommand(t, append(args, "--chain-ms", "NaN")...), 1, "must be in 0.01..60000")
	wantError(t, runCommand(t, append(args, "--chain-ms", "5", "--chain", "2")...), 2, "--chain-ms and --chain exclude each other")
}
