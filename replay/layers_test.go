package replay_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/replay"
)

// layerModels are models with recurrent state, latent attention, experts that are chosen by scores, and
// rows that are scaled by their positions.
var layerModels = []string{"lfm2", "lfm2_moe", "qwen3_5_one", "qwen3_5_moe_one", "falcon_h1", "granitemoehybrid_moe", "nemotron_h", "deepseek_v3", "glm4_moe_lite_groups", "ministral3", "cohere_qknorm"}

// layerSize is the size of a test of layers.
type layerSize struct{ prompt, tokens int }

// testLayers compares the logits of models with those of the CPU. Then it cuts prompts, rewinds, forks,
// restores and speculates. The tokens must be those of a prompt and a chain.
func testLayers(t *testing.T, names []string, size layerSize, loaded loader) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			name := "../variants/" + name
			o := compiler.Options{Context: 256, Draft: 3, Batching: true}
			m := loaded(t, name, 48, o)
			ids := prompt(size.prompt)
			whole := session(t, m, replay.SessionOptions{Chain: 16})
			next, _, err := whole.Prompt(t.Context(), ids)
			if err != nil {
				t.Fatal(err)
			}
			checkLogits(t, name, ids, whole)
			want := append([]int32{next}, more(t, whole, size.tokens-1)...)
			checkSessions(t, m, ids, want)
			drafts := speculating(t, m, replay.SessionOptions{Chain: 16}, ids, slices.Concat(want, ids))
			checkMore(t, "speculation", drafts, want[0], want)
			if st := drafts.Stats(); st.Accepted == 0 || size.tokens >= 64 && st.Accepted == st.Drafted {
				t.Errorf("%d of %d drafted tokens were accepted", st.Accepted, st.Drafted)
			}
		})
	}
}

// checkMore compares the tokens of a session, of which next is the first, with want.
func checkMore(t *testing.T, what string, s *replay.Session, next int32, want []int32) {
	t.Helper()
	if got := append([]int32{next}, more(t, s, len(want)-1)...); !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// checkSessions checks that want follows ids after a prompt in pieces, after a rewind, in a fork and in a
// restored session.
func checkSessions(t *testing.T, m *replay.Model, ids, want []int32) {
	t.Helper()
	s := session(t, m, replay.SessionOptions{Chain: 5})
	again := func(at int) int32 {
		t.Helper()
		if err := errors.Join(s.Rewind(at), s.SetNext(ids[at])); err != nil {
			t.Fatal(err)
		}
		next, _, err := s.Prompt(t.Context(), ids[at+1:])
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	if _, _, err := s.Prompt(t.Context(), ids[:7]); err != nil {
		t.Fatal(err)
	}
	next := again(7)
	fork, err := s.Fork()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	restored, err := m.Restore(&b, replay.SessionOptions{Chain: 16})
	if err != nil {
		t.Fatal(err)
	}
	checkMore(t, "a prompt in pieces", s, next, want)
	checkMore(t, "a fork", fork, next, want)
	checkMore(t, "a snapshot", restored, next, want)
	checkMore(t, "a rewind", s, again(len(ids)-3), want)
	if err := errors.Join(fork.Close(), restored.Close()); err != nil {
		t.Error(err)
	}
}

// checkLogits compares the logits of a session after ids with those of the CPU.
func checkLogits(t *testing.T, name string, ids []int32, s *replay.Session) {
	t.Helper()
	host := session(t, loadedOnThreads(t, 1, name, 48, compiler.Options{Context: 256}), replay.SessionOptions{})
	if _, _, err := host.Prompt(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	got, want := make([]float32, 512), make([]float32, 512)
	if err := errors.Join(s.Logits(got), host.Logits(want)); err != nil {
		t.Fatal(err)
	}
	var diff, norm float64
	for i, v := range got {
		diff += math.Pow(float64(v-want[i]), 2)
		norm += math.Pow(float64(want[i]), 2)
	}
	if e := math.Sqrt(diff / norm); !(e < 5e-3) {
		t.Errorf("relative error of the logits %g", e)
	}
}

// TestCUDALayers replays models with recurrent state and latent attention on the CUDA device, without a
// GPU, in its modes.
func TestCUDALayers(t *testing.T) {
	for mode, names := range map[string][]string{"record": layerModels, "encode": {"lfm2"}, "resident": {"qwen3_5_one", "deepseek_v3"}} {
		t.Run(mode, func(t *testing.T) {
			testLayers(t, names, layerSize{100, 64}, func(t testing.TB, name string, chunk int, o compiler.Options) *replay.Model {
				return loadedOn(t, fakeCUDA(t, mode), "h200", name, chunk, o)
			})
		})
	}
}
