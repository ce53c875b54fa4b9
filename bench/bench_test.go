package bench_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/bench"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/table"
)

const (
	gopher  = "../testdata/gopher-q8_0.gguf"
	llama   = "../testdata/tiny/llama"
	mistral = "../testdata/tiny/mistral"
)

func open(t testing.TB, path string, o pianola.Options) *pianola.Model {
	t.Helper()
	m, err := pianola.Open(context.Background(), testmodels.Path(t, path), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func run(t *testing.T, m *pianola.Model, o bench.Options) *bench.Result {
	t.Helper()
	res, err := bench.Run(context.Background(), m, "a model", o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestRun(t *testing.T) {
	m := open(t, llama, pianola.Options{Table: pianola.TableOptions{Context: 96}})
	p, _, _ := m.Table().Program(table.ProgramDecode)
	for _, c := range []struct {
		o                   bench.Options
		tokens, submissions int
		pp, tg              int
	}{
		{bench.Options{Prompt: 16, Decode: 12, Runs: 2, Chain: 4}, 12, 3, 2, 2},
		{bench.Options{Prompt: 16, Decode: 9, Runs: 1, Chain: 4}, 12, 3, 1, 1},
		{bench.Options{Prompt: 1, Decode: 1, Runs: 1, Chain: 1}, 1, 1, 1, 1},
		{bench.Options{Prompt: 1, Decode: 2, Depth: 5, Runs: 1, Chain: 2}, 2, 1, 1, 1},
		{bench.Options{Decode: 8, Runs: 3, Chain: 8}, 8, 1, 0, 3},
		{bench.Options{Decode: 8, Depth: 80, Runs: 1, Chain: 8}, 8, 1, 0, 1},
		{bench.Options{Prompt: 16, Depth: 80, Runs: 1}, 0, 0, 1, 0},
		{bench.Options{Prompt: 16, Decode: 80, Runs: 1}, 80, 0, 1, 1},
	} {
		t.Run(fmt.Sprintf("%+v", c.o), func(t *testing.T) {
			res := run(t, m, c.o)
			if len(res.PrefillTokS) != c.pp || len(res.DecodeTokS) != c.tg || res.Tokens != c.tokens {
				t.Errorf("%d and %d rates, %d tokens", len(res.PrefillTokS), len(res.DecodeTokS), res.Tokens)
			}
			if c.o.Chain > 0 && (res.Submissions != c.submissions || res.Waits != c.submissions || res.Chain != c.o.Chain) {
				t.Errorf("%d submissions and %d waits with chains of %d tokens, want %d", res.Submissions, res.Waits, res.Chain, c.submissions)
			}
			if res.ChainKept != (c.o.Chain > 0) {
				t.Errorf("chain kept: %v", res.ChainKept)
			}
			if res.Commands != int(p.Count) || res.Patched <= 0 || res.Patched >= res.Commands {
				t.Errorf("%d commands, %d of them patched, want %d commands", res.Commands, res.Patched, p.Count)
			}
			for name, v := range map[string]float64{
				"encode ns": res.EncodeNSPerCommand, "load": res.LoadMS, "first token": res.TTFTMS,
				"table": float64(res.TableBytes), "peak": res.RSSMB,
			} {
				if v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
					t.Errorf("%s is %v", name, v)
				}
			}
			if decoded := c.tg > 0; decoded != (res.WaitMS > 0) || decoded != (res.EncodeMS > 0) || decoded != (res.ReadGBs > 0) {
				t.Errorf("wait %v ms, encode %v ms, %v GB/s", res.WaitMS, res.EncodeMS, res.ReadGBs)
			}
			for _, r := range append(res.PrefillTokS, res.DecodeTokS...) {
				if r <= 0 || math.IsInf(r, 0) {
					t.Errorf("rate %v", r)
				}
			}
			// The Go runtime itself makes some allocations, which have more weight in a short run.
			if most := max(4, 64/max(1, float64(res.Tokens))); res.AllocsPerToken > most {
				t.Errorf("%v allocations per token", res.AllocsPerToken)
			}
			if c.tokens > 0 {
				want := res.EncodeNSPerCommand * float64(res.Commands*res.Tokens) / 1e6
				if math.Abs(res.EncodeMS-want) > 1e-9*want {
					t.Errorf("EncodeMS is %v, want %v by the time per command", res.EncodeMS, want)
				}
				if want := res.BytesPerToken * bench.Median(res.DecodeTokS) / 1e9; math.Abs(res.ReadGBs-want) > 1e-9*want {
					t.Errorf("%v GB/s, want %v", res.ReadGBs, want)
				}
			}
		})
	}
}

func TestRunErrors(t *testing.T) {
	m := open(t, llama, pianola.Options{Table: pianola.TableOptions{Context: 32}})
	for _, c := range []struct {
		o        bench.Options
		contains string
	}{
		{bench.Options{Runs: 1}, "nothing to measure"},
		{bench.Options{Prompt: 1}, "0 runs"},
		{bench.Options{Prompt: -1, Runs: 1}, "-1 prompt tokens"},
		{bench.Options{Decode: -1, Runs: 1}, "-1 decoded tokens"},
		{bench.Options{Decode: 1, Depth: -1, Runs: 1}, "-1 tokens of depth"},
		{bench.Options{Decode: 1, Chain: -1, Runs: 1}, "-1 tokens of a chain"},
		{bench.Options{Decode: math.MaxInt, Chain: math.MaxInt, Runs: 1}, "not in"},
		{bench.Options{Prompt: 16, Decode: 17, Runs: 1}, "needs 33 positions, but the context has 32"},
		{bench.Options{Prompt: 16, Decode: 1, Chain: 17, Runs: 1}, "needs 33 positions"},
	} {
		if _, err := bench.Run(context.Background(), m, "", c.o); err == nil || !strings.Contains(err.Error(), c.contains) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.contains)
		}
	}
	if _, err := bench.Run(context.Background(), m, "", bench.Options{Runs: 1}); !errors.Is(err, bench.ErrNothing) {
		t.Errorf("%v is not ErrNothing", err)
	}
}

func TestCancel(t *testing.T) {
	m := open(t, gopher, pianola.Options{})
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	// This run would take minutes if it were not cancelled.
	res, err := bench.Run(ctx, m, "", bench.Options{Decode: 2000, Runs: 1000, Chain: 2000})
	if !errors.Is(err, cause) || res != nil {
		t.Errorf("%v, %v", res, err)
	}
	run(t, m, bench.Options{Prompt: 2, Decode: 2, Runs: 1}) // the model is still usable
}

// TestReads compares BytesPerToken with the number of bytes that gopher's commands read,
// counted by hand.
func TestReads(t *testing.T) {
	m := open(t, gopher, pianola.Options{Table: pianola.TableOptions{Context: 128}})
	reads, err := m.Table().Reads(table.ProgramDecode)
	if err != nil {
		t.Fatal(err)
	}
	const (
		q8       = 34.0 / 32 // bytes per element of Q8_0
		matrices = 8 * (256*512 + 256*256 + 256*1536 + 768*256) * q8
		head     = 4096 * 256 * q8
		row      = 256 * q8
		norms    = (2*8 + 1) * 256 * 4
		rope     = 32 * 4
	)
	weights, kv := uint64(0), uint64(0)
	for _, r := range reads {
		weights += r.Weights
		kv += r.KVRow
		if r.KVRow > 0 && r.Seen != 128 {
			t.Errorf("a command attends to %d of 128 positions", r.Seen)
		}
	}
	if want := uint64(matrices + head + row + norms + rope); weights != want {
		t.Errorf("%d bytes of weights, want %d", weights, want)
	}
	if want := uint64(8 * 2 * 2 * 64 * 2); kv != want {
		t.Errorf("%d bytes of KV per position, want %d", kv, want)
	}
	res := run(t, m, bench.Options{Prompt: 10, Decode: 4, Runs: 1, Chain: 2})
	// Tokens at positions 10 to 13 attend to 11 to 14 positions.
	if want := float64(weights) + float64(kv)*12.5; res.BytesPerToken != want {
		t.Errorf("%v bytes per token, want %v", res.BytesPerToken, want)
	}
}

// TestReadsOfPrefill compares the reads of a chunk with those of a token. Both read the same
// weights of the layers, but the chunk does not read the output matrix.
func TestReadsOfPrefill(t *testing.T) {
	m := open(t, gopher, pianola.Options{Table: pianola.TableOptions{Context: 128}})
	total := map[string]table.Reads{}
	for _, name := range []string{table.ProgramDecode, table.ProgramPrefill, table.ProgramHead} {
		reads, err := m.Table().Reads(name)
		if err != nil {
			t.Fatal(err)
		}
		var sum table.Reads
		for _, r := range reads {
			sum.Weights += r.Weights
			sum.KVRow += r.KVRow
		}
		total[name] = sum
	}
	decode, prefill, head := total[table.ProgramDecode], total[table.ProgramPrefill], total[table.ProgramHead]
	if prefill.KVRow != decode.KVRow || head.KVRow != 0 {
		t.Errorf("%d bytes of KV per position in decode, %d in prefill, %d in the head", decode.KVRow, prefill.KVRow, head.KVRow)
	}
	if prefill.Weights+head.Weights != decode.Weights {
		t.Errorf("%d bytes of weights in decode, %d in prefill, %d in the head", decode.Weights, prefill.Weights, head.Weights)
	}
	if _, err := m.Table().Reads("lunch"); err == nil || !strings.Contains(err.Error(), "lunch") {
		t.Errorf("a missing program: %v", err)
	}
}

func TestReadsOfAWindow(t *testing.T) {
	m := open(t, mistral, pianola.Options{Table: pianola.TableOptions{Context: 64}})
	reads, err := m.Table().Reads(table.ProgramDecode)
	if err != nil {
		t.Fatal(err)
	}
	layers := 0
	for _, r := range reads {
		if r.KVRow == 0 {
			continue
		}
		layers++
		if r.Seen != 16 || r.Bytes(4) != r.Weights+4*r.KVRow || r.Bytes(50) != r.Weights+16*r.KVRow {
			t.Errorf("%+v with a window of 16", r)
		}
	}
	if layers != 2 {
		t.Errorf("%d commands read a cache, want 2", layers)
	}
}

func TestReadsOfNoTable(t *testing.T) {
	if _, err := (&table.Table{}).Reads(table.ProgramDecode); err == nil {
		t.Error("Reads succeeds for a table without programs")
	}
	tab := &table.Table{
		Programs: []table.Program{{Name: table.ProgramDecode, Count: 1, MaxRows: 1}},
		Cmds:     []table.Cmd{{Kernel: 9999}}, Labels: []string{"x"},
	}
	if _, err := tab.Reads(table.ProgramDecode); err == nil || !strings.Contains(err.Error(), "command 0 (x)") {
		t.Errorf("%v", err)
	}
}

func TestPrompt(t *testing.T) {
	m := open(t, gopher, pianola.Options{})
	tok, err := m.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	a := bench.Prompt(m, 2000, 1)
	for i, id := range a {
		if _, ok := tok.Token(id); !ok || tok.Special(id) {
			t.Fatalf("id %d of the prompt is %d", i, id)
		}
	}
	if d := cmp.Diff(a, bench.Prompt(m, 2000, 1)); d != "" {
		t.Errorf("the same seed gives different prompts: %s", d)
	}
	if cmp.Equal(a, bench.Prompt(m, 2000, 2)) {
		t.Error("different seeds give the same prompt")
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		list []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{7, 1, 3}, 3}} {
		if got := bench.Median(c.list); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.list, got, c.want)
		}
	}
}

