package main

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/quantize"
	"github.com/pianola-engine/pianola/internal/synth"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/table"
)

func TestBenchJSON(t *testing.T) {
	o := succeed(t, "bench", gopher, "-p", "16", "-n", "12", "-r", "2", "-d", "4", "--chain", "4", "--json")
	res := decode[map[string]any](t, o.stdout)
	for _, name := range []string{
		"device", "mode", "chain", "pp_tok_s", "tg_tok_s", "commands", "encode_ns_per_command", "allocs_per_token",
		"bytes_per_token", "read_gb_s", "load_ms", "ttft_ms", "rss_mb", "encode_ms", "wait_ms", "submissions", "waits",
		"table_bytes", "patched_commands",
	} {
		v, ok := res[name]
		if !ok {
			t.Errorf("no field %s", name)
		}
		if n, ok := v.(float64); ok && n <= 0 && name != "allocs_per_token" {
			t.Errorf("%s is %v", name, n)
		}
	}
	if pp, tg := res["pp_tok_s"].([]any), res["tg_tok_s"].([]any); len(pp) != 2 || len(tg) != 2 {
		t.Errorf("rates %v and %v of 2 runs", pp, tg)
	}
	want := map[string]any{"device": "cpu", "mode": "encode", "chain": 4.0, "submissions": 3.0, "waits": 3.0, "depth": 4.0}
	for name, v := range want {
		if res[name] != v {
			t.Errorf("%s is %v, want %v", name, res[name], v)
		}
	}
}

func TestBenchCurve(t *testing.T) {
	args := []string{"bench", tiny(t, "llama"), "-p", "0", "-n", "8", "-r", "1", "--chain", "1,2,16"}
	var chains []int
	for line := range strings.Lines(succeed(t, append(args, "--json")...).stdout) {
		res := decode[struct {
			Chain, Tokens, Submissions int
			PP                         []float64 `json:"pp_tok_s"`
		}](t, line)
		if res.PP == nil || len(res.PP) != 0 {
			t.Errorf("-p 0 gives rates %v", res.PP)
		}
		if res.Submissions*res.Chain != res.Tokens {
			t.Errorf("%d submissions of %d for %d tokens", res.Submissions, res.Chain, res.Tokens)
		}
		chains = append(chains, res.Chain)
	}
	if d := cmp.Diff([]int{1, 2, 16}, chains); d != "" {
		t.Error(d)
	}
	text := succeed(t, args...).stdout
	if n := strings.Count(text, "\n"); n != 4 || !strings.Contains(text, "decode tok/s") {
		t.Errorf("the curve is\n%s", text)
	}
}

