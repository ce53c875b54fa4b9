package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

// golden is a reference result, computed by transformers in float32 arithmetic.
type golden struct {
	Cases []goldenCase `json:"cases"`
}

type goldenCase struct {
	Prompt           string    `json:"prompt"`
	PromptIDs        []int32   `json:"prompt_ids"`
	LastPromptLogits []float64 `json:"last_prompt_logits"`
	GreedyIDs        []int32   `json:"greedy_ids"`
	Top2Gap          []float64 `json:"top2_gap"`
	Text             string    `json:"text"`
}

func readGolden(t *testing.T, dir string) []goldenCase {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Cases) == 0 {
		t.Fatal("no cases")
	}
	return g.Cases
}

type evalResult struct {
	LastPromptLogits []float64   `json:"last_prompt_logits"`
	GreedyIDs        []int32     `json:"greedy_ids"`
	Logits           [][]float64 `json:"logits"`
}

// relativeError returns the norm of got - want divided by the norm of want, and the largest
// absolute difference.
func relativeError(got, want []float64) (relative, largest float64) {
	var diff, norm float64
	for i := range want {
		d := got[i] - want[i]
		diff += d * d
		norm += want[i] * want[i]
		largest = max(largest, math.Abs(d))
	}
	return math.Sqrt(diff / norm), largest
}

func TestEvalAgreesWithGolden(t *testing.T) {
	for _, path := range []string{"llama", "llama/model.gguf", "qwen2", "qwen3/model.gguf", "mistral"} {
		t.Run(path, func(t *testing.T) {
			model := tiny(t, path)
			for _, c := range readGolden(t, tiny(t, strings.Split(path, "/")[0])) {
				got := decode[evalResult](t, succeed(t, "eval", model, "--ids", joinIDs(c.PromptIDs)).stdout)
				if len(got.LastPromptLogits) != len(c.LastPromptLogits) || len(got.GreedyIDs) != 48 || got.Logits != nil {
					t.Fatalf("%d logits, %d ids, %d rows", len(got.LastPromptLogits), len(got.GreedyIDs), len(got.Logits))
				}
				rel, largest := relativeError(got.LastPromptLogits, c.LastPromptLogits)
				if rel > 2e-3 {
					t.Errorf("%d ids: relative error %.3g", len(c.PromptIDs), rel)
				}
				for i, id := range got.GreedyIDs {
					if c.Top2Gap[i] < 2*largest {
						break
					}
					if id != c.GreedyIDs[i] {
						t.Errorf("%d ids: greedy id %d is %d, want %d", len(c.PromptIDs), i, id, c.GreedyIDs[i])
						break
					}
				}
			}
		})
	}
}

// TestEvalIsTheSame checks that several flags do not change the output, which holds all bits of the logits.
func TestEvalIsTheSame(t *testing.T) {
	ids := joinIDs(readGolden(t, gopherHF)[0].PromptIDs)
	want := succeed(t, "eval", gopher, "--ids", ids).stdout
	for _, flags := range []string{"--chain 1", "--chain 3", "--chain 128", "-t 1", "--ctx 80", "--mode encode --device cpu"} {
		if got := succeed(t, append([]string{"eval", gopher, "--ids", ids}, strings.Fields(flags)...)...).stdout; got != want {
			t.Errorf("%s changes the output", flags)
		}
	}
}

func TestEvalAllLogits(t *testing.T) {
	ids := readGolden(t, tiny(t, "qwen3"))[1].PromptIDs
	model := tiny(t, "qwen3")
	all := decode[evalResult](t, succeed(t, "eval", model, "--ids", joinIDs(ids), "--all-logits").stdout)
	if len(all.Logits) != len(ids) {
		t.Fatalf("%d rows for %d ids", len(all.Logits), len(ids))
	}
	if d := cmp.Diff(all.LastPromptLogits, all.Logits[len(ids)-1]); d != "" {
		t.Errorf("the last row is not last_prompt_logits: %s", d)
	}
	for i := range ids {
		part := decode[evalResult](t, succeed(t, "eval", model, "--ids", joinIDs(ids[:i+1]), "-n", "0").stdout)
		if len(part.GreedyIDs) != 0 {
			t.Errorf("-n 0 gives ids: %v", part.GreedyIDs)
		}
		if rel, _ := relativeError(part.LastPromptLogits, all.Logits[i]); rel != 0 {
			t.Errorf("row %d differs from the logits after its prefix by %g", i, rel)
		}
	}
	if o := succeed(t, "eval", model, "--ids", "5", "-n", "0"); !strings.Contains(o.stdout, `"greedy_ids":[]`) {
		t.Error("without ids, greedy_ids is not an empty list")
	}
}

