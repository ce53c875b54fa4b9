package cost_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/cost"
	"github.com/pianola-engine/pianola/table"
)

// measured is a figure of docs/BENCHMARKS.md: the milliseconds of a token after depth tokens or, if
// prompt is not 0, from a prompt of so many tokens to the first token.
type measured struct {
	shape, quant  string
	depth, prompt int
	ms            float64
}

// tokens returns the milliseconds of a token from a rate.
func tokens(rate float64) float64 { return 1e3 / rate }

// h200 are figures of one H200 in mode record, 2026-11-21 to 2026-11-23; prompts of 8 tokens were measured again
// on 2026-11-28. Those of decode from the first position on are means over 128 tokens.
var h200 = []measured{
	{"qwen3-0.6b", "Q4_0", 64, 0, tokens(1836)},
	{"qwen3-0.6b", "Q4_K_M", 64, 0, tokens(1509)},
	{"qwen3-0.6b", "Q8_0", 64, 0, tokens(1624)},
	{"qwen3-0.6b", "F16", 64, 0, tokens(1356)},
	{"llama-3.2-1b", "Q4_0", 64, 0, tokens(1993)},
	{"llama-3.2-1b", "F16", 64, 0, tokens(1088)},
	{"gemma-3-1b", "Q4_0", 64, 0, tokens(1132)},
	{"llama-3.1-8b", "Q4_0", 64, 0, tokens(556)},
	{"llama-3.1-8b", "Q8_0", 64, 0, tokens(372)},
	{"llama-3.1-8b", "F16", 64, 0, tokens(238)},
	{"qwen3-0.6b", "Q4_0", 576, 0, tokens(1844)},
	{"qwen3-0.6b", "Q4_0", 8240, 0, tokens(1202)},
	{"qwen3-0.6b", "F16", 8240, 0, tokens(980)},
	{"llama-3.2-1b", "Q4_0", 8240, 0, tokens(1745)},
	{"llama-3.2-1b", "F16", 8240, 0, tokens(1022)},
	{"llama-3.1-8b", "Q4_0", 8240, 0, tokens(482)},
	{"llama-3.1-8b", "Q8_0", 8240, 0, tokens(338)},
	{"llama-3.1-8b", "F16", 8240, 0, tokens(223)},
	{"llama-3.1-8b", "Q4_0", 0, 8, 2.84},
	{"llama-3.1-8b", "Q4_0", 0, 32, 4.13},
	{"llama-3.1-8b", "Q4_0", 0, 128, 8.8},
	{"llama-3.1-8b", "Q4_0", 0, 512, 17.5},
	{"llama-3.1-8b", "Q4_0", 0, 8192, 337},
	{"llama-3.1-8b", "Q8_0", 0, 128, 9.4},
	{"llama-3.1-8b", "Q8_0", 0, 512, 18.4},
	{"llama-3.1-8b", "Q8_0", 0, 8192, 356},
	{"llama-3.1-8b", "F16", 0, 8, 4.52},
	{"llama-3.1-8b", "F16", 0, 32, 6.19},
	{"llama-3.1-8b", "F16", 0, 128, 7.6},
	{"llama-3.1-8b", "F16", 0, 512, 14.9},
	{"llama-3.1-8b", "F16", 0, 8192, 310},
	{"llama-3.2-1b", "Q4_0", 0, 128, 2.35},
	{"llama-3.2-1b", "Q4_0", 0, 512, 3.96},
	{"llama-3.2-1b", "Q4_0", 0, 8192, 75.7},
	{"llama-3.2-1b", "F16", 0, 128, 2.15},
	{"llama-3.2-1b", "F16", 0, 512, 3.25},
	{"llama-3.2-1b", "F16", 0, 8192, 63.6},
	{"qwen3-0.6b", "Q4_0", 0, 8, 0.97},
	{"qwen3-0.6b", "Q4_0", 0, 32, 1.50},
	{"qwen3-0.6b", "Q4_0", 0, 128, 2.42},
	{"qwen3-0.6b", "Q4_0", 0, 512, 3.62},
	{"qwen3-0.6b", "Q4_0", 0, 8192, 76.5},
}

// cpuCell is a measurement on a CPU with a number of threads, whose bandwidth a probe measured in
// the same minutes.
type cpuCell struct {
	threads   int
	bandwidth float64 // GB/s
	measured
}

