package replay_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/replay/cuda"
	"github.com/pianola-engine/pianola/replay/null"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

var (
	_ replay.Device = (*cpu.Device)(nil)
	_ replay.Device = (*cuda.Device)(nil)
	_ replay.Device = (*null.Device)(nil)
)

// compiled returns the table of a tiny model for the CPU with the given chunk.
func compiled(t testing.TB, name string, chunk int, o compiler.Options) (*table.Table, *weights.Directory) {
	t.Helper()
	return compiledFor(t, "cpu", name, chunk, o)
}

// compiledFor returns the table of a tiny model for a chip.
func compiledFor(t testing.TB, chipName, name string, chunk int, o compiler.Options) (*table.Table, *weights.Directory) {
	t.Helper()
	dir, err := weights.OpenDirectory(testmodels.Path(t, filepath.Join("..", "testdata", "tiny", name)))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := arch.Builtin().Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := chip.Lookup(chipName)
	if err != nil {
		t.Fatal(err)
	}
	c.PrefillChunk = chunk
	if c.Device == chip.CUDA {
		c.Cores = 16 // so that joint passes of a chunk have a command for rows that are the only ones of their sequence
	}
	tab, err := compiler.Compile(compiler.Input{Config: cfg, Tensors: dir, Chip: c, Options: o})
	if err != nil {
		t.Fatal(err)
	}
	return tab, dir
}

// recorded returns a session on a null device that chooses token p + 100 after position p.
func recorded(t testing.TB, name string, chunk int, co compiler.Options, so replay.SessionOptions) (*null.Device, *replay.Session) {
	t.Helper()
	tab, _ := compiled(t, name, chunk, co)
	dev := &null.Device{Script: func(p int) uint32 { return uint32(p + 100) }}
	m, err := replay.Load(context.Background(), dev, tab, nil, replay.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.NewSession(so)
	if err != nil {
		t.Fatal(err)
	}
	return dev, s
}

func prompt(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i + 1)
	}
	return ids
}

// TestOneWaitAPrompt counts the submissions of a prompt and of chains.
func TestOneWaitAPrompt(t *testing.T) {
	ctx := context.Background()
	dev, s := recorded(t, "llama", 8, compiler.Options{}, replay.SessionOptions{Chain: 16})
	next, _, err := s.Prompt(ctx, prompt(27))
	if err != nil {
		t.Fatal(err)
	}
	if next != 126 { // the token after position 26
		t.Errorf("the next token is %d, want 126", next)
	}
	if c := dev.Counts(); c.Submissions != 1 || c.Waits != 1 {
		t.Errorf("a prompt of four chunks took %+v, want one submission and one wait", c)
	}
	type run struct{ program, count, pos, rows, row uint32 }
	var runs []run
	for _, r := range dev.Submissions()[0].Runs {
		runs = append(runs, run{r.Program, r.Count, r.Step.Position, r.Step.Rows, r.Step.Row})
		if r.Step.KVLen != r.Step.Position+1 || r.Step.TokenIndex != r.Step.Position {
			t.Errorf("step %+v", r.Step)
		}
	}
	want := []run{{1, 1, 0, 8, 0}, {1, 1, 8, 8, 0}, {1, 1, 16, 8, 0}, {1, 1, 24, 3, 0}, {2, 1, 26, 1, 2}}
	if diff := cmp.Diff(want, runs, cmp.AllowUnexported(run{})); diff != "" {
		t.Errorf("runs (-want +got)\n%s", diff)
	}
	var got []int32
	for len(got) < 40 {
		tokens, stopped, err := s.Chain(ctx, 40-len(got))
		if err != nil || stopped {
			t.Fatal(err, stopped)
		}
		got = append(got, tokens...)
	}
	if got[0] != 127 || got[39] != 166 {
		t.Errorf("tokens %v", got)
	}
	if c := dev.Counts(); c.Submissions != 4 || c.Waits != 4 || c.Tokens != 41 {
		t.Errorf("40 tokens in chains of 16 made it %+v, want 3 more submissions and waits", c)
	}
	if st := s.Stats(); st.Submissions != 4 || st.Waits != 4 {
		t.Errorf("stats %+v", st)
	}
}

// TestPending checks that a prompt begins with the pending token.
func TestPending(t *testing.T) {
	ctx := context.Background()
	dev, s := recorded(t, "llama", 64, compiler.Options{}, replay.SessionOptions{Chain: 4})
	for _, n := range []int{3, 5} {
		if _, _, err := s.Prompt(ctx, prompt(n)); err != nil {
			t.Fatal(err)
		}
	}
	if s.Len() != 3+1+5 {
		t.Errorf("the context has %d positions, want 9", s.Len())
	}
	if r := dev.Submissions()[1].Runs[0].Step; r.Position != 3 || r.Rows != 6 {
		t.Errorf("the second prompt is %d rows from position %d, want 6 from 3", r.Rows, r.Position)
	}
	if err := s.Rewind(2); err != nil {
		t.Fatal(err)
	}
	tokens, _, err := s.Chain(ctx, 1)
	if err != nil || !slices.Equal(tokens, []int32{102}) || s.Len() != 3 {
		t.Errorf("after rewinding: %v, %v, %d positions", tokens, err, s.Len())
	}
	for _, n := range []int{-1, 4} {
		if err := s.Rewind(n); err == nil {
			t.Errorf("rewinding to %d of 3 succeeded", n)
		}
	}
	if err := s.Reset(); err != nil || s.Len() != 0 {
		t.Errorf("%v, %d positions after a reset", err, s.Len())
	}
	if _, _, err := s.Chain(ctx, 1); !errors.Is(err, replay.ErrNothingPending) {
		t.Errorf("got %v, want ErrNothingPending", err)
	}
}

