// Package golden compares the results of a model with reference results, for tests.
package golden

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
)

// Reference holds reference results that another implementation, such as the Python library
// transformers, computed in float32.
type Reference struct {
	Source string `json:"source"` // the implementation and its version
	// Sums are the SHA-256 of the files with the weights that it used, by their names.
	Sums  map[string]string `json:"weights_sha256,omitempty"`
	Cases []Case            `json:"cases"`
}

// Case is a prompt with the expected results.
type Case struct {
	PromptIDs        []int32   `json:"prompt_ids"`
	LastPromptLogits []float64 `json:"last_prompt_logits"`
	GreedyIDs        []int32   `json:"greedy_ids"`
	Top2Gap          []float64 `json:"top2_gap"` // difference of the two largest logits at each step
}

// Read reads a reference file, which must contain at least one case.
func Read(path string) (*Reference, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := new(Reference)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(r.Cases) == 0 {
		return nil, fmt.Errorf("%s has no cases", path)
	}
	return r, nil
}

// Agreement is the outcome of comparing a model's results with a reference.
type Agreement struct {
	Relative float64 // error of the logits: norm of the difference over norm of the reference
	Compared int     // greedy tokens before the first near tie
	Fault    error   // nil if the result agrees
}

// Compare compares logits with ref, and the greedy tokens ids with refIDs up to the first near
// tie. A near tie is a step where the gap between the two largest logits is less than twice
// the largest difference of a logit from its reference. limit bounds the relative error of the
// logits.
func Compare(limit float64, logits []float32, ids []int32, ref []float64, refIDs []int32, gap []float64) Agreement {
	var a Agreement
	var diff, norm, largest float64
	for i, r := range ref {
		d := float64(logits[i]) - r
		diff += d * d
		norm += r * r
		largest = max(largest, math.Abs(d))
	}
	a.Relative = math.Sqrt(diff / norm)
	if !(a.Relative <= limit) {
		a.Fault = fmt.Errorf("relative error of the logits is %.2e, want at most %.2e", a.Relative, limit)
		return a
	}
	// The reference has logits only for the first step. Later steps are assumed to differ as much
	// as the first one, or by the error that limit permits if that is larger.
	tie := 2 * max(largest, limit*math.Sqrt(norm/float64(len(ref)))*3)
	for i, id := range ids {
		if gap[i] < tie {
			break
		}
		if id != refIDs[i] {
			a.Fault = fmt.Errorf("greedy token %d is %d, want %d (gap %.3g, near ties are below %.3g)", i, id, refIDs[i], gap[i], tie)
			break
		}
		a.Compared++
	}
	return a
}
