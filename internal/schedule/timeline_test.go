package schedule

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/pages"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// simple takes 2 ms and 0.1 ms for each row that decodes, and 1 ms and 0.1 ms for each row of a chunk.
var simple = linear{2 * time.Millisecond, 100 * time.Microsecond, time.Millisecond, 100 * time.Microsecond}

func simpleConfig() Config {
	return Config{Cost: simple, Sequences: 4, Context: 2000, Chunk: 256, Queue: 8}
}

func must(t *testing.T) func(r *Request, err error) *Request {
	return func(r *Request, err error) *Request {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// TestTimelines compares the decisions in several scenes with golden files.
func TestTimelines(t *testing.T) {
	many := pages.Kind{Name: "full", Pages: 200}
	bound := func(d time.Duration) func(*Request) { return func(r *Request) { r.Bound = d } }
	for _, scene := range []struct {
		name  string
		c     Config
		kinds []pages.Kind
		play  func(t *testing.T, s *sim)
	}{
		{"alone", simpleConfig(), []pages.Kind{many}, func(t *testing.T, s *sim) {
			must(t)(s.add(300, 40, nil))
		}},
		{"a stream beside a long prompt", simpleConfig(), []pages.Kind{many}, func(t *testing.T, s *sim) {
			must(t)(s.add(10, 30, bound(5*time.Millisecond)))
			s.steps(t, 3)
			must(t)(s.add(200, 4, nil))
		}},
		{"a wide bound", simpleConfig(), []pages.Kind{many}, func(t *testing.T, s *sim) {
			for range 3 {
				must(t)(s.add(10, 30, nil))
			}
			s.steps(t, 1)
			must(t)(s.add(200, 4, nil))
		}},
		{"together", func() Config { c := simpleConfig(); c.Joint = 256; return c }(), []pages.Kind{many}, func(t *testing.T, s *sim) {
			must(t)(s.add(10, 12, bound(20*time.Millisecond)))
			must(t)(s.add(10, 30, nil))
			s.steps(t, 2)
			for range 3 {
				must(t)(s.add(25, 4, nil))
			}
			must(t)(s.add(100, 4, func(r *Request) { r.Bound = 5 * time.Millisecond }))
		}},
		{"drafts", func() Config { c := simpleConfig(); c.Joint, c.Heads = 256, 16; return c }(), []pages.Kind{many}, func(t *testing.T, s *sim) {
			s.token = func(at int) int32 { return int32(at % 5) } // repeats itself, but for one token
			s.Idle(time.Millisecond)
			must(t)(s.add(10, 120, func(r *Request) { r.Speculate = true }))
			must(t)(s.add(10, 60, nil))
			s.steps(t, 8)
			s.token = func(at int) int32 { return int32(at % 5 / 2) }
			s.steps(t, 3)
			must(t)(s.add(100, 4, nil)) // its prompt and drafts in one pass
		}},
		{"brief chains", simpleConfig(), []pages.Kind{many}, func(t *testing.T, s *sim) {
			s.Idle(100 * time.Microsecond)
			must(t)(s.add(10, 12, nil))
		}},
		{"a common prefix", simpleConfig(), []pages.Kind{many}, func(t *testing.T, s *sim) {
			for range 3 {
				must(t)(s.add(120, 5, func(r *Request) {
					for i := range 100 {
						r.Tokens[i] = int32(i)
					}
				}))
			}
			must(t)(s.add(20, 5, nil)) // passes those that wait
		}},
		{"few pages", simpleConfig(), []pages.Kind{{Name: "full", Pages: 6}}, func(t *testing.T, s *sim) {
			must(t)(s.add(100, 90, nil))
			must(t)(s.add(60, 70, func(r *Request) { r.Priority = 1 }))
			must(t)(s.add(60, 70, nil))
		}},
		{"priorities", simpleConfig(), []pages.Kind{many}, func(t *testing.T, s *sim) {
			for range 4 {
				must(t)(s.add(10, 20, bound(10*time.Millisecond)))
			}
			s.steps(t, 5)
			must(t)(s.add(10, 5, nil))
			must(t)(s.add(10, 5, func(r *Request) { r.Priority = 2 }))
		}},
		{"refused", func() Config { c := simpleConfig(); c.Sequences, c.Queue = 1, 2; return c }(), []pages.Kind{{Name: "full", Pages: 20}}, func(t *testing.T, s *sim) {
			must(t)(s.add(100, 40, nil))
			s.steps(t, 1)
			must(t)(s.add(100, 40, func(r *Request) { r.Deadline = s.now + 30*time.Millisecond }))
			must(t)(s.add(100, 2, nil))
			var over *OverloadError
			if _, err := s.add(100, 2, nil); !errors.As(err, &over) || over.Waiting != 2 || over.Wait <= 0 {
				t.Errorf("the third that waits: %v", err)
			}
			s.steps(t, 2)
			if _, err := s.add(1500, 2, nil); !errors.Is(err, ErrPages) {
				t.Errorf("too long a prompt: %v", err)
			}
			must(t)(s.add(1200, 200, nil))
		}},
	} {
		t.Run(scene.name, func(t *testing.T) {
			s := newSim(t, scene.c, scene.kinds...)
			scene.play(t, s)
			s.drain(t)
			if err := s.leaks(); err != nil {
				t.Error(err)
			}
			path := filepath.Join("testdata", strings.ReplaceAll(scene.name, " ", "-")+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(s.timeline.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.timeline.String(); got != string(want) {
				t.Errorf("%s differs; go test -update rewrites it. got:\n%s", path, got)
			}
		})
	}
}

func (s *sim) steps(t *testing.T, n int) {
	t.Helper()
	for range n {
		if _, err := s.step(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCommonPrefixOnce checks that of 64 requests with a common beginning of 1,000 tokens that arrive
// together, one computes it, whatever they rank.
func TestCommonPrefixOnce(t *testing.T) {
	c := simpleConfig()
	c.Sequences, c.Queue = 64, 64
	s := newSim(t, c, pages.Kind{Name: "full", Pages: 300})
	for i := range 64 {
		must(t)(s.add(1020, 10, func(r *Request) {
			r.Priority = i % 3
			for i := range 1000 {
				r.Tokens[i] = int32(i)
			}
		}))
	}
	all := slices.Clone(s.live)
	s.drain(t)
	filled := 0
	for _, r := range all {
		filled += r.Filled
	}
	if want := 1020 + 63*20; filled != want {
		t.Errorf("%d positions were prefilled, want %d", filled, want)
	}
	if err := s.leaks(); err != nil {
		t.Error(err)
	}
}

// TestInvalid checks that invalid settings, requests and outcomes are errors.
func TestInvalid(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("New accepted the zero configuration")
	}
	s := newSim(t, simpleConfig(), pages.Kind{Name: "full", Pages: 20})
	for what, change := range map[string]func(*Request){
		"no tokens": func(r *Request) { r.Tokens = nil }, "too many": func(r *Request) { r.Tokens = make([]int32, 2001) },
		"none to choose": func(r *Request) { r.Most = 0 }, "no bound": func(r *Request) { r.Bound = 0 }, "no sequence": func(r *Request) { r.Sequence = nil },
	} {
		if _, err := s.add(10, 1, change); err == nil {
			t.Errorf("a request with %s was added", what)
		}
	}
	r := must(t)(s.add(10, 5, nil))
	if err := s.Add(r); err == nil {
		t.Error("a request was added twice")
	}
	step := s.Next(0)
	for _, o := range [][]Outcome{nil, {{}}, {{Tokens: []int32{1, 2}}}, {{Tokens: []int32{1}, Skipped: true}}} {
		if _, err := s.Done(step, o); err == nil {
			t.Errorf("the outcomes %v of a last chunk were accepted", o)
		}
	}
	if _, err := s.Done(step, []Outcome{{Tokens: []int32{1}}}); err != nil {
		t.Error(err)
	}
	step = s.Next(0)
	if _, err := s.Done(step, []Outcome{{Tokens: make([]int32, 6)}}); err == nil {
		t.Error("a row chose more tokens than it may")
	}
	if ended := s.Reset(); len(ended) != 1 || ended[0] != r {
		t.Errorf("%d requests ended", len(ended))
	}
	if err := s.leaks(); err != nil {
		t.Error(err)
	}
}

// TestCorrected checks that measurements of single and mixed submissions correct the predictions, for each
// class of rows.
func TestCorrected(t *testing.T) {
	c := &Corrected{Cost: simple}
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if got < want*95/100 || got > want*105/100 {
			t.Errorf("%s is %v, want about %v", what, got, want)
		}
	}
	// measure corrects c by a submission of rows and a chunk, either of which may be 0.
	measure := func(rows, chunk int, took time.Duration) {
		step := &Step{Decode: make([]Row, rows)}
		if rows > 0 {
			step.Decoding = c.Decode(rows, 0)
		}
		if step.Predicted = step.Decoding; chunk > 0 {
			step.Chunks = []Chunk{{Rows: chunk}}
			step.Predicted += c.Prefill(0, chunk)
		}
		c.Measured(step, step.Decoding, took)
	}
	decode, prefill := simple.Decode(4, 0), simple.Prefill(0, 100)
	near("decode before", c.Decode(4, 0), decode)
	measure(4, 0, 3*decode)
	near("decode after a measurement", c.Decode(4, 0), 3*decode)
	near("prefill", c.Prefill(0, 100), prefill)
	for range 40 {
		measure(4, 0, 2*decode)
		measure(4, 100, 2*decode+prefill/2)
	}
	near("decode", c.Decode(4, 0), 2*decode)
	near("prefill of mixed submissions", c.Prefill(0, 100), prefill/2)
	near("decode of more rows", c.Decode(16, 0), 2*simple.Decode(16, 0))
	measure(16, 0, 5*simple.Decode(16, 0))
	near("decode of more rows after a measurement", c.Decode(16, 0), 5*simple.Decode(16, 0))
	near("decode of fewer rows", c.Decode(5, 0), 2*simple.Decode(5, 0))
	measure(0, 0, time.Second)
	near("decode after nothing", c.Decode(4, 0), 2*decode)

	c = &Corrected{Cost: simple, Guess: true}
	measure(2, 0, 3*time.Millisecond)
	near("a guess of ten times the rows", c.Decode(20, 0), 30*time.Millisecond)
}

// TestMeasuredAgain has the first joint pass, which has only prompts, take a hundred times as long as later ones.
// The steps after it are not joint, until one is measured again.
func TestMeasuredAgain(t *testing.T) {
	device := linear{2 * time.Millisecond, time.Microsecond, 2 * time.Millisecond, 100 * time.Microsecond}
	cost := &Corrected{Cost: device}
	c := Config{Cost: cost, Sequences: 8, Context: 1 << 16, Chunk: 64, Joint: 64, Heads: 8}
	s := newSim(t, c, pages.Kind{Name: "full", Pages: 1 << 12})
	must(t)(s.add(10, 1<<15, nil))
	must(t)(s.add(10, 1<<15, nil))
	var passed []bool // whether a step with rows and a chunk is joint
	for passes := 0; len(passed) < 4*retryJoint; {
		if len(s.live) < 3 {
			must(t)(s.add(8000, 1, nil))
		}
		step, err := s.step()
		if err != nil {
			t.Fatal(err)
		}
		took := step.Predicted
		if step.Joint {
			if took = device.Joint(joint(step.Decode, step.Chunks)); passes == 0 {
				took *= 100
			}
			passes++
		}
		cost.Measured(step, step.Decoding, took)
		if len(step.Decode) > 0 && len(step.Chunks) > 0 {
			passed = append(passed, step.Joint)
		}
	}
	count := func(steps []bool) (n int) {
		for _, is := range steps {
			if is {
				n++
			}
		}
		return n
	}
	early, late := passed[:retryJoint/2], passed[2*retryJoint:]
	if count(early) > 0 {
		t.Errorf("%d of the first %d steps are joint, want none", count(early), len(early))
	}
	if count(late) != len(late) {
		t.Errorf("%d of the last %d steps are joint, want all", count(late), len(late))
	}
}

// TestJoin checks that Join makes passes of all rows that decode and as many rows of a prompt as have room, although
// these passes are predicted to take longer than the bound and than their parts apart.
func TestJoin(t *testing.T) {
	cost := &Corrected{Cost: linear{2 * time.Millisecond, time.Microsecond, 2 * time.Millisecond, 100 * time.Microsecond}}
	cost.joint[classOf(64)] = 1e4
	s := newSim(t, Config{Cost: cost, Sequences: 8, Context: 1 << 16, Chunk: 64, Joint: 64, Heads: 8}, pages.Kind{Name: "full", Pages: 1 << 12})
	must(t)(s.add(10, 1<<15, nil))
	must(t)(s.add(10, 1<<15, nil))
	for rows := 0; rows < 2; {
		step, err := s.step()
		if err != nil {
			t.Fatal(err)
		}
		rows = len(step.Decode)
	}
	must(t)(s.add(400, 1, nil))
	const most = (64 - 2) / LeastChunk * LeastChunk
	for i, join := range []bool{false, true, true, false} {
		s.Join(join)
		step, err := s.step()
		if err != nil {
			t.Fatal(err)
		}
		if rows := rowsOf(step.Chunks); step.Joint != join || join && (len(step.Decode) != 2 || rows != most) {
			t.Errorf("step %d: %d rows that decode and %d of a prompt, joint %v, want 2, %d and %v", i, len(step.Decode), rows, step.Joint, most, join)
		}
	}
}

// TestGuess checks that predictions that are guesses make minimum units until they are measured.
func TestGuess(t *testing.T) {
	c := &Corrected{Cost: simple, Guess: true}
	config := simpleConfig()
	config.Cost = c
	s := newSim(t, config, pages.Kind{Name: "full", Pages: 20})
	must(t)(s.add(100, 100, nil))
	for i, want := range []struct{ chain, rows int }{{0, 16}, {0, 84}, {1, 0}, {23, 0}} {
		step := s.Next(0)
		rows := 0
		for _, c := range step.Chunks {
			rows += c.Rows
		}
		if step.Chain != want.chain || rows != want.rows {
			t.Errorf("step %d: chain %d and %d rows, want %d and %d", i, step.Chain, rows, want.chain, want.rows)
		}
		outcome := Outcome{}
		if len(step.Decode) > 0 || step.Chunks[0].Last {
			outcome.Tokens = make([]int32, max(1, step.Chain))
		}
		took := time.Duration(step.Chain) * simple.Decode(1, 100)
		if rows > 0 {
			took = simple.Prefill(step.Chunks[0].At, rows)
		}
		c.Measured(step, step.Decoding, took)
		if _, err := s.Done(step, []Outcome{outcome}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLastPages checks that a request runs with the last pages if those that run already have all their pages,
// and waits if they will need more.
func TestLastPages(t *testing.T) {
	for most, want := range map[int]int{55: 4, 56: 3} { // 64 positions are a page
		s := newSim(t, simpleConfig(), pages.Kind{Name: "full", Pages: 4})
		for i := range 4 {
			if i == 3 {
				s.steps(t, 1)
			}
			must(t)(s.add(10, most, func(r *Request) { r.Caching = Private }))
		}
		s.steps(t, 1)
		if running := len(s.running); running != want {
			t.Errorf("%d requests for %d tokens run, want %d", running, most, want)
		}
		s.drain(t)
		if err := s.leaks(); err != nil {
			t.Error(err)
		}
	}
}