func TestContextFull(t *testing.T) {
	ctx := context.Background()
	_, s := recorded(t, "llama", 64, compiler.Options{Context: 20}, replay.SessionOptions{Chain: 8})
	if _, _, err := s.Prompt(ctx, prompt(21)); !errors.Is(err, replay.ErrContextFull) {
		t.Errorf("a prompt of 21 in a context of 20: %v", err)
	}
	if _, _, err := s.Prompt(ctx, prompt(15)); err != nil {
		t.Fatal(err)
	}
	tokens, _, err := s.Chain(ctx, 100)
	if err != nil || len(tokens) != 5 {
		t.Errorf("%d tokens, %v, want the 5 that there is room for", len(tokens), err)
	}
	if _, _, err := s.Chain(ctx, 1); !errors.Is(err, replay.ErrContextFull) {
		t.Errorf("got %v, want ErrContextFull", err)
	}
	if _, _, err := s.Prompt(ctx, prompt(1)); !errors.Is(err, replay.ErrContextFull) {
		t.Errorf("got %v, want ErrContextFull", err)
	}
}

func TestBadPrompts(t *testing.T) {
	ctx := context.Background()
	dev, s := recorded(t, "llama", 64, compiler.Options{}, replay.SessionOptions{})
	if _, _, err := s.Prompt(ctx, nil); !errors.Is(err, replay.ErrEmptyPrompt) {
		t.Errorf("got %v, want ErrEmptyPrompt", err)
	}
	for _, id := range []int32{-1, 512, 1 << 30} {
		_, _, err := s.Prompt(ctx, []int32{1, id})
		var te *replay.TokenError
		if !errors.As(err, &te) || te.Index != 1 {
			t.Errorf("id %d: got %v, want a TokenError", id, err)
		}
	}
	if c := dev.Counts(); c.Submissions != 0 {
		t.Errorf("bad prompts made %d submissions", c.Submissions)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if _, _, err := s.Prompt(ctx, prompt(1)); !errors.Is(err, replay.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func TestSessionOptions(t *testing.T) {
	tab, _ := compiled(t, "llama", 64, compiler.Options{})
	m, err := replay.Load(context.Background(), &null.Device{}, tab, nil, replay.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []replay.SessionOptions{{Chain: -1}, {ChainTime: -1}, {StopIDs: make([]int32, compiler.MaxStops+1)}} {
		if _, err := m.NewSession(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	tab, _ := compiled(t, "llama", 64, compiler.Options{})
	tab.Cmds[3].Barrier = 0
	if _, err := replay.Load(context.Background(), &null.Device{}, tab, nil, replay.LoadOptions{}); err == nil {
		t.Error("a table without a barrier was loaded")
	}
	// Exchange the names of two programs, so that their commands do not match.
	tab, _ = compiled(t, "llama", 64, compiler.Options{})
	for i := range tab.Programs {
		switch p := &tab.Programs[i]; p.Name {
		case table.ProgramHead:
			p.Name = table.ProgramSampleHead
		case table.ProgramSampleHead:
			p.Name = table.ProgramHead
		}
	}
	const want = "replay: program head: its flags are chooses,reads_row,samples, want chooses,reads_row"
	if _, err := replay.Load(context.Background(), &null.Device{}, tab, nil, replay.LoadOptions{}); err == nil || err.Error() != want {
		t.Errorf("two programs with each other's names: %v", err)
	}
}

// TestRotating checks that Rewind goes back only as far as a rotating cache keeps rows.
func TestRotating(t *testing.T) {
	ctx := context.Background()
	_, s := recorded(t, "mistral", 32, compiler.Options{}, replay.SessionOptions{Chain: 100})
	if _, _, err := s.Prompt(ctx, prompt(60)); err != nil {
		t.Fatal(err)
	}
	tokens, _, err := s.Chain(ctx, 100)
	if err != nil || len(tokens) != 32 {
		t.Errorf("a chain of %d, %v; want 32, what can be taken back", len(tokens), err)
	}
	if err := s.Rewind(s.Len() - 33); err == nil {
		t.Error("rewinding past the cache was taken")
	}
	if err := s.Rewind(s.Len() - 32); err != nil {
		t.Error(err)
	}
}

// slowCancel is a device whose Cancel is slow.
type slowCancel struct {
	*null.Device
	waiting func()        // called while a submission is in flight
	entered chan struct{} // closed when Cancel begins
	gate    chan struct{} // Cancel ends when it is closed
}

func (d *slowCancel) Wait(t replay.Ticket) (replay.Result, error) {
	d.waiting()
	return d.Device.Wait(t)
}

func (d *slowCancel) Cancel(replay.Ticket) {
	close(d.entered)
	<-d.gate
}

// TestCancelEndsWithItsCall checks that a call does not return while its cancellation is in
// progress, which could end the next call.
func TestCancelEndsWithItsCall(t *testing.T) {
	tab, _ := compiled(t, "llama", 64, compiler.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	dev := &slowCancel{Device: &null.Device{}, entered: make(chan struct{}), gate: make(chan struct{})}
	dev.waiting = func() {
		cancel()
		<-dev.entered
	}
	m, err := replay.Load(context.Background(), dev, tab, nil, replay.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.NewSession(replay.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	returned := make(chan error)
	go func() {
		_, _, err := s.Prompt(ctx, prompt(3))
		returned <- err
	}()
	<-dev.entered
	select {
	case err := <-returned:
		t.Errorf("the call returned while its cancellation was under way: %v", err)
	case <-time.After(20 * time.Millisecond):
		close(dev.gate)
		<-returned
	}
}
