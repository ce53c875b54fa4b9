package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/synth"
	"github.com/pianola-engine/pianola/table"
)

const tiny = "testdata/tiny/llama"

// ids generates from a prompt of ids and returns the generated ids.
func ids(t testing.TB, s *pianola.Session, prompt []int32, o pianola.GenerateOptions) (out []int32) {
	t.Helper()
	for tok, err := range s.GenerateIDs(context.Background(), prompt, o) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, tok.ID)
	}
	return out
}

// TestChatTurns passes the whole conversation in each turn. The second turn must prefill only
// the new tokens, and after a change in the middle only the tokens from the change on. The
// generated tokens must equal those without reuse.
func TestChatTurns(t *testing.T) {
	m := open(t, gopher, pianola.Options{})
	tok, err := m.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
	fresh := newSession(t, m, pianola.SessionOptions{IgnoreStops: true, NoReuse: true})
	o := pianola.GenerateOptions{MaxTokens: 12, Whole: true}
	turn := func(text string) (answer string, st pianola.GenerateStats) {
		t.Helper()
		answer, _ = collect(t, s, text, o)
		if want, _ := collect(t, fresh, text, o); answer != want {
			t.Errorf("%q, without reuse %q", answer, want)
		}
		if st := fresh.Stats(); st.Reused != 0 || st.Prefilled != st.PromptTokens {
			t.Errorf("without reuse: %+v", st)
		}
		return answer, s.Stats()
	}
	first := "func main() {\n\tx := 1\n\tfmt.Println(x)\n"
	answer, st := turn(first)
	if st.Reused != 0 || st.Prefilled != st.PromptTokens {
		t.Errorf("first turn: %+v", st)
	}
	held := s.Len()
	second := first + answer + "\n}\n\nfunc other() {\n"
	_, st = turn(second)
	// Generated text may encode to slightly different tokens than those generated.
	if st.Reused+st.Prefilled != st.PromptTokens || st.Reused < held-3 || st.Reused > held {
		t.Errorf("second turn: %+v, the context had %d", st, held)
	}
	changed := "func main() {\n\ty := 1\n\tfmt.Println(x)\n" + answer
	encode := func(text string) []int32 {
		ids, err := tok.Encode(text, pianola.EncodeOptions{AddSpecial: true, ParseSpecial: true})
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	a, b, common := encode(second), encode(changed), 0
	for a[common] == b[common] {
		common++
	}
	if _, st = turn(changed); st.Reused != common || st.Prefilled != len(b)-common {
		t.Errorf("changed after %d of %d tokens: %+v", common, len(b), st)
	}
}

// TestForkFacade forks a session in the middle of a text.
func TestForkFacade(t *testing.T) {
	m := open(t, tiny, pianola.Options{})
	start := m.Memory().Sessions
	s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
	ids(t, s, somePrompt, pianola.GenerateOptions{MaxTokens: 20})
	f, err := s.Fork()
	if err != nil {
		t.Fatal(err)
	}
	sampled := pianola.GenerateOptions{MaxTokens: 30, Sampling: pianola.Sampling{Temperature: 1, Seed: 7}}
	a, b := ids(t, s, somePrompt, sampled), ids(t, f, somePrompt, sampled)
	if !slices.Equal(a, b) {
		t.Errorf("the same seed gives %v, and %v in a fork", a, b)
	}
	for range s.GenerateIDs(context.Background(), somePrompt, pianola.GenerateOptions{MaxTokens: 2}) {
		if _, err := s.Fork(); err != pianola.ErrBusy {
			t.Errorf("forking while generating: %v", err)
		}
		if err := s.Snapshot(&bytes.Buffer{}); err != pianola.ErrBusy {
			t.Errorf("a snapshot while generating: %v", err)
		}
		if st := s.Stats(); st.Tokens == 0 {
			t.Errorf("%+v while generating", st)
		}
	}
	if err := errors.Join(f.Close(), f.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if got := m.Memory().Sessions; got != start {
		t.Errorf("sessions take %d bytes at the end, %d at the start", got, start)
	}
}

// TestSnapshotFile saves a session to a file that already exists and continues from it.
func TestSnapshotFile(t *testing.T) {
	m := open(t, tiny, pianola.Options{})
	path := filepath.Join(t.TempDir(), "session")
	if _, err := m.RestoreFile(path, pianola.SessionOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, []byte("something else"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := m.RestoreFile(path, pianola.SessionOptions{}); !errors.Is(err, pianola.ErrNotSnapshot) {
		t.Errorf("another file: %v", err)
	}
	s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
	ids(t, s, somePrompt, pianola.GenerateOptions{MaxTokens: 20})
	if err := s.SnapshotFile(path); err != nil {
		t.Fatal(err)
	}
	r, err := m.RestoreFile(path, pianola.SessionOptions{IgnoreStops: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	o := pianola.GenerateOptions{MaxTokens: 30}
	if a, b := ids(t, s, somePrompt, o), ids(t, r, somePrompt, o); !slices.Equal(a, b) {
		t.Errorf("%v, restored %v", a, b)
	}
	if _, err := open(t, tiny, pianola.Options{Table: pianola.TableOptions{Context: 100}}).RestoreFile(path, pianola.SessionOptions{}); !errors.Is(err, pianola.ErrSnapshotTable) {
		t.Errorf("a table of another context: %v", err)
	}
	if _, err := open(t, "testdata/tiny/qwen3", pianola.Options{}).RestoreFile(path, pianola.SessionOptions{}); !errors.Is(err, pianola.ErrSnapshotModel) {
		t.Errorf("another model: %v", err)
	}
}

// TestCloseWhileGenerating closes sessions and the model in the loop over a generation. The
// generation must end with ErrClosed.
func TestCloseWhileGenerating(t *testing.T) {
	m := open(t, gopher, pianola.Options{})
	for _, end := range []func(s *pianola.Session) error{(*pianola.Session).Close, func(*pianola.Session) error { return m.Close() }} {
		s, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true, Chain: 4})
		if err != nil {
			t.Fatal(err)
		}
		var last error
		n := 0
		for _, err := range s.GenerateIDs(context.Background(), somePrompt, pianola.GenerateOptions{}) {
			if last = err; n == 5 {
				if err := errors.Join(end(s), end(s)); err != nil {
					t.Error(err)
				}
			}
			n++
		}
		if last != pianola.ErrClosed || n > 20 {
			t.Errorf("after %d tokens: %v", n, last)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := m.NewSession(pianola.SessionOptions{}); err != pianola.ErrClosed {
		t.Errorf("a session of a closed model: %v", err)
	}
}

// TestMemoryOfUse checks that 100 tokens in a context of 32,768 take little memory, according
// to the model's account and, where available, to the operating system.
func TestMemoryOfUse(t *testing.T) {
	shape, _ := synth.FindShape("gopher")
	shape.Layers, shape.Context, shape.KVHeads, shape.HeadDim = 2, 32768, 4, 64
	path := filepath.Join(t.TempDir(), "long.gguf")
	if err := synth.WriteFile(context.Background(), path, shape, "q8_0", 1, nil); err != nil {
		t.Fatal(err)
	}
	m := open(t, path, pianola.Options{Table: pianola.TableOptions{Context: 32768}})
	var whole uint64
	for i := range m.Table().Slots {
		if s := &m.Table().Slots[i]; s.Kind == table.SlotKV {
			whole += s.Size
		}
	}
	before := resident(t)
	s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
	ids(t, s, somePrompt, pianola.GenerateOptions{MaxTokens: 93})
	if s.Len() != 100 {
		t.Fatalf("%d positions", s.Len())
	}
	used := m.Memory().Kinds[table.SlotKV].Active
	if used == 0 || used > whole/100 {
		t.Errorf("the KV caches of 100 positions take %d bytes, those of 32,768 take %d", used, whole)
	}
	if grown := resident(t) - before; before > 0 && grown > int64(whole/4) {
		t.Errorf("the process grew by %d bytes, full KV caches take %d", grown, whole)
	}
	t.Logf("100 positions: %d bytes of KV caches, all 32,768: %d", used, whole)
}