func TestBenchText(t *testing.T) {
	text := succeed(t, "bench", tiny(t, "qwen3"), "-p", "8", "-n", "8", "-r", "2").stdout
	for _, part := range []string{"prefill", "decode", "tok/s", "commands", "encode", "first token", "memory"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
	lines := succeed(t, "bench", tiny(t, "qwen3"), "-p", "8", "-n", "8", "-r", "2", "--benchfmt").stdout
	if strings.Count(lines, "\nBenchmarkPrefill/model=qwen3/") != 2 || strings.Count(lines, "\nBenchmarkDecode/model=qwen3/") != 2 {
		t.Errorf("benchmark lines\n%s", lines)
	}
}

func TestProfile(t *testing.T) {
	args := []string{"profile", gopher, "-n", "4"}
	res := decode[profileResult](t, succeed(t, append(args, "--json")...).stdout)
	h, err := pianola.OpenHeader(gopher, nil)
	if err != nil {
		t.Fatal(err)
	}
	tab, err := h.Compile("cpu", pianola.TableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p, _, _ := tab.Program(table.ProgramDecode)
	if len(res.Commands) != int(p.Count) || len(res.Groups) == 0 || len(res.Groups) >= len(res.Commands) {
		t.Fatalf("%d commands and %d groups of %d", len(res.Commands), len(res.Groups), p.Count)
	}
	for i, lines := range [][]profileLine{res.Commands, res.Groups} {
		us, share, count := 0.0, 0.0, 0
		for _, l := range lines {
			us, share, count = us+l.US, share+l.Share, count+l.Count
		}
		if math.Abs(us-res.TotalUS) > 1e-6*us || math.Abs(share-1) > 1e-6 || count != int(p.Count) || us <= 0 {
			t.Errorf("list %d: %v us of %v, share %v, %d commands", i, us, res.TotalUS, share, count)
		}
	}
	if res.OverheadNS <= 0 {
		t.Error("no overhead")
	}
	text := succeed(t, args...).stdout
	for _, part := range []string{"layer.7.ffn.down", "layer.*.ffn.down", "overhead", "GB/s", "share", "us per command"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
	if short := succeed(t, append(args, "--by-label")...).stdout; strings.Contains(short, "layer.7.ffn.down") || !strings.Contains(short, "layer.*.ffn.down") {
		t.Errorf("--by-label gives\n%s", short)
	}
}

// TestProfilePrefill profiles a prompt of two chunks. Both chunks read the KV cache.
func TestProfilePrefill(t *testing.T) {
	h, err := pianola.OpenHeader(gopher, nil)
	if err != nil {
		t.Fatal(err)
	}
	tab, err := h.Compile("cpu", pianola.TableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	prefill, _, _ := tab.Program(table.ProgramPrefill)
	head, _, _ := tab.Program(table.ProgramHead)
	n := int(tab.Header.Chunk) + 3
	args := []string{"profile", gopher, "--prefill", strconv.Itoa(n), "-r", "2"}
	var kv [2]uint64
	for i, depth := range []int{0, 9} {
		res := decode[profileResult](t, succeed(t, append(args, "--json", "-d", strconv.Itoa(depth))...).stdout)
		if len(res.Commands) != int(prefill.Count+head.Count) || res.Prompt != n || res.Tokens != 2*n || res.Depth != depth || res.OverheadNS <= 0 {
			t.Fatalf("%d commands of %d and %d, %+v", len(res.Commands), prefill.Count, head.Count, res)
		}
		us, share := 0.0, 0.0
		for _, l := range res.Groups {
			us, share = us+l.US, share+l.Share
			if l.Label == "layer.*.attn.attention" {
				kv[i] = l.Bytes
			}
		}
		if math.Abs(us-res.TotalUS) > 1e-6*us || math.Abs(share-1) > 1e-6 || us <= 0 {
			t.Errorf("depth %d: %v us of %v, share %v", depth, us, res.TotalUS, share)
		}
	}
	// 8 layers, K and V, 2 heads of 64 elements, 2 bytes each.
	if position := uint64(8 * 2 * 2 * 64 * 2); kv[0] != position*uint64(2*n-3) || kv[1] != kv[0]+2*9*position {
		t.Errorf("attention reads %d bytes at depth 0 and %d at depth 9", kv[0], kv[1])
	}
	text := succeed(t, args...).stdout
	for _, part := range []string{"layer.7.ffn.down", "out.logits", "us per prompt of", "tok/s", "mean of 2 prompts"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

// TestProfileBatch profiles steps of three rows. Each row reads its own KV cache, and all of them the weights.
func TestProfileBatch(t *testing.T) {
	args := []string{"profile", gopher, "-n", "4", "-d", "9", "--ctx", "64"}
	one := decode[profileResult](t, succeed(t, append(args, "--json", "--batch", "1")...).stdout)
	res := decode[profileResult](t, succeed(t, append(args, "--json", "--batch", "3")...).stdout)
	us := 0.0
	for _, l := range res.Groups {
		us += l.US
	}
	if res.Rows != 3 || res.Tokens != 12 || math.Abs(us-res.TotalUS) > 1e-6*us || us <= 0 || len(one.Commands) != len(res.Commands) {
		t.Fatalf("%+v, commands take %v us", res, us)
	}
	kv := 0
	for i := range res.Commands {
		a, b := &one.Commands[i], &res.Commands[i]
		if want := a.Bytes; strings.HasSuffix(a.Label, ".attention") {
			kv++
			if b.Bytes != 3*want || want == 0 {
				t.Errorf("%s reads %d bytes for three rows, %d for one", a.Label, b.Bytes, want)
			}
		} else if b.Bytes != want {
			t.Errorf("%s reads %d bytes for three rows, %d for one", a.Label, b.Bytes, want)
		}
	}
	if kv != 8 {
		t.Errorf("%d commands of attention", kv)
	}
	if text := succeed(t, append(args, "--batch", "3", "--by-label")...).stdout; !strings.Contains(text, "us per step of 3 rows after 9 tokens") {
		t.Errorf("output\n%s", text)
	}
	for _, wrong := range []struct {
		want string
		args []string
	}{
		{"4 steps after 9 tokens need more than 14 positions, but the context has 12", []string{"profile", gopher, "-n", "4", "-d", "9", "--ctx", "12", "--batch", "2"}},
		{"-r requires --prefill, and excludes --batch", append(args, "--batch", "2", "--prefill", "3", "-r", "2")},
		{"--prefill and -n exclude each other without --batch", append(args, "--prefill", "3")},
		{"--prefill 0: must be at least 1", append(args, "--batch", "2", "--prefill", "0")},
		{"profile: 65 sequences: the table's batch programs have at most 64 rows", append(args, "--batch", "65", "--device", "cpu")},
		{"profile: 65 sequences: the table's batch programs have at most 64 rows", append(args, "--batch", "64", "--prefill", "3", "--device", "cpu")},
		{"--batch 0: must be 1 to 4096", append(args, "--batch", "0")},
	} {
		if o := runCommand(t, wrong.args...); o.status == 0 || !strings.Contains(o.stderr, wrong.want) {
			t.Errorf("%q: status %d, %s", wrong.args, o.status, o.stderr)
		}
	}
}

// TestProfileJoint profiles passes in which a prompt is prefilled beside eight rows. The head computes the rows
// and, if the pass has the end of a prompt, one more.
func TestProfileJoint(t *testing.T) {
	args := []string{"profile", gopher, "-n", "2", "-d", "9", "--ctx", "512", "--batch", "8", "--prefill", "100", "--device", "cpu"}
	res := decode[profileResult](t, succeed(t, append(args, "--json")...).stdout)
	if res.Rows != 8 || res.Prompt != 100 || res.PromptRows != 100 || res.Tokens != 16 || res.TotalUS <= 0 {
		t.Fatalf("%d rows and %d of %d tokens of a prompt, %d tokens, %v us", res.Rows, res.PromptRows, res.Prompt, res.Tokens, res.TotalUS)
	}
	weights, parts := uint64(0), map[string]int{}
	for _, c := range res.Commands {
		parts[withoutLayer(c.Label)]++
		if !strings.HasSuffix(c.Label, ".attention") {
			weights += c.Bytes
		}
	}
	if parts["layer.*.attn.attention"] != 8 || parts["layer.*.ffn.down"] != 8 || parts["out.logits"] != 1 {
		t.Errorf("commands %v", parts)
	}
	step := decode[profileResult](t, succeed(t, "profile", gopher, "-n", "1", "--batch", "1", "--json", "--device", "cpu").stdout)
	once := uint64(0)
	for _, c := range step.Commands {
		if !strings.HasSuffix(c.Label, ".attention") {
			once += c.Bytes
		}
	}
	// Rows of the embedding are read for each row, all other weights once.
	if weights < once || weights > once+once/100 {
		t.Errorf("a pass reads %d bytes of weights, a step of one row %d", weights, once)
	}
	if text := succeed(t, append(args, "--by-label")...).stdout; !strings.Contains(text, "us per pass of 8 rows after 9 tokens and ") || !strings.Contains(text, " of the 100 tokens of a prompt, ") {
		t.Errorf("output\n%s", text)
	}
}

func TestWithoutLayer(t *testing.T) {
	for label, want := range map[string]string{
		"layer.12.attn.qkv": "layer.*.attn.qkv", "layer.x.attn": "layer.x.attn", "out.norm": "out.norm", "layer.3": "layer.3",
	} {
		if got := withoutLayer(label); got != want {
			t.Errorf("%s becomes %s, want %s", label, got, want)
		}
	}
}

func TestDevices(t *testing.T) {
	text := succeed(t, "devices").stdout
	type result struct {
		Devices []deviceResult `json:"devices"`
	}
	res := decode[result](t, succeed(t, "devices", "--json").stdout)
	if len(res.Devices) != 3 || strings.Count(text, "\n") != 3 {
		t.Fatalf("%+v\n%s", res, text)
	}
	for _, d := range res.Devices {
		if d.Available == (d.Why != "") || d.Available && len(d.Modes) == 0 {
			t.Errorf("%+v", d)
		}
		if !strings.Contains(text, d.Device) {
			t.Errorf("no %s in\n%s", d.Device, text)
		}
	}
}

func TestSynth(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.gguf"), filepath.Join(dir, "b.gguf")
	o := succeed(t, "synth", "gopher", "--quant", "Q8_0", "-o", a)
	if o.stdout != "" || !strings.Contains(o.stderr, "gopher in Q8_0") {
		t.Errorf("%+v", o)
	}
	succeed(t, "synth", "gopher", "--quant", "Q8_0", "-o", b, "--seed", "2")
	eval := func(path string) string { return succeed(t, "eval", path, "--ids", "5,6", "-n", "4").stdout }
	if eval(a) == eval(b) {
		t.Error("two seeds give the same model")
	}
	succeed(t, "run", a, "-p", "func", "-n", "4")
	succeed(t, "synth", "gopher", "--quant", "Q8_0", "-o", b, "--layers", "3")
	if info := decode[infoResult](t, succeed(t, "info", b, "--json").stdout); info.Model == nil || info.Model.Layers != 3 {
		t.Errorf("--layers 3 gives %+v", info.Model)
	}
	list := succeed(t, "synth", "--list").stdout
	for _, q := range quantize.Mixes() {
		if !strings.Contains(list, q) {
			t.Errorf("no %s in\n%s", q, list)
		}
	}
	for _, s := range synth.Shapes() {
		if !strings.Contains(list, "\n"+s.Name+" ") {
			t.Errorf("no %s in\n%s", s.Name, list)
		}
	}
}

func TestInfo(t *testing.T) {
	text := succeed(t, "info", gopher).stdout
	for _, part := range []string{"llama", "7.34 M", "8, width 256", "4 heads of 64, 2 KV heads", "2048", "4096", "Q8_0", "F32", "BOS", "tied", "69 commands"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
	res := decode[infoResult](t, succeed(t, "info", gopher, "--json").stdout)
	bytes := uint64(0)
	for _, ty := range res.Types {
		bytes += ty.Bytes
	}
	if !res.Supported || res.Model == nil || res.Model.Context != 2048 || bytes == 0 || bytes > res.Bytes || res.Tokenizer.Size != 4096 {
		t.Errorf("%+v", res)
	}
	if mistral := succeed(t, "info", tiny(t, "mistral")).stdout; !strings.Contains(mistral, "2 layers attend to 16 positions") || !strings.Contains(mistral, "none usable") {
		t.Errorf("mistral is\n%s", mistral)
	}
	const experts = "8 of width 64 in 2 layers, 2 chosen by sigmoid and bias from 2 of 4 groups, a shared one of width 128"
	if glm := succeed(t, "info", testmodels.Path(t, "../../testdata/variants/glm4_moe_qknorm")).stdout; !strings.Contains(glm, experts) {
		t.Errorf("glm4_moe_qknorm is\n%s", glm)
	}
}

func TestInfoOfAnUnknownArchitecture(t *testing.T) {
	dir := t.TempDir()
	copyModel(t, tiny(t, "llama"), dir, func(config string) string {
		return strings.ReplaceAll(strings.ReplaceAll(config, `"llama"`, `"novelty"`), "LlamaForCausalLM", "NoveltyForCausalLM")
	})
	text := succeed(t, "info", dir).stdout
	for _, part := range []string{"novelty (not supported: ", "F16"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
	res := decode[infoResult](t, succeed(t, "info", dir, "--json").stdout)
	if res.Supported || res.Why == "" || res.Model != nil || res.Tensors == 0 || res.Architecture != "novelty" {
		t.Errorf("%+v", res)
	}
	wantError(t, runCommand(t, "eval", dir, "--ids", "1"), statusFailed, "novelty")
}

func TestFigures(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{byteSize(0), "0 B"}, {byteSize(1023), "1023 B"}, {byteSize(1 << 10), "1.00 KiB"}, {byteSize(1023 << 10), "1.00 MiB"},
		{byteSize(5 << 29), "2.50 GiB"}, {byteSize(math.MaxUint64), "16777216 TiB"},
		{figure(9.999), "10.0"}, {figure(0), "0.00"}, {figure(12345.6), "12346"},
		{count(999), "999"}, {count(7344384), "7.34 M"}, {count(8030261248), "8.03 G"},
		{windows([]int{0, 512, 512}), "1 layers attend to all positions, 2 layers attend to 512 positions"},
		{oneLine("a\nb\x1b[31m\t"), `a; b\x1b[31m`},
		{fmt.Sprint(rate(0, 5)), "0"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}
