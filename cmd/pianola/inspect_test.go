package main

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/packed"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// TestDivergence compares the measures of random distributions with their definitions.
func TestDivergence(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const n, vocab = 500, 40
	var d divergence
	var kl, change []float64
	same := 0
	for range n {
		logits, base := make([]float32, vocab), make([]float32, vocab)
		for i := range base {
			base[i] = float32(r.NormFloat64()*3 + 50)
			logits[i] = base[i] + float32(r.NormFloat64())*0.3 - 7
		}
		p, q := softmax(logits), softmax(base)
		next := r.IntN(vocab)
		if err := d.add(logits, base, next); err != nil {
			t.Fatal(err)
		}
		sum, top, topBase := 0.0, 0, 0
		for i := range q {
			sum += q[i] * math.Log(q[i]/p[i])
			if p[i] > p[top] {
				top = i
			}
			if q[i] > q[topBase] {
				topBase = i
			}
		}
		kl, change = append(kl, sum), append(change, p[next]-q[next])
		if top == topBase {
			same++
		}
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9+1e-6*math.Abs(want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	got := d.result()
	for _, c := range []struct {
		what   string
		values []float64
		got    estimate
	}{{"KL divergence", kl, got.KL}, {"change", change, got.Change}} {
		mean, variance := 0.0, 0.0
		for _, v := range c.values {
			mean += v / n
		}
		for _, v := range c.values {
			variance += (v - mean) * (v - mean) / (n - 1)
		}
		near(c.what, c.got.Mean, mean)
		near(c.what+", error", c.got.Error, math.Sqrt(variance/n))
	}
	near("agreement", got.Top.Mean, float64(same)/n)
	if got.Tokens != n || !(got.KLPercentiles.Min <= got.KLPercentiles.Median && got.KLPercentiles.Median < got.KLPercentiles.P99 && got.KLPercentiles.P99 < got.KLPercentiles.Max) {
		t.Errorf("%+v", got)
	}
	if q := quantilesOf([]float64{4, 1, 3, 2, 5}); q.Median != 3 || q.P25 != 2 || q.P90 != 4.6 || q.Min != 1 || q.Max != 5 {
		t.Errorf("%+v", q)
	}
	if err := d.add([]float32{0, float32(math.NaN())}, []float32{0, 1}, 0); err == nil {
		t.Error("no error for NaN")
	}
}

func softmax(logits []float32) []float64 {
	p, sum := make([]float64, len(logits)), 0.0
	for i, v := range logits {
		p[i] = math.Exp(float64(v))
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

// TestAgainst compares a model with itself, with other KV caches, and with a model that has other
// tokens.
func TestAgainst(t *testing.T) {
	args := []string{"ppl", gopher, "--device", "cpu", "--file", "../../testdata/gopher/heldout.txt", "-c", "64", "--chunks", "3", "--json", "--against"}
	same := decode[divergenceResult](t, succeed(t, append(args, gopher)...).stdout)
	if same.KL.Mean != 0 || same.Top.Mean != 1 || same.LogRatio.Mean != 0 || same.PPL != same.Base || same.Tokens != 3*31 {
		t.Errorf("%+v", same)
	}
	other := decode[divergenceResult](t, succeed(t, append(args, gopherHF, "--kv", "q8_0")...).stdout)
	if !(other.KL.Mean > 1e-4 && other.KL.Mean < 0.02 && other.Top.Mean > 0.9) || other.PPL.Mean == other.Base.Mean {
		t.Errorf("%+v", other)
	}
	alone := decode[struct{ PPL float64 }](t, succeed(t, append(args[:len(args)-1:len(args)-1], "--kv", "q8_0")...).stdout)
	if math.Abs(alone.PPL-other.PPL.Mean) > 1e-9*alone.PPL {
		t.Errorf("a perplexity of %v, alone %v", other.PPL.Mean, alone.PPL)
	}
	text := succeed(t, append(args[:len(args)-2:len(args)-2], "--against", gopherHF)...).stdout
	if !strings.Contains(text, "KL divergence ") || !strings.Contains(text, "same most probable token ") {
		t.Errorf("%s", text)
	}
}

// TestCheckActivations checks models that compute nothing but numbers, greedily and sampled, and
// one with a weight that makes a norm infinite.
func TestCheckActivations(t *testing.T) {
	for _, model := range []string{gopher, tiny(t, "mistral"), testmodels.Path(t, "../../testdata/variants/gpt_oss"), testmodels.Path(t, "../../testdata/variants/gemma2_caps")} {
		succeed(t, "eval", model, "--device", "cpu", "--ids", "5,6,7,8,9", "-n", "6", "--check-activations")
	}
	succeed(t, "run", gopher, "--device", "cpu", "-p", "func", "-n", "4", "--temp", "0.8", "--top-k", "5", "--check-activations")
	const name = "model.layers.0.mlp.down_proj.weight"
	bad := cutModel(t, func(m *packed.Model) { copy(m.Tensors[name].Data[8:], "\x00\x00\xc0\xff") })
	got := runCommand(t, "eval", bad, "--device", "cpu", "--ids", "5,6", "-n", "1", "--check-activations")
	if got.status != statusFailed || !strings.Contains(got.stderr, "(layer.0.ffn.down): result y at position 0: 2 values are NaN and 0 infinite") {
		t.Errorf("%+v", got)
	}
}

// TestChipFile compiles for a chip in a file: the table is that of the chip with the same data, and a
// change of the data changes it.
func TestChipFile(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile("../../chip/data/m4-pro.json")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return file
	}
	own := write("own.json", string(text))
	succeed(t, "diff", gopher, gopher, "--chip-a", "m4-pro", "--chip-file-b", own)
	changed := strings.Replace(string(text), `"name": "m4-pro"`, `"name": "mine"`, 1)
	changed = strings.Replace(changed, `"prefill_chunk": 512`, `"prefill_chunk": 128`, 1)
	if changed == string(text) || !strings.Contains(changed, `"prefill_chunk": 128`) {
		t.Fatal("the data of m4-pro has other fields")
	}
	mine, roll := write("mine.json", changed), filepath.Join(dir, "mine.roll")
	out := succeed(t, "compile", gopher, "--chip-file", mine, "-o", roll)
	if !strings.Contains(out.stderr, "compiled for mine") {
		t.Errorf("%s", out.stderr)
	}
	succeed(t, "check", roll)
	if o := runCommand(t, "diff", roll, gopher, "--chip-b", "m4-pro"); o.status != statusDifferent {
		t.Errorf("%+v", o)
	}
	if out := succeed(t, "compile", gopher, "--chip-file", mine, "--dump-after", "graph").stdout; !strings.Contains(out, "program decode") {
		t.Errorf("%s", out)
	}
	if c := decode[costResult](t, succeed(t, "cost", gopher, "--chip-file", mine, "--json").stdout); c.Chip != "mine" || c.DecodeTokS <= 0 {
		t.Errorf("%+v", c)
	}
	wantError(t, runCommand(t, "bench", gopher, "--chip-file", mine, "--roll", roll), statusUsage, "--roll and --chip-file exclude each other")
	wantError(t, runCommand(t, "profile", gopher, "--chip-file", filepath.Join(dir, "none"), "--device", "cpu"), statusFailed, "no such file")
	wantError(t, runCommand(t, "compile", gopher, "--chip-file", mine, "--chip", "cpu", "-o", roll), statusUsage, "--chip and --chip-file exclude each other")
	wantError(t, runCommand(t, "compile", gopher, "--chip-file", write("bad.json", `{"name": "x"}`), "-o", roll), statusFailed, "bad.json")
	wantError(t, runCommand(t, "compile", gopher, "--chip-file", filepath.Join(dir, "none"), "-o", roll), statusFailed, "no such file")
}

// TestLimitFlags runs a model with limits of its memory, as large as needed and smaller.
func TestLimitFlags(t *testing.T) {
	eval := []string{"eval", gopher, "--device", "cpu", "--ids", "5,6", "-n", "2", "--no-prewarm"}
	succeed(t, append(eval, "--weight-limit", "1G", "--kv-limit", "1G", "--scratch-limit", "1G")...)
	for flag, kind := range map[string]string{"--weight-limit": "weight", "--kv-limit": "kv", "--scratch-limit": "scratch"} {
		wantError(t, runCommand(t, append(eval, flag, "1K")...), statusFailed, "bytes of kind "+kind+" are needed, and the limit is 1024")
	}
	wantError(t, runCommand(t, append(eval, "--kv-limit", "much")...), statusUsage, "not a number of bytes")
}

// TestArchFile runs a model of a family that only a file describes.
func TestArchFile(t *testing.T) {
	text, err := os.ReadFile("../../arch/data/llama.json")
	if err != nil {
		t.Fatal(err)
	}
	var family map[string]any
	if err := json.Unmarshal(text, &family); err != nil {
		t.Fatal(err)
	}
	delete(family, "gguf")
	family["name"] = "lunch"
	hf := family["hf"].(map[string]any)
	hf["model_types"], hf["architectures"] = []string{"lunch"}, []string{"LunchForCausalLM"}
	delete(hf, "by_tensors")
	if text, err = json.Marshal(family); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "lunch.json")
	if err := os.WriteFile(file, text, 0o666); err != nil {
		t.Fatal(err)
	}
	dir := cutModel(t, func(m *packed.Model) {
		m.Config["model_type"], m.Config["architectures"] = "lunch", []string{"LunchForCausalLM"}
	})
	eval := []string{"eval", dir, "--device", "cpu", "--ids", "5,6", "-n", "2"}
	wantError(t, runCommand(t, eval...), statusFailed, "lunch")
	succeed(t, append(eval, "--arch-file", file)...)
	for _, args := range [][]string{{"compile", dir, "-o", filepath.Join(t.TempDir(), "x.roll")}, {"dump", dir, "--range", "0:1"}, {"info", dir}, {"plan", dir, "--device", "cpu"}, {"tap", dir, "--device", "cpu", "--ids", "5", "--label", "out.*"}} {
		succeed(t, append(args, "--arch-file", file)...)
	}
	for _, c := range []struct{ file, want string }{
		{filepath.Join(t.TempDir(), "none.json"), "no such file"},
		{"../../arch/data", "want a name that ends with .json"},
		{"../../chip/data/m4-pro.json", "m4-pro.json"},
	} {
		wantError(t, runCommand(t, append(eval, "--arch-file", c.file)...), statusFailed, c.want)
	}
	wantError(t, runCommand(t, append(eval, "--arch-file", file, "--arch-file", file)...), statusFailed, "two files have the name lunch.json")
}