// zen4 are figures of two cores of an AMD Zen 4, 2026-11-21: decode after 128 tokens, 32 tokens.
var zen4 = []cpuCell{
	{2, 31.8, measured{"qwen3-0.6b", "Q4_0", 144, 0, tokens(71.2)}},
	{2, 33.5, measured{"qwen3-0.6b", "Q4_K_M", 144, 0, tokens(64.3)}},
	{2, 31.3, measured{"qwen3-0.6b", "Q8_0", 144, 0, tokens(47.5)}},
	{2, 35.0, measured{"qwen3-0.6b", "F16", 144, 0, tokens(26.3)}},
	{2, 33.8, measured{"llama-3.2-1b", "Q4_0", 144, 0, tokens(37.3)}},
	{2, 34.4, measured{"llama-3.2-1b", "Q8_0", 144, 0, tokens(23.7)}},
	{2, 31.9, measured{"llama-3.2-1b", "F16", 144, 0, tokens(12.5)}},
	{1, 29.1, measured{"qwen3-0.6b", "Q4_0", 140, 0, tokens(56.1)}},
	{1, 28.3, measured{"qwen3-0.6b", "Q4_K_M", 140, 0, tokens(56.9)}},
	{1, 31.6, measured{"qwen3-0.6b", "Q8_0", 140, 0, tokens(42.4)}},
	{1, 26.2, measured{"qwen3-0.6b", "F16", 140, 0, tokens(23.1)}},
	{2, 32.5, measured{"qwen3-0.6b", "Q4_0", 4108, 0, tokens(27.9)}},
	{2, 31.8, measured{"qwen3-0.6b", "Q4_0", 0, 512, 512 * tokens(451)}},
	{2, 31.8, measured{"qwen3-0.6b", "Q4_K_M", 0, 512, 512 * tokens(369)}},
	{2, 31.8, measured{"qwen3-0.6b", "Q8_0", 0, 512, 512 * tokens(448)}},
	{2, 31.8, measured{"qwen3-0.6b", "F16", 0, 512, 512 * tokens(203)}},
	{2, 31.8, measured{"llama-3.2-1b", "Q4_0", 0, 512, 512 * tokens(238)}},
	{2, 31.8, measured{"llama-3.2-1b", "Q4_K_M", 0, 512, 512 * tokens(199)}},
	{2, 31.8, measured{"llama-3.2-1b", "Q8_0", 0, 512, 512 * tokens(236)}},
	{2, 31.8, measured{"llama-3.2-1b", "F16", 0, 512, 512 * tokens(87)}},
}

// sapphireRapids are figures of qwen3-0.6b Q4_0 on 16 cores of an Intel Xeon, 2026-11-22: a prefill of
// 256 tokens without AMX and decode of 96 tokens after it. A probe with two threads read 22.9 GB/s;
// for 12 and 16 threads there is no probe, and the bandwidth is what decode itself reads.
var sapphireRapids = []cpuCell{
	{1, 11.5, measured{"qwen3-0.6b", "Q4_0", 304, 0, tokens(29.7)}},
	{2, 23, measured{"qwen3-0.6b", "Q4_0", 304, 0, tokens(60.6)}},
	{4, 46, measured{"qwen3-0.6b", "Q4_0", 304, 0, tokens(117)}},
	{12, 100, measured{"qwen3-0.6b", "Q4_0", 304, 0, tokens(234)}},
	{16, 100, measured{"qwen3-0.6b", "Q4_0", 304, 0, tokens(227)}},
	{1, 11.5, measured{"qwen3-0.6b", "Q4_0", 0, 256, 256 * tokens(252)}},
	{2, 23, measured{"qwen3-0.6b", "Q4_0", 0, 256, 256 * tokens(528)}},
	{4, 46, measured{"qwen3-0.6b", "Q4_0", 0, 256, 256 * tokens(944)}},
	{8, 90, measured{"qwen3-0.6b", "Q4_0", 0, 256, 256 * tokens(1459)}},
	{12, 90, measured{"qwen3-0.6b", "Q4_0", 0, 256, 256 * tokens(2225)}},
	{16, 90, measured{"qwen3-0.6b", "Q4_0", 0, 256, 256 * tokens(2599)}},
}

// predicted returns the milliseconds that are predicted for a measurement.
func predicted(t testing.TB, m *measured, c *chip.Chip) float64 {
	t.Helper()
	tab, _ := compile(t, m.shape, m.quant, c.Name, compiler.Options{Context: max(4096, m.depth+m.prompt+256)})
	if m.prompt == 0 {
		_, total := predict(t, tab, c, table.ProgramDecode, cost.Point{Position: m.depth, Rows: 1})
		return 1e3 * total.Seconds
	}
	seconds := 0.0
	chunk := int(tab.Header.Chunk)
	for at := 0; at < m.prompt; at += chunk {
		rows := min(chunk, m.prompt-at)
		p, _ := tab.Prefill(rows)
		_, total := predict(t, tab, c, p.Name, cost.Point{Position: m.depth + at, Rows: rows})
		seconds += total.Seconds
	}
	_, total := predict(t, tab, c, table.ProgramHead, cost.Point{Position: m.depth + m.prompt - 1, Rows: 1})
	return 1e3 * (seconds + total.Seconds)
}

