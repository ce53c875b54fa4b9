//go:build softmetal

package replay_test

import (
	"context"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/batchtest"
	"github.com/pianola-engine/pianola/internal/metal/kernels"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// softMetal returns a Metal device with the software Metal.
func softMetal(t testing.TB, mode string) *metal.Device {
	t.Helper()
	if err := soft.Start(".."); err != nil {
		t.Fatal(err)
	}
	k, err := kernels.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := metal.New(metal.Options{Mode: mode, Kernels: k})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// TestMetal runs the tests of every device on the Metal device with the software Metal.
func TestMetal(t *testing.T) {
	for _, mode := range metal.Modes() {
		for _, c := range sessionTests {
			if c.name == "Chunks" {
				continue // chunks of one row use other kernels, which add in another order
			}
			if c.name == "Cancel" {
				continue // its time bound is for real hardware; package metal tests cancellation in both modes
			}
			if slices.Contains(long, c.name) || mode != "record" && slices.Contains(recordOnly, c.name) || mode == "record" && !slices.Contains(append(recordOnly, recordToo...), c.name) {
				continue
			}
			t.Run(mode+"/"+c.name, func(t *testing.T) {
				objects, bytes := soft.Live()
				t.Cleanup(func() { // runs after Close
					if err := soft.Violation(); err != nil {
						t.Error(err)
					}
					if o, b := soft.Live(); o != objects || b != bytes {
						t.Errorf("%d objects and %d bytes are left", o-objects, b-bytes)
					}
				})
				c.run(t, func(t testing.TB, name string, chunk int, o compiler.Options) *replay.Model {
					t.Helper()
					dev := softMetal(t, mode)
					// gemm_halves rounds differently than gemv; a table for batching has only the former.
					o.Batching = o.Batching || c.name == "AllLogits" || c.name == "RepromptRows"
					return loadedOn(t, quicker{dev}, "m4-pro", name, chunk, o)
				})
			})
		}
	}
}

// TestMetalBatching replays a table for batching on the Metal device with the software Metal: rows
// alone, among others and in a prompt that is cut at random. There are few, because each takes seconds.
func TestMetalBatching(t *testing.T) {
	dev := softMetal(t, "record")
	m := loadedOn(t, dev, "m4-pro", "qwen3", 16, compiler.Options{Batching: true, AllLogits: true, Context: 32})
	if err := batchtest.Check(t.Context(), session(t, m, replay.SessionOptions{}), 512, batchtest.Tokens(3, 512), []int{2}, 4); err != nil {
		t.Error(err)
	}
}

// TestMetalPooled replays pooled tables on the Metal device with the software Metal: in each mode, some
// families, with few and short contexts, because a context takes a second.
func TestMetalPooled(t *testing.T) {
	for mode, names := range map[string][]string{"record": {"llama", "gemma2", "../variants/gpt_oss", "../variants/lfm2", "../variants/gemma3n"}, "encode": {"qwen3", "mistral", "../variants/qwen3_5_one"}} {
		t.Run(mode, func(t *testing.T) {
			testPooled(t, pooledSize{130, 5, 15, 6}, func(t *testing.T, name string, chunk int, o compiler.Options) *pooled {
				if !slices.Contains(names, name) {
					t.Skip("another mode has it, or takes long")
				}
				dev := softMetal(t, mode)
				return openPooled(t, dev, "m4-pro", name, chunk, o)
			})
		})
	}
}

// TestMetalPooledIsBatching compares a pooled table with a table for batching, both on the Metal device with
// the software Metal, in both modes.
func TestMetalPooledIsBatching(t *testing.T) {
	for _, mode := range metal.Modes() {
		p := openPooled(t, softMetal(t, mode), "m4-pro", "llama", 32, compiler.Options{Context: 96, Sequences: 2, Sampler: compiler.SamplerNone})
		isBatching(t, p, loadedOn(t, softMetal(t, mode), "m4-pro", "llama", 32, compiler.Options{Context: 96, Batching: true}), 5)
	}
}

// TestMetalParallel plays random scripts on a model for many sequences on the Metal device with the software
// Metal.
func TestMetalParallel(t *testing.T) {
	testInvariance(t, 8, compiler.Options{}, func(o compiler.Options) *replay.Model {
		dev := softMetal(t, "record")
		if o.Sequences == 0 {
			return loadedOn(t, dev, "m4-pro", "llama", 48, o)
		}
		return parallelOn(t, dev, "m4-pro", "llama", o, replay.LoadOptions{Queue: 1000})
	})
}

// The emulator takes minutes for all tests in all modes. Kernels and bindings are the same in
// all modes. Recordings differ for submissions that end early, for memory that moves and for
// several sessions.
var (
	long = []string{
		"Speculate", "SpeculateState", "SpeculateStop", "SpeculateCancel", // SpeculateLogits is a short form
		"KV", "Release", // the device only reads, or package metal tests it
		"KVKinds",          // package metal tests growth and forks of every kind
		"RepromptRotating", // Reprompt tests everything that involves the device
	}
	recordOnly = []string{"ConcurrentSessions", "Growth", "Fork"}
	recordToo  = []string{"Stop", "Taps", "Allocations", "CancelledPrompt", "Profile", "SpeculateLogits", "CloseModel"}
)

// TestMetalSpeculatePieces speculates on a GPU so slow that a replay of verify takes several command buffers.
// The tokens must be those of decoding.
func TestMetalSpeculatePieces(t *testing.T) {
	dev := softMetal(t, "record")
	soft.SetClock(&soft.Clock{Price: func(*soft.Command) float64 { return 1e-6 }, Watchdog: 60})
	t.Cleanup(func() { soft.SetClock(nil) })
	m := loadedOn(t, quicker{dev}, "m4-pro", "../variants/qwen3_5_equal", 48, compiler.Options{Draft: 3, Context: 128})
	ids := prompt(70)
	want := generate(t, session(t, m, replay.SessionOptions{Chain: 16}), ids, 24)
	follow := slices.Concat(want, ids)
	for i := 9; i < len(follow); i += 7 {
		follow[i] ^= 1 // a wrong draft
	}
	soft.SetClock(&soft.Clock{Price: func(*soft.Command) float64 { return 8e-3 }, Watchdog: 60})
	for _, chain := range []int{5, 4, 7} { // the first one makes the pace of verify known
		s := speculating(t, m, replay.SessionOptions{Chain: chain}, ids, follow)
		checkMore(t, "speculation in pieces", s, want[0], want)
		if st := s.Stats(); st.Accepted == 0 || st.Accepted == st.Drafted {
			t.Errorf("chains of %d: accepted %d of %d", chain, st.Accepted, st.Drafted)
		}
	}
}

// quicker is a device that reduces the work of tables for the emulator.
type quicker struct{ replay.Device }

func (q quicker) Load(ctx context.Context, t *table.Table, src replay.Source, o replay.LoadOptions) error {
	if err := soft.Quicken(t); err != nil {
		return err
	}
	return q.Device.Load(ctx, t, src, o)
}

// TestMetalLayers replays models with recurrent state and latent attention on the Metal device with the
// software Metal, with short contexts, because a context takes a second.
func TestMetalLayers(t *testing.T) {
	for mode, names := range map[string][]string{"record": {"lfm2", "qwen3_5_equal"}, "encode": {"glm4_moe_lite"}} {
		t.Run(mode, func(t *testing.T) {
			testLayers(t, names, layerSize{70, 24}, func(t testing.TB, name string, chunk int, o compiler.Options) *replay.Model {
				dev := softMetal(t, mode)
				return loadedOn(t, quicker{dev}, "m4-pro", name, chunk, o)
			})
		})
	}
}