// benchLine matches a result line of golang.org/design/14313-benchmark-format.
var benchLine = regexp.MustCompile(`^Benchmark[A-Z]\S*-[0-9]+\t[0-9]+(\t[0-9.e+-]+ \S+)+$`)

func TestWriteBenchfmt(t *testing.T) {
	res := &bench.Result{
		Model: "a model/é", Device: "cpu", Name: "A  Processor", Mode: "encode", Chain: 8, ChainKept: true, Prompt: 4, Tokens: 8,
		PrefillTokS: []float64{1000}, DecodeTokS: []float64{100, 50}, AllocsPerToken: 0.25, EncodeNSPerCommand: 20,
	}
	var b strings.Builder
	if err := res.WriteBenchfmt(&b); err != nil {
		t.Fatal(err)
	}
	var units []string
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasPrefix(line, "Benchmark") {
			if key, value, ok := strings.Cut(line, ": "); !ok || value == "" || strings.ToLower(key) != key {
				t.Errorf("configuration line %q", line)
			}
			continue
		}
		if !benchLine.MatchString(line) {
			t.Errorf("benchmark line %q", line)
		}
		units = append(units, strings.Split(line, "\t")[2])
	}
	if d := cmp.Diff([]string{"1000000.0 ns/token", "10000000.0 ns/token", "20000000.0 ns/token"}, units); d != "" {
		t.Error(d)
	}
	if !strings.Contains(b.String(), "/chain=8-") || !strings.Contains(b.String(), "model=a_model__/") {
		t.Errorf("names in\n%s", b.String())
	}
}