// TestCalibration compares predictions with measurements, each of which must be within 20 %, rounded.
// docs/COST.md has the tables that it prints.
func TestCalibration(t *testing.T) {
	c, err := chip.Lookup("h200")
	if err != nil {
		t.Fatal(err)
	}
	for i := range h200 {
		compareCell(t, "", &h200[i], c)
	}
	for _, cells := range [][]cpuCell{zen4, sapphireRapids} {
		for i := range cells {
			m := &cells[i]
			cpu, err := chip.Lookup("cpu")
			if err != nil {
				t.Fatal(err)
			}
			cpu.Cores, cpu.BandwidthGBs = m.threads, m.bandwidth
			compareCell(t, fmt.Sprintf("%d threads, %v GB/s | ", m.threads, m.bandwidth), &m.measured, cpu)
		}
	}
}

// compareCell logs a row of a table.
func compareCell(t *testing.T, machine string, m *measured, c *chip.Chip) {
	t.Helper()
	p := predicted(t, m, c)
	what := fmt.Sprintf("token after %d", m.depth)
	if m.prompt > 0 {
		what = fmt.Sprintf("prompt of %d", m.prompt)
	}
	e := 100 * (p/m.ms - 1)
	t.Logf("| %s%s %s | %s | %.3g | %.3g | %+.0f %% |", machine, m.shape, m.quant, what, m.ms, p, e)
	if math.Abs(e) > 20.5 {
		t.Errorf("%s%s %s, %s: predicted %.3g ms, measured %.3g", machine, m.shape, m.quant, what, p, m.ms)
	}
}

// published are rates of other engines on Apple GPUs in tok/s, from their authors. Nobody has run
// Pianola there.
var published = []struct {
	chip, engine string
	measured     // of which ms is not used
	rate         float64
}{
	{"m4-pro", "BaseRT", measured{"qwen3-0.6b", "Q4_0", 64, 0, 0}, 471},
	{"m4-pro", "akunu", measured{"qwen3-0.6b", "Q4_0", 64, 0, 0}, 465},
	{"m4-pro", "llama.cpp", measured{"qwen3-0.6b", "Q4_0", 64, 0, 0}, 169},
	{"m4-pro", "BaseRT", measured{"qwen3-0.6b", "Q8_0", 64, 0, 0}, 290},
	{"m4-pro", "BaseRT", measured{"llama-3.2-1b", "Q4_0", 64, 0, 0}, 287},
	{"m4-pro", "BaseRT", measured{"llama-3.2-1b", "Q8_0", 64, 0, 0}, 160},
	{"m4-pro", "BaseRT", measured{"qwen3-0.6b", "Q4_0", 0, 512, 0}, 4833},
	{"m4-max", "MetalRT", measured{"qwen3-0.6b", "Q4_0", 64, 0, 0}, 658},
	{"m4-max", "uzu", measured{"qwen3-0.6b", "Q4_0", 64, 0, 0}, 627},
	{"m4-max", "mlx-lm", measured{"qwen3-0.6b", "Q4_0", 64, 0, 0}, 552},
	{"m4-max", "llama.cpp", measured{"qwen3-0.6b", "Q8_0", 64, 0, 0}, 295},
}

// TestApple logs predictions for Apple GPUs beside published rates of other engines. docs/COST.md has
// the tables.
func TestApple(t *testing.T) {
	for i := range published {
		p := &published[i]
		c, err := chip.Lookup(p.chip)
		if err != nil {
			t.Fatal(err)
		}
		what, n := "decode", 1.0
		if p.prompt > 0 {
			what, n = fmt.Sprintf("prefill %d", p.prompt), float64(p.prompt)
		}
		t.Logf("| %s | %s %s | %s | %.0f | %s %.0f |", p.chip, p.shape, p.quant, what, 1e3*n/predicted(t, &p.measured, c), p.engine, p.rate)
	}
	for _, m := range []measured{
		{"qwen3-0.6b", "Q4_0", 64, 0, 0}, {"qwen3-0.6b", "Q8_0", 64, 0, 0}, {"llama-3.2-1b", "Q4_0", 64, 0, 0}, {"llama-3.1-8b", "Q4_0", 64, 0, 0},
		{"qwen3-0.6b", "Q4_0", 0, 512, 0}, {"llama-3.1-8b", "Q4_0", 0, 512, 0},
	} {
		row := fmt.Sprintf("| %s %s %d |", m.shape, m.quant, m.prompt)
		for _, name := range []string{"m1", "m4-pro", "m4-max", "m5-max"} {
			c, err := chip.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			row += fmt.Sprintf(" %.0f |", 1e3*float64(max(m.prompt, 1))/predicted(t, &m, c))
		}
		t.Log(row)
	}
}
