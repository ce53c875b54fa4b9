// Package bench measures a loaded model: prefill and decode rates, what
// replaying costs beside the kernels, and the memory traffic of a token.
//
// It drives sessions of package pianola and reads tables. It knows no kernel, no file format
// and no command line; what a device does it learns from Session.Counters alone.
package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/table"
)

// Options say what to measure. A run is a fresh context with Depth tokens,
// then a prompt of Prompt tokens, then Decode tokens in chains.
type Options struct {
	Prompt int // tokens of the timed prefill; 0: none
	Decode int // tokens of the timed decode, rounded up to whole chains; 0: none
	Depth  int // tokens of context before both
	Runs   int // timed runs, after one that is not
	Chain  int // tokens of a submission, kept exactly; 0: ChainTime decides
	// ChainTime is that of pianola.SessionOptions.
	ChainTime time.Duration
	Seed      uint64
}

// ErrNothing says that neither prefill nor decode was asked for.
var ErrNothing = errors.New("bench: nothing to measure: neither prompt tokens nor decoded ones")

// ChainError says that the model has shorter chains than were asked for.
type ChainError struct{ Asked, Got int }

// Error implements error.
func (e *ChainError) Error() string {
	return fmt.Sprintf("bench: a chain of %d tokens was asked for and has %d: some layer's KV cache rotates and keeps no more", e.Asked, e.Got)
}

func (o *Options) check() error {
	for _, f := range []struct {
		name   string
		v, low int
	}{
		{"prompt tokens", o.Prompt, 0}, {"decoded tokens", o.Decode, 0}, {"tokens of depth", o.Depth, 0},
		{"runs", o.Runs, 1}, {"tokens of a chain", o.Chain, 0},
	} {
		if f.v < f.low || f.v > table.MaxContext {
			return fmt.Errorf("bench: %d %s: not in %d..%d", f.v, f.name, f.low, table.MaxContext)
		}
	}
	if o.Prompt == 0 && o.Decode == 0 {
		return ErrNothing
	}
	return nil
}

// tokens returns how many tokens a run decodes: whole chains.
func (o *Options) tokens() int {
	if o.Chain <= 1 {
		return o.Decode
	}
	return (o.Decode + o.Chain - 1) / o.Chain * o.Chain
}

// start returns the position at which decoding begins. A run without a prompt
// and without depth has one token to begin with.
func (o *Options) start() int { return max(o.Depth+o.Prompt, 1) }

// Positions returns how many positions of context a run takes.
func (o *Options) Positions() int { return o.start() + o.tokens() }

// Result is what Run measured. Every figure is from that call, but LoadMS, which
// is from the model's loading, and RSSMB.
type Result struct {
	Model     string `json:"model"`
	Device    string `json:"device"`
	Name      string `json:"name"`
	Detail    string `json:"detail"`
	Mode      string `json:"mode"`
	Context   int    `json:"context"`
	Chain     int    `json:"chain"`       // tokens of the longest submission of the last run
	ChainKept bool   `json:"chain_fixed"` // the length was asked for; else a time bound decided
	Prompt    int    `json:"prompt_tokens"`
	Tokens    int    `json:"tokens"` // decoded a run
	Depth     int    `json:"depth"`

	PrefillTokS []float64 `json:"pp_tok_s"` // [runs], or empty
	DecodeTokS  []float64 `json:"tg_tok_s"` // [runs], or empty

	Commands int `json:"commands"`         // of the decode program
	Patched  int `json:"patched_commands"` // of them, those that change from token to token

	// EncodeNSPerCommand is the time to walk, patch and meet at barriers
	// without running a kernel, by pianola.Session.Dry in chains of the same
	// length; EncodeMS is that of one run's tokens.
	EncodeNSPerCommand float64 `json:"encode_ns_per_command"`
	EncodeMS           float64 `json:"encode_ms"`

	// WaitMS, Submissions and Waits are those of the last run's decoding.
	WaitMS      float64 `json:"wait_ms"`
	Submissions int     `json:"submissions"`
	Waits       int     `json:"waits"`

	// CallsPerToken are the calls of the GPU's programming interface in the last
	// run's decoding, 0 where the device does not count them.
	CallsPerToken float64 `json:"calls_per_token"`

	// ChainP50MS and ChainP99MS are what half and 99 of 100 submissions of all
	// runs' decoding took at most, from the call to its return: with chains of
	// one token, the latency of a token.
	ChainP50MS float64 `json:"chain_p50_ms"`
	ChainP99MS float64 `json:"chain_p99_ms"`

	// AllocsPerToken counts heap allocations while decoding: the least of the
	// runs, because Go's scheduler makes one of its own now and then when a
	// goroutine blocks.
	AllocsPerToken float64 `json:"allocs_per_token"`

	BytesPerToken float64 `json:"bytes_per_token"` // weights and KV read, at the mean depth of a run
	ReadGBs       float64 `json:"read_gb_s"`       // BytesPerToken by the median decode rate, 10^9 bytes a second

	LoadMS     float64 `json:"load_ms"`
	TTFTMS     float64 `json:"ttft_ms"` // median time from the prompt to its first token
	RSSMB      float64 `json:"rss_mb"`  // the process's peak so far, 10^6 bytes; 0 if unknown
	TableBytes int     `json:"table_bytes"`

	// Latency is what RunLatency measured of the same model, nil if it was not
	// asked.
	Latency *Latency `json:"latency,omitempty"`
}

