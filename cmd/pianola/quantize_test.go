package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	reference "github.com/pianola-engine/pianola/internal/golden"
	"github.com/pianola-engine/pianola/internal/quantize"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

func TestQuantize(t *testing.T) {
	dir := t.TempDir()
	f16, q4 := filepath.Join(dir, "f16.gguf"), filepath.Join(dir, "q4.gguf")
	o := succeed(t, "convert", gopherHF, "-o", f16)
	if o.stdout != "" || !strings.Contains(o.stderr, "types as stored, 14.1 MiB") {
		t.Errorf("%+v", o)
	}
	eval := func(path string) string { return succeed(t, "eval", path, "--ids", "0,5,6", "-n", "6").stdout }
	if ids := func(s string) string { return s[strings.Index(s, "greedy"):] }; ids(eval(f16)) != ids(eval(gopherHF)) {
		t.Error("the converted model gives another output")
	}
	succeed(t, "quantize", f16, "--type", "q4_k_m", "--token-embedding-type", "Q8_0", "-t", "1", "-o", q4)
	info := decode[infoResult](t, succeed(t, "info", q4, "--json").stdout)
	types := map[string]int{}
	for _, x := range info.Types {
		types[x.Type] = x.Tensors
	}
	if types["Q4_K"] != 48 || types["Q6_K"] != 8 || types["Q8_0"] != 1 || types["F32"] != 17 {
		t.Errorf("%v", types)
	}
	ppl := succeed(t, "ppl", q4, "--file", "../../testdata/gopher/heldout.txt", "--chunks", "2").stdout
	want := succeed(t, "ppl", f16, "--file", "../../testdata/gopher/heldout.txt", "--chunks", "2").stdout
	number := func(s string) float64 {
		v, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimPrefix(s, "ppl ")), 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if r := number(ppl) / number(want); r < 1 || r > 1.3 {
		t.Errorf("perplexity %s, %s of the original", ppl, want)
	}
	list := succeed(t, "quantize", gopherHF, "--type", "Q2_K", "--dry-run").stdout
	if !strings.Contains(list, "blk.0.attn_v.weight") || !strings.Contains(list, "F16 -> Q3_K") || !strings.Contains(list, "MiB") {
		t.Errorf("%s", list)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestQuantizeErrors(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "out.gguf")
	wantError(t, runCommand(t, "quantize", gopherHF), 2, "quantize needs -o")
	wantError(t, runCommand(t, "quantize", gopherHF, "--type", "Q9", "-o", out), 2, "Q4_K_M")
	wantError(t, runCommand(t, "quantize", gopherHF, "--token-embedding-type", "I32", "-o", out), 2, "--token-embedding-type I32")
	wantError(t, runCommand(t, "quantize", gopherHF, "-t", "-1", "-o", out), 1, "-t -1: must be at least 0")
	wantError(t, runCommand(t, "quantize", gopher, "--type", "Q4_0", "-o", out), 1, "--allow-requantize")
	wantError(t, runCommand(t, "convert", gopherHF, "--type", "Q4_0", "-o", out), 2, "use pianola quantize")
	wantError(t, runCommand(t, "convert", gopher, "-o", out), 1, "already a GGUF file")
	wantError(t, runCommand(t, "convert", dir, "-o", out), 1, "config.json")
	wantError(t, runCommand(t, "quantize", gopher, "--type", "Q8_0", "-o", gopher), 1, "is also the input")
	wantError(t, runCommand(t, "quantize", gopherHF, "-o", filepath.Join(dir, "no", "such.gguf")), 1, "no such file")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if o := runWith(t, ctx, "", "quantize", gopherHF, "-o", out); o.status == 0 {
		t.Errorf("%+v", o)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("a failed command left files: %v, %v", left, err)
	}
}

// peer is the path of llamapeer, a program that runs llama.cpp, and of its library's directory.
var peer = flag.String("peer", "", "path of llamapeer and of its library's directory: compare with llama.cpp")

// peerTypes are the perplexities of gopher that llama.cpp computes over 40 chunks of heldout.txt,
// with token embeddings in Q8_0, and the largest relative difference that is allowed.
var peerTypes = []struct {
	name string
	ppl  float64
	off  float64
}{
	{"F16", 6.2007, 0.01}, {"BF16", 6.2044, 0.01}, {"Q8_0", 6.2407, 0.01}, {"Q6_K", 6.1635, 0.01}, {"Q5_1", 6.3412, 0.01},
	{"Q5_0", 6.4663, 0.01}, {"Q5_K_M", 6.3438, 0.01}, {"Q4_0", 6.3172, 0.01}, {"Q4_1", 7.2038, 0.01}, {"Q4_K_M", 7.2994, 0.01},
	{"Q3_K_M", 8.5025, 0.01}, {"Q2_K", 17.6080, 0.02}, {"IQ4_NL", 6.8742, 0.01}, {"IQ4_XS", 7.0818, 0.01},
}

// quantizedGopher quantizes gopher to a type and returns the file's path and the duration in seconds.
func quantizedGopher(t *testing.T, dir, name string) (path, seconds string) {
	t.Helper()
	args := []string{"quantize", gopherHF, "--type", name, "-o", filepath.Join(dir, name+".gguf")}
	m, err := quantize.FindMix(name)
	if err != nil {
		t.Fatal(err)
	}
	if m.Base.Quantized() {
		args = append(args, "--token-embedding-type", "Q8_0")
	}
	words := strings.Fields(succeed(t, args...).stderr)
	return args[5], words[len(words)-2]
}

// TestPeer quantizes gopher and the small models to every type, and compares the greedy tokens that
// llama.cpp generates from the files with Pianola's. See docs/QUANTIZE.md.
func TestPeer(t *testing.T) {
	if *peer == "" {
		t.Skip("no -peer: llama.cpp is not there to compare with")
	}
	dir := t.TempDir()
	for _, typ := range peerTypes {
		out, seconds := quantizedGopher(t, dir, typ.name)
		info, err := os.Stat(out)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("| %s | %s | %d | %s |", typ.name, againstPeer(t, out, "../../testdata/gopher/golden.json"), info.Size(), seconds)
	}
	for _, name := range []string{
		"tiny/llama", "tiny/qwen2", "tiny/qwen3", "tiny/gemma2", "tiny/gemma3_text", "tiny/phi3", "variants/gpt_oss", "variants/qwen3_moe",
		"variants/mixtral", "variants/gemma", "variants/granite", "variants/olmo2", "variants/llama_yarn_mscale",
	} {
		for _, args := range [][]string{{"convert"}, {"quantize", "--type", "Q4_K_M"}} {
			out, model := filepath.Join(dir, "model.gguf"), testmodels.Path(t, filepath.Join("../../testdata", name))
			if args[0] == "quantize" && (strings.HasSuffix(name, "moe") || strings.HasSuffix(name, "mixtral")) {
				continue // rounding selects other experts, and the experts' weights are random
			}
			succeed(t, append(args, model, "-o", out)...)
			t.Logf("%s %v: %s", name, args, againstPeer(t, out, filepath.Join(model, "golden.json")))
		}
	}
}

// TestPeerPerplexity quantizes gopher and compares its perplexities with those that llama.cpp
// computes for files from its own quantizer.
func TestPeerPerplexity(t *testing.T) {
	if *peer == "" {
		t.Skip("no -peer: this takes minutes")
	}
	dir := t.TempDir()
	for _, typ := range peerTypes {
		out, _ := quantizedGopher(t, dir, typ.name)
		ppl := succeed(t, "ppl", out, "--file", "../../testdata/gopher/heldout.txt").stdout
		got, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimPrefix(ppl, "ppl ")), 64)
		if err != nil {
			t.Fatal(err)
		}
		off := got/typ.ppl - 1
		if math.Abs(off) > typ.off {
			t.Errorf("%s: a perplexity of %.4f, %.2f %% from llama.cpp's", typ.name, got, 100*off)
		}
		t.Logf("| %s | %.4f | %.4f | %+.2f %% |", typ.name, got, typ.ppl, 100*off)
	}
}

