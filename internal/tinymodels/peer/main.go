// Command peer makes small models of the tests from configurations alone, with reference results
// of llama.cpp.
//
//	go run ./internal/tinymodels/peer -peer "LLAMAPEER LIBDIR" [-testdata testdata] CONFIG...
//
// Without -peer, the models get no golden.json. Such models are for tests with an oracle.
//
// CONFIG is a folder with a config.json. The command writes config.json, weights.json and
// golden.json to the folder of the same name in testdata/variants. The names and shapes of the
// tensors come from the family's descriptor. llama.cpp gets the model as a GGUF file of float32
// elements, which package convert writes, so that both of a family's forms are compared with it.
// Of several seeds, the command keeps the one whose greedy tokens vary and are the least close to
// ties. [TESTING.md] names the Makefile's target.
//
// [TESTING.md]: https://github.com/pianola-engine/pianola/blob/main/docs/TESTING.md
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pianola-engine/pianola/internal/convert"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/golden"
	"github.com/pianola-engine/pianola/internal/tinymodels"
	"github.com/pianola-engine/pianola/internal/tinymodels/describe"
)

// origin is the implementation that computes the results.
const origin = "llama.cpp v0.5.0, npm @node-llama-cpp/linux-x64 3.22.1"

const (
	seeds       = 6
	greedy      = 48   // tokens of each case
	enoughKinds = 8    // different greedy tokens that end the search for a seed
	enoughGap   = 5e-4 // likewise, the difference of the largest two logits
)

func main() {
	peer := flag.String("peer", "", "the program llamapeer and the folder of llama.cpp's library")
	testdata := flag.String("testdata", "testdata", "the folder that gets the models")
	flag.Parse()
	var errs []error
	for _, config := range flag.Args() {
		if err := run(strings.Fields(*peer), *testdata, config); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", config, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// attempt is the result of one seed.
type attempt struct {
	seed  uint64
	kinds int     // least number of different greedy tokens of a case
	gap   float64 // least difference of the largest two logits
	ref   golden.Reference
}

func run(peer []string, testdata, config string) error {
	if len(peer) != 2 && len(peer) != 0 {
		return errors.New("want -peer with a program and a folder")
	}
	text, err := os.ReadFile(filepath.Join(config, "config.json"))
	if err != nil {
		return err
	}
	tensors, vocab, err := describe.Tensors(text)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "peer-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	var best *attempt
	name := filepath.Base(config)
	if len(peer) == 0 {
		spec := tinymodels.Spec{Seed: 1, Files: []tinymodels.File{{Name: "model.safetensors", Tensors: tensors}}}
		return store(testdata, name, text, &spec, nil)
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		spec := tinymodels.Spec{Seed: seed, Files: []tinymodels.File{{Name: "model.safetensors", Tensors: tensors}}}
		root := filepath.Join(work, strconv.FormatUint(seed, 10))
		if err := store(root, name, text, &spec, nil); err != nil {
			return err
		}
		a, err := try(peer, root, name, vocab)
		if err != nil {
			return err
		}
		a.seed = seed
		if best == nil || a.kinds > best.kinds || a.kinds == best.kinds && a.gap > best.gap {
			best = a
		}
		if a.kinds >= enoughKinds && a.gap > enoughGap {
			break
		}
	}
	best.ref.Source = origin + ", float32 arithmetic on " + tensors[0].DType + " weights"
	spec := tinymodels.Spec{Seed: best.seed, Files: []tinymodels.File{{Name: "model.safetensors", Tensors: tensors}}}
	fmt.Printf("%-24s seed %d  kinds %d  gap %.5f\n", name, best.seed, best.kinds, best.gap)
	return store(testdata, name, text, &spec, &best.ref)
}

// store writes a model's description below a testdata folder, and the reference results with the checksums
// of the weights that gave them, unless ref is nil.
func store(testdata, name string, config []byte, spec *tinymodels.Spec, ref *golden.Reference) error {
	dir := filepath.Join(testdata, "variants", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	write := func(file string, value any) error {
		b, err := json.Marshal(value)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, file), append(b, '\n'), 0o644)
	}
	if err := write("weights.json", spec); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		return err
	}
	if err := tinymodels.WriteSums(testdata, "variants/"+name); err != nil || ref == nil {
		return err
	}
	spec, err := tinymodels.ReadSpec(testdata, "variants/"+name)
	if err != nil {
		return err
	}
	ref.Sums = map[string]string{}
	for _, f := range spec.Files {
		ref.Sums[f.Name] = f.SHA256
	}
	return write("golden.json", ref)
}

// prompts returns prompts of 1, 7 and 40 tokens, of which the last is longer than the windows of
// the small models.
func prompts(vocab int) [][]int32 {
	long := make([]int32, 40)
	for i := range long {
		long[i] = int32((i*37+11)%(vocab-8) + 4)
	}
	return [][]int32{{int32(vocab - 4)}, {5, 17, 3, 101, 7, 60, 9}, long}
}

// try generates a model and has llama.cpp compute the results.
func try(peer []string, root, name string, vocab int) (*attempt, error) {
	dir := filepath.Join(root, "model")
	if err := tinymodels.Write(root, "variants/"+name, dir); err != nil {
		return nil, err
	}
	file := filepath.Join(root, "model.gguf")
	if err := writeGGUF(dir, file); err != nil {
		return nil, err
	}
	a := &attempt{kinds: vocab, gap: math.Inf(1)}
	for _, ids := range prompts(vocab) {
		c, err := evaluate(peer, file, ids)
		if err != nil {
			return nil, err
		}
		a.ref.Cases = append(a.ref.Cases, *c)
		tokens := slices.Clone(c.GreedyIDs)
		slices.Sort(tokens)
		a.kinds = min(a.kinds, len(slices.Compact(tokens)))
		a.gap = min(a.gap, slices.Min(c.Top2Gap))
	}
	return a, nil
}

// writeGGUF converts a model to a GGUF file whose elements are all float32.
func writeGGUF(dir, file string) (err error) {
	m, err := convert.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	types := m.Stored()
	for i := range types {
		types[i] = dtype.F32
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return m.Write(context.Background(), f, types, convert.WriteOptions{})
}

// evaluate has llama.cpp compute the logits after a prompt and the greedy tokens.
func evaluate(peer []string, file string, ids []int32) (*golden.Case, error) {
	var list []string
	for _, id := range ids {
		list = append(list, strconv.Itoa(int(id)))
	}
	cmd := exec.Command(peer[0], peer[1], file, "eval", strings.Join(list, ","), "-n", strconv.Itoa(greedy), "-t", "1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("llamapeer: %w", err)
	}
	c := &golden.Case{PromptIDs: ids}
	if err := json.Unmarshal(out, c); err != nil {
		return nil, fmt.Errorf("llamapeer: %w", err)
	}
	if len(c.GreedyIDs) != greedy || len(c.Top2Gap) != greedy {
		return nil, fmt.Errorf("llamapeer: %d tokens and %d gaps, want %d", len(c.GreedyIDs), len(c.Top2Gap), greedy)
	}
	return c, nil
}
