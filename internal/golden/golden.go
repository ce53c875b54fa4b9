// Package golden compares what a model computes with a reference, for tests.
package golden

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
)

// Reference is a reference result, made by transformers in float32 arithmetic.
type Reference struct {
	Cases []Case `json:"cases"`
}

// Case is what follows a prompt.
type Case struct {
	PromptIDs        []int32   `json:"prompt_ids"`
	LastPromptLogits []float64 `json:"last_prompt_logits"`
	GreedyIDs        []int32   `json:"greedy_ids"`
	Top2Gap          []float64 `json:"top2_gap"` // between the best two logits at each step
}

// Read reads a reference, which has cases.
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

// Agreement is how a result compares with a reference.
type Agreement struct {
	Relative float64 // error of the logits: norm of the difference over norm of the reference
	Compared int     // greedy tokens before the first near tie
	Fault    error   // nil: it agrees
}

// Compare compares logits, and greedy tokens up to the first step whose gap
// between the best two is below twice the largest logit difference. ids has as many
// tokens as are to be compared; limit bounds the relative error.
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
	// The reference has logits for the first step alone; later steps are
	// taken to differ by as much, and by their share of what the limit allows.
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