// TestRun compares the text of run with the ids that eval prints, decoded by the tokenizer.
func TestRun(t *testing.T) {
	c := readGolden(t, gopherHF)[0]
	type result struct {
		Prompt, Text string
		IDs          []int32
		Figures      map[string]float64
	}
	res := decode[result](t, succeed(t, "run", gopher, "-p", c.Prompt, "-n", "40", "--json").stdout)
	// run adds BOS because the GGUF file requires it; the golden ids begin with BOS.
	want := decode[evalResult](t, succeed(t, "eval", gopher, "--ids", joinIDs(c.PromptIDs), "-n", "40").stdout)
	if d := cmp.Diff(want.GreedyIDs, res.IDs); d != "" {
		t.Errorf("run and eval differ: %s", d)
	}
	h, err := pianola.OpenHeader(gopher, nil)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := h.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.ToValidUTF8(tok.Decode(want.GreedyIDs), "\uFFFD"); res.Text != text || res.Prompt != c.Prompt {
		t.Errorf("text %q, want %q", res.Text, text)
	}
	if !strings.HasPrefix(c.Text, res.Text[:8]) {
		t.Errorf("text %q does not begin like the reference %q", res.Text, c.Text)
	}
	for _, name := range []string{"load_ms", "ttft_ms", "pp_tok_s", "tg_tok_s", "commands_per_token", "submissions"} {
		if res.Figures[name] <= 0 {
			t.Errorf("figure %s is %v", name, res.Figures[name])
		}
	}
	if res.Figures["prompt_tokens"] != float64(len(c.PromptIDs)) || res.Figures["tokens"] != 40 {
		t.Errorf("figures %v", res.Figures)
	}

	o := succeed(t, "run", gopher, "-p", c.Prompt, "-n", "40")
	if want := c.Prompt + res.Text + "\n"; o.stdout != want {
		t.Errorf("standard output %q, want %q", o.stdout, want)
	}
	for _, part := range []string{"load ", "first token ", "prefill 12 tokens", "decode 40 tokens", "commands per token"} {
		if !strings.Contains(o.stderr, part) || strings.Count(o.stderr, "\n") != 1 {
			t.Errorf("the figures %q do not contain %q", o.stderr, part)
		}
	}

	file := filepath.Join(t.TempDir(), "prompt")
	if err := os.WriteFile(file, []byte(c.Prompt), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := succeed(t, "run", gopher, "-f", file, "-n", "40").stdout; got != o.stdout {
		t.Errorf("from a file: %q", got)
	}
	if got := runWith(t, t.Context(), c.Prompt, "run", gopher, "-f", "-", "-n", "40").stdout; got != o.stdout {
		t.Errorf("from standard input: %q", got)
	}
	if got := succeed(t, "run", gopher, "-f", file, "-n", "40", "--speculate", "3"); got.stdout != o.stdout || !strings.Contains(got.stderr, " drafted") {
		t.Errorf("speculating: %q, %q", got.stdout, got.stderr)
	}
}

// TestRunSession continues a saved session in a second run. The text must equal the text of a single
// run, and the second run must prefill only its own prompt.
func TestRunSession(t *testing.T) {
	file := filepath.Join(t.TempDir(), "session")
	type result struct {
		IDs     []int32
		Figures map[string]float64
	}
	run := func(args ...string) result {
		return decode[result](t, succeed(t, append([]string{"run", gopher, "--json", "-n", "10"}, args...)...).stdout)
	}
	run("-p", "func main() {", "--session", file)
	second := run("-p", "x := 1", "--session", file)
	third := run("-p", "x := 1", "--session", file)
	if alone := run("-p", "x := 1"); slices.Equal(alone.IDs, second.IDs) || alone.Figures["prompt_tokens"] != second.Figures["prompt_tokens"]+1 {
		t.Errorf("%v, and without the session %v: the second run did not continue the session, or added a BOS", second, alone)
	}
	if slices.Equal(second.IDs, third.IDs) {
		t.Error("the second run was not saved")
	}
	for _, c := range []struct{ args, want string }{{"--ctx 100", "another table"}, {"-n 1", "damaged"}} {
		if c.want == "damaged" {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)/2] ^= 1
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		o := runCommand(t, append([]string{"run", gopher, "-p", "x", "--session", file}, strings.Fields(c.args)...)...)
		if o.status == 0 || !strings.Contains(o.stderr, c.want) || o.stdout != "" {
			t.Errorf("%s: status %d, %q", c.args, o.status, o.stderr)
		}
	}
}