func TestWriteText(t *testing.T) {
	res := &bench.Result{Model: "m", Device: "cpu", Mode: "encode", Chain: 3, Depth: 7, Tokens: 5, DecodeTokS: []float64{90, 100, 120}, BytesPerToken: 2e6, ReadGBs: 0.2}
	var b strings.Builder
	if err := res.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"100.0 ± 20.0 % tok/s, 5 tokens after 7", "chain 3 (what the time bound allows)", "2.00 MB a token, 0.20 GB/s"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "prefill") {
		t.Error("the text contains a prefill that was not measured")
	}
}

func TestWriteCurve(t *testing.T) {
	stop := errors.New("stop")
	rows := []*bench.Result{{Chain: 1, DecodeTokS: []float64{100}}, {Chain: 2, DecodeTokS: []float64{200}}}
	for _, end := range []error{nil, stop} {
		var b strings.Builder
		i := 0
		err := bench.WriteCurve(&b, func() (*bench.Result, error) {
			if i == len(rows) {
				return nil, end
			}
			i++
			return rows[i-1], nil
		})
		if err != end {
			t.Errorf("%v, want %v", err, end)
		}
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		if len(lines) != 3 {
			t.Fatalf("%q", b.String())
		}
		last := strings.Fields(lines[2])
		if ms, err := strconv.ParseFloat(last[2], 64); err != nil || ms != 5 || last[0] != "2" || last[1] != "200.0" {
			t.Errorf("row %q", lines[2])
		}
	}
}

func ExampleRun() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "../testdata/gopher-q8_0.gguf", pianola.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer m.Close()
	res, err := bench.Run(ctx, m, "gopher", bench.Options{Prompt: 8, Decode: 16, Runs: 1, Chain: 8})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	fmt.Println(res.Tokens, "tokens in", res.Submissions, "submissions")
	// Output: 16 tokens in 2 submissions
}