// Run measures a model, in one session, with one run to warm up. name is what
// the result calls the model. When ctx ends, so does the chain in flight.
func Run(ctx context.Context, m *pianola.Model, name string, o Options) (res *Result, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if have := int(m.Table().Header.Context); o.Positions() > have {
		return nil, fmt.Errorf("bench: a run takes %d positions and the context has %d", o.Positions(), have)
	}
	session, err := m.NewSession(pianola.SessionOptions{Chain: o.Chain, ChainTime: o.ChainTime, IgnoreStops: true})
	if err != nil {
		return nil, err
	}
	// A chain allocates nothing if its own context cannot end, so that of the
	// timed part is the background, and closing the session ends it.
	stop := context.AfterFunc(ctx, func() { _ = session.Close() })
	defer func() {
		stop()
		err = errors.Join(err, session.Close())
		if ctx.Err() != nil {
			res, err = nil, context.Cause(ctx)
		}
	}()
	r := &runner{s: session, o: o, ids: Prompt(m, max(o.Depth+o.Prompt, 1), o.Seed)}
	if err := r.once(); err != nil {
		return nil, err
	}
	r.reset()
	for range o.Runs {
		if err := r.once(); err != nil {
			return nil, err
		}
	}
	return r.result(m, name)
}

// runner measures runs.
type runner struct {
	s   *pianola.Session
	o   Options
	ids []int32 // [depth + prompt], at least one

	prefill, decode []float64 // tokens a second
	first           []float64 // ms
	mallocs         []uint64
	chainMS         []float64        // of every submission that decodes
	last            pianola.Counters // of the last run's decoding
	longest         int              // tokens of its longest submission
}

// reset forgets what warming up measured.
func (r *runner) reset() {
	r.prefill, r.decode, r.first, r.mallocs = nil, nil, nil, nil
	r.chainMS = make([]float64, 0, r.o.Runs*r.o.tokens()) // not to allocate while decoding
}

// once does one run.
func (r *runner) once() error {
	// Lest a cycle of what came before falls into the timed part. It comes
	// before the prompt because it also empties the runtime's caches for
	// blocking goroutines, which the prompt fills again.
	runtime.GC()
	if err := r.s.Reset(); err != nil {
		return err
	}
	if err := r.prompt(); err != nil {
		return err
	}
	if r.o.Decode == 0 {
		return nil
	}
	return r.chains()
}

// prompt fills the context up to where decoding begins.
func (r *runner) prompt() error {
	ids, rows := r.ids, len(r.ids)
	if d := r.o.Depth; d > 0 {
		start := time.Now()
		if _, _, err := r.s.Prompt(context.Background(), ids[:d]); err != nil {
			return err
		}
		if r.o.Prompt == 0 {
			r.first = append(r.first, milliseconds(time.Since(start)))
			return nil
		}
		// The token that the depth's last one leaves pending is the first of
		// the timed prompt, which has at least one more to be a prompt.
		ids = ids[d:][:max(r.o.Prompt-1, 1)]
		rows = len(ids) + 1
	}
	start := time.Now()
	_, _, err := r.s.Prompt(context.Background(), ids)
	took := time.Since(start)
	if err != nil {
		return err
	}
	r.first = append(r.first, milliseconds(took))
	if r.o.Prompt > 0 {
		r.prefill = append(r.prefill, float64(rows)/took.Seconds())
	}
	return nil
}

// chains decodes the run's tokens.
func (r *runner) chains() error {
	var before, after runtime.MemStats
	stats := r.s.Counters()
	runtime.ReadMemStats(&before)
	longest, total := 0, r.o.tokens()
	start := time.Now()
	for left := total; left > 0; {
		began := time.Now()
		tokens, _, err := r.s.Chain(context.Background(), left)
		if err != nil {
			return err
		}
		n := len(tokens)
		r.chainMS = append(r.chainMS, milliseconds(time.Since(began)))
		if n == 0 || r.o.Chain > 0 && n != r.o.Chain {
			return &ChainError{r.o.Chain, n}
		}
		longest = max(longest, n)
		left -= n
	}
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	r.mallocs = append(r.mallocs, after.Mallocs-before.Mallocs)
	now := r.s.Counters()
	r.last = pianola.Counters{
		Submissions: now.Submissions - stats.Submissions,
		Waits:       now.Waits - stats.Waits,
		WaitTime:    now.WaitTime - stats.WaitTime,
		Calls:       now.Calls - stats.Calls,
	}
	r.longest = longest
	r.decode = append(r.decode, float64(total)/took.Seconds())
	return nil
}