func TestRunSampling(t *testing.T) {
	run := func(flags string) string {
		return succeed(t, append([]string{"run", gopher, "-p", "func ", "-n", "24"}, strings.Fields(flags)...)...).stdout
	}
	greedy := run("")
	hot := run("--temp 1 --seed 7")
	if hot == greedy || hot != run("--temp 1 --seed 7") || hot == run("--temp 1 --seed 8") {
		t.Error("--seed does not determine the text")
	}
	if run("--temp 1 --top-k 1 --seed 7") != greedy {
		t.Error("--top-k 1 is not greedy")
	}
	if run("--repeat-penalty 1.5") == greedy {
		t.Error("--repeat-penalty changes nothing")
	}
	o := succeed(t, "run", gopher, "-p", "func ", "-n", "8", "--temp", "1")
	_, seed, ok := strings.Cut(strings.TrimSpace(o.stderr), ", seed ")
	if !ok {
		t.Fatalf("the figures do not contain the seed: %q", o.stderr)
	}
	if again := succeed(t, "run", gopher, "-p", "func ", "-n", "8", "--temp", "1", "--seed", seed); again.stdout != o.stdout {
		t.Errorf("seed %s gives %q and then %q", seed, o.stdout, again.stdout)
	}
}

// TestRunLogProbs checks --logprobs as lines of text and as JSON.
func TestRunLogProbs(t *testing.T) {
	const n = 6
	o := succeed(t, "run", gopher, "-p", "func main() {", "-n", "6", "--logprobs", "2")
	lines := strings.Split(strings.TrimSuffix(o.stdout, "\n"), "\n")
	js := succeed(t, "run", gopher, "-p", "func main() {", "-n", "6", "--logprobs", "2", "--json")
	type token struct {
		ID      int32    `json:"id"`
		Text    string   `json:"text"`
		LogProb *float64 `json:"logprob"`
	}
	res := decode[struct {
		IDs      []int32 `json:"ids"`
		LogProbs []struct {
			token
			Top []token `json:"top"`
		} `json:"logprobs"`
	}](t, js.stdout)
	if len(lines) != n || len(res.LogProbs) != n || len(res.IDs) != n {
		t.Fatalf("%q and %d objects, want %d", lines, len(res.LogProbs), n)
	}
	for i, tok := range res.LogProbs {
		if tok.ID != res.IDs[i] || len(tok.Top) != 2 || tok.LogProb == nil || *tok.Top[0].LogProb != *tok.LogProb || tok.Top[0].Text != tok.Text {
			t.Errorf("token %d: %+v", i, tok)
		}
		if want := fmt.Sprintf("%.4f %6d %q", *tok.LogProb, tok.ID, tok.Text); !strings.Contains(lines[i], want) {
			t.Errorf("line %q has no %q", lines[i], want)
		}
	}
	for _, bad := range []string{"-1", "21"} {
		if o := runCommand(t, "run", gopher, "-p", "x", "--logprobs", bad); o.status == 0 || !strings.Contains(o.stderr, "must be in 0..20") {
			t.Errorf("--logprobs %s: %+v", bad, o)
		}
	}
}

func TestRunToTheEndOfTheContext(t *testing.T) {
	o := succeed(t, "run", gopher, "-p", "func", "-n", "0", "--ctx", "16", "--json")
	res := decode[struct{ IDs []int32 }](t, o.stdout)
	if len(res.IDs) == 0 || len(res.IDs) > 16 {
		t.Errorf("%d ids in a context of 16", len(res.IDs))
	}
	full := runCommand(t, "run", gopher, "-p", "func", "-n", "100", "--ctx", "16")
	if full.status != statusFailed || !strings.HasPrefix(full.stdout, "func") || full.stderr != "pianola: replay: the context is full: all 16 positions are taken\n" {
		t.Errorf("%+v", full)
	}
	// A session restored from a file rolls over, too.
	file := filepath.Join(t.TempDir(), "session")
	for _, args := range [][]string{{"-p", "func"}, {"-p", "func", "--session", file}, {"-p", "x", "--session", file}} {
		o := succeed(t, append([]string{"run", gopher, "-n", "40", "--ctx", "16", "--rollover", "8", "--sinks", "2", "--kv", "q8_0", "--json"}, args...)...)
		if n := len(decode[struct{ IDs []int32 }](t, o.stdout).IDs); n != 40 {
			t.Errorf("%v: %d ids with --rollover", args, n)
		}
	}
}