// againstPeer compares greedy tokens with llama.cpp's and returns the number of equal ones. At a
// token that differs, the logits of the two programs must be close, so that it is a near tie.
func againstPeer(t *testing.T, model, prompts string) string {
	t.Helper()
	const limit = 0.1 // both round activations to eight bits, in different blocks; each differs by up to 7 % from exact arithmetic
	ref, err := reference.Read(prompts)
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		Logits []float64 `json:"last_prompt_logits"`
		IDs    []int32   `json:"greedy_ids"`
	}
	both := func(ids []int32, n int) (ours, theirs result) {
		words := make([]string, len(ids))
		for i, id := range ids {
			words[i] = strconv.Itoa(int(id))
		}
		list := strings.Join(words, ",")
		ours = decode[result](t, succeed(t, "eval", model, "--ids", list, "-n", strconv.Itoa(n), "-t", "1").stdout)
		args := append(strings.Fields(*peer), model, "eval", list, "-n", strconv.Itoa(n), "-t", "1")
		out, err := exec.Command(args[0], args[1:]...).Output()
		if err != nil {
			t.Fatalf("llamapeer: %s: %v", model, err)
		}
		return ours, decode[result](t, string(out))
	}
	most := 0.0
	near := func(a, b []float64) bool {
		var diff, norm float64
		for i, v := range a {
			diff += (v - b[i]) * (v - b[i])
			norm += b[i] * b[i]
		}
		most = max(most, math.Sqrt(diff/norm))
		return math.Sqrt(diff/norm) <= limit
	}
	alike, all := 0, 0
	for _, c := range ref.Cases {
		ours, theirs := both(c.PromptIDs, 48)
		if !near(ours.Logits, theirs.Logits) {
			t.Errorf("%s: the logits differ from llama.cpp's", model)
		}
		n := 0
		for n < len(ours.IDs) && ours.IDs[n] == theirs.IDs[n] {
			n++
		}
		alike, all = alike+n, all+len(ours.IDs)
		if n < len(ours.IDs) {
			context := append(append([]int32{}, c.PromptIDs...), ours.IDs[:n]...)
			if ours, theirs := both(context, 1); !near(ours.Logits, theirs.Logits) {
				t.Errorf("%s: token %d is %d, llama.cpp's %d, and the logits are far apart", model, n, ours.IDs[0], theirs.IDs[0])
			}
		}
	}
	return fmt.Sprintf("%d of %d, logits within %.2g", alike, all, most)
}