// dryRuns is how often the walk without kernels is repeated for its median.
const dryRuns = 5

// Dry returns what walking the decode program for n tokens in chains takes,
// without kernels: the median of some repetitions. It empties the context.
func Dry(s *pianola.Session, n, chain int) (time.Duration, error) {
	if err := s.Reset(); err != nil {
		return 0, err
	}
	var times []time.Duration
	for range dryRuns {
		var sum time.Duration
		for left := n; left > 0; left -= chain {
			d, err := s.Dry(min(left, chain))
			if err != nil {
				return 0, err
			}
			sum += d
		}
		times = append(times, sum)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// result joins what the runs measured with what follows from the table.
func (r *runner) result(m *pianola.Model, name string) (*Result, error) {
	t, info := m.Table(), m.Device()
	reads, err := t.Reads(table.ProgramDecode)
	if err != nil {
		return nil, err
	}
	roll, err := t.Encode()
	if err != nil {
		return nil, err
	}
	res := &Result{
		Model: name, Device: string(info.Device), Name: info.Name, Detail: info.Detail, Mode: string(m.Mode()),
		Context: int(t.Header.Context), Chain: r.o.Chain, ChainKept: r.o.Chain > 0,
		Prompt: r.o.Prompt, Tokens: r.o.tokens(), Depth: r.o.Depth,
		PrefillTokS: append([]float64{}, r.prefill...), DecodeTokS: append([]float64{}, r.decode...),
		Commands: len(reads), Patched: patched(t),
		LoadMS: milliseconds(m.LoadTimes().Total), TTFTMS: Median(r.first), TableBytes: len(roll),
	}
	tokens, chain := r.o.tokens(), max(r.o.Chain, 1)
	if tokens > 0 {
		chain = r.longest
		res.Chain = chain
		res.WaitMS, res.Submissions, res.Waits = milliseconds(r.last.WaitTime), r.last.Submissions, r.last.Waits
		res.CallsPerToken = float64(r.last.Calls) / float64(tokens)
		res.AllocsPerToken = float64(slices.Min(r.mallocs)) / float64(tokens)
		res.ChainP50MS, res.ChainP99MS = percentile(r.chainMS, 50), percentile(r.chainMS, 99)
		res.BytesPerToken = meanBytes(reads, r.o.start()+1, tokens)
		res.ReadGBs = res.BytesPerToken * Median(r.decode) / 1e9
	}
	walk := tokens
	if walk == 0 { // only the cost of a command is of interest
		walk = chain
	}
	took, err := Dry(r.s, walk, chain)
	if err != nil {
		return nil, err
	}
	res.EncodeNSPerCommand = float64(took.Nanoseconds()) / float64(walk*len(reads))
	if tokens > 0 {
		res.EncodeMS = milliseconds(took)
	}
	if peak, ok := peakRSS(); ok {
		res.RSSMB = float64(peak) / 1e6
	}
	return res, nil
}

// Prompt returns n token ids for a model, the same for the same seed: random
// ones that are neither special nor stop ids, where there are others.
func Prompt(m *pianola.Model, n int, seed uint64) []int32 {
	rng := rand.New(rand.NewPCG(seed, 0x62656e6368))
	tok, err := m.Tokenizer()
	if err != nil {
		tok = nil
	}
	stops, vocab := m.StopIDs(), int32(m.Config().Vocab)
	avoid := func(id int32) bool {
		if tok != nil {
			if _, ok := tok.Token(id); !ok || tok.Special(id) {
				return true
			}
		}
		return slices.Contains(stops, id)
	}
	ids := make([]int32, n)
	for i := range ids {
		for range 64 { // a vocabulary of special tokens alone is left as it is
			if ids[i] = rng.Int32N(vocab); !avoid(ids[i]) {
				break
			}
		}
	}
	return ids
}

// Median returns the middle value of a list, the mean of two if their number
// is even, and 0 of an empty one.
func Median(list []float64) float64 {
	n := len(list)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// percentile returns the value that p of 100 in a list are not above, and 0 of
// an empty one.
func percentile(list []float64, p int) float64 {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[(len(sorted)*p+99)/100-1]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