// TestPPL compares ppl with a perplexity computed from the logits of eval --all-logits.
func TestPPL(t *testing.T) {
	const size = 32
	text, err := os.ReadFile(filepath.Join(gopherHF, "heldout.txt"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(file, text[:1000], 0o644); err != nil {
		t.Fatal(err)
	}
	h, err := pianola.OpenHeader(gopher, nil)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := h.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	ids, err := tok.Encode(string(text[:1000]), pianola.EncodeOptions{AddSpecial: true})
	if err != nil {
		t.Fatal(err)
	}
	bos, ok := tok.BOS()
	if !ok || ids[0] != bos {
		t.Fatalf("the text does not begin with BOS: %v", ids[:2])
	}
	sum, scored := 0.0, 0
	for _, first := range []int{0, size} {
		chunk := append([]int32{bos}, ids[first+1:first+size]...)
		res := decode[evalResult](t, succeed(t, "eval", gopher, "--ids", joinIDs(chunk), "-n", "0", "--all-logits").stdout)
		for i := size/2 + 1; i < size; i++ {
			z := 0.0
			for _, l := range res.Logits[i-1] {
				z += math.Exp(l)
			}
			sum -= math.Log(math.Exp(res.Logits[i-1][chunk[i]]) / z)
			scored++
		}
	}
	want := math.Exp(sum / float64(scored))
	args := []string{"ppl", gopher, "--file", file, "-c", strconv.Itoa(size), "--chunks", "2"}
	if got := succeed(t, args...).stdout; got != fmt.Sprintf("ppl %.4f\n", want) {
		t.Errorf("%q, want %.4f", got, want)
	}
	res := decode[struct {
		PPL            float64
		Tokens, Chunks int
	}](t, succeed(t, append(args, "--json")...).stdout)
	if math.Abs(res.PPL-want) > 1e-6*want || res.Tokens != scored || res.Chunks != 2 {
		t.Errorf("%+v, want %v of %d tokens", res, want, scored)
	}
	if all := decode[struct{ Chunks int }](t, succeed(t, "ppl", gopher, "--file", file, "-c", "32", "--chunks", "0", "--json").stdout); all.Chunks != len(ids)/size {
		t.Errorf("--chunks 0 scores %d chunks of %d", all.Chunks, len(ids)/size)
	}
}

// TestPPLOfHeldOutText compares ppl with llama-perplexity -c 512 --chunks 40.
func TestPPLOfHeldOutText(t *testing.T) {
	exhaustive.Only(t, "it scores 10,000 tokens")
	for _, c := range []struct {
		model       string
		want, share float64
	}{
		{gopherHF, 6.2007, 0.005}, // float16
		{gopher, 6.2407, 0.01},
		{testmodels.Path(t, filepath.Join(gopherHF, "gopher-q4_0.gguf")), 6.3172, 0.01},
	} {
		o := succeed(t, "ppl", c.model, "--file", filepath.Join(gopherHF, "heldout.txt"))
		got, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimPrefix(o.stdout, "ppl ")), 64)
		if err != nil || math.Abs(got-c.want) > c.share*c.want {
			t.Errorf("%s: %q, want %v within %v %%", c.model, o.stdout, c.want, 100*c.share)
		}
	}
}

func TestFloats(t *testing.T) {
	b, err := floats{0, -1.5, 0.1, 1e-30, 16777217, math.MaxFloat32}.MarshalJSON()
	if want := "[0,-1.5,0.1,1e-30,1.6777216e+07,3.4028235e+38]"; err != nil || string(b) != want {
		t.Errorf("%s, %v, want %s", b, err, want)
	}
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if _, err := (floats{1, float32(v)}).MarshalJSON(); err == nil || !strings.Contains(err.Error(), "logit 1") {
			t.Errorf("%v: %v", v, err)
		}
	}
}
