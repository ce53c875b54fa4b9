package e2e_test

import (
	"math"
	"testing"

	"github.com/pianola-engine/pianola"
)

// TestGPUEmbed compares vectors and scores of the GPU with those of the CPU, in every mode.
func TestGPUEmbed(t *testing.T) {
	onGPU(t)
	texts, labels := []string{"func main() {", "package main\n\nimport \"fmt\"\n"}, []string{"\n", "x"}
	on := func(o pianola.Options) ([][]float32, [][]pianola.LabelScore) {
		t.Helper()
		o.Table.Hidden, o.Table.AllLogits = true, true
		s := newSession(t, open(t, gopher, o), pianola.SessionOptions{})
		vectors, err := s.Embed(t.Context(), texts, pianola.EmbedOptions{Normalize: true})
		if err != nil {
			t.Fatal(err)
		}
		scores, err := s.Classify(t.Context(), texts, labels)
		if err != nil {
			t.Fatal(err)
		}
		return vectors, scores
	}
	wantVectors, wantScores := on(pianola.Options{Device: "cpu"})
	for _, mode := range gpuModes {
		vectors, scores := on(pianola.Options{Device: "cuda", Mode: mode})
		for i := range texts {
			if cos := dot(vectors[i], wantVectors[i]); cos < 0.99 {
				t.Errorf("mode %s: the cosine between vector %d and the CPU's is %v", mode, i, cos)
			}
			for j := range labels {
				// The CPU rounds activations to 8 bits, which changes logits by up to 7 %, and
				// unlikely labels most.
				want := wantScores[i][j].LogLikelihood
				if d := math.Abs(scores[i][j].LogLikelihood - want); !(d <= 0.1-0.03*want) {
					t.Errorf("mode %s: text %d, label %d: %+v, on the CPU %+v", mode, i, j, scores[i][j], wantScores[i][j])
				}
			}
		}
	}
}
