// Package bench measures a loaded model: prefill and decode rates, the cost of replaying
// without the kernels, and the memory traffic per token.
//
// The package drives sessions of package pianola and reads tables. It must not import kernels,
// file formats or the command line. Session.Counters is the only way in which it observes a
// device.
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

// Options select what to measure. A run starts with an empty context. It fills the context
// with Depth tokens, prefills a prompt of Prompt tokens, and decodes Decode tokens in chains.
type Options struct {
	Prompt int // tokens of the timed prefill; 0 means none
	Decode int // tokens of the timed decode, rounded up to whole chains; 0 means none
	Depth  int // tokens in the context before the prompt
	Runs   int // number of timed runs, which follow a warm-up run
	Chain  int // number of tokens per submission; 0 means that ChainTime decides
	// ChainTime is pianola.SessionOptions.ChainTime.
	ChainTime time.Duration
	Seed      uint64
}

// ErrNothing reports that neither prefill nor decode was selected.
var ErrNothing = errors.New("bench: nothing to measure: the prompt and the number of tokens to decode are both 0")

// ChainError reports that the model's chains are shorter than requested.
type ChainError struct{ Asked, Got int }

// Error implements error.
func (e *ChainError) Error() string {
	return fmt.Sprintf("bench: chains of %d tokens were requested, but are limited to %d by a rotating KV cache", e.Asked, e.Got)
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

// tokens returns the number of tokens that a run decodes, which is a multiple of the chain
// length.
func (o *Options) tokens() int {
	if o.Chain <= 1 {
		return o.Decode
	}
	return (o.Decode + o.Chain - 1) / o.Chain * o.Chain
}

// start returns the position at which decoding begins. A run with neither prompt nor depth
// begins with one token.
func (o *Options) start() int { return max(o.Depth+o.Prompt, 1) }

// Positions returns the number of context positions that a run needs.
func (o *Options) Positions() int { return o.start() + o.tokens() }

// Result holds the measurements of Run. LoadMS, the time of loading the model, and RSSMB are
// measured outside of Run.
type Result struct {
	Model     string `json:"model"`
	Device    string `json:"device"`
	Name      string `json:"name"`
	Detail    string `json:"detail"`
	Mode      string `json:"mode"`
	Context   int    `json:"context"`
	Chain     int    `json:"chain"`       // tokens of the longest submission of the last run
	ChainKept bool   `json:"chain_fixed"` // an option set Chain; otherwise the time bound did
	Prompt    int    `json:"prompt_tokens"`
	Tokens    int    `json:"tokens"` // tokens decoded per run
	Depth     int    `json:"depth"`

	PrefillTokS []float64 `json:"pp_tok_s"` // [runs], or empty
	DecodeTokS  []float64 `json:"tg_tok_s"` // [runs], or empty

	Commands int `json:"commands"`         // number of commands of the decode program
	Patched  int `json:"patched_commands"` // commands of the decode program that are patched for each token

	// EncodeNSPerCommand is the time per command to walk and patch the commands and wait at
	// barriers without running kernels. pianola.Session.Dry measures it in chains of the same
	// length. EncodeMS is this time for all tokens of one run.
	EncodeNSPerCommand float64 `json:"encode_ns_per_command"`
	EncodeMS           float64 `json:"encode_ms"`

	// WaitMS, Submissions and Waits belong to decoding in the last run.
	WaitMS      float64 `json:"wait_ms"`
	Submissions int     `json:"submissions"`
	Waits       int     `json:"waits"`

	// CallsPerToken is the number of calls of the GPU's API per token in decoding of the last run.
	// It is 0 if the device does not count them.
	CallsPerToken float64 `json:"calls_per_token"`

	// ChainP50MS and ChainP99MS are percentiles of the time of a submission, from the call to its
	// return, in decoding of all runs. In chains of one token this is the latency of a token.
	ChainP50MS float64 `json:"chain_p50_ms"`
	ChainP99MS float64 `json:"chain_p99_ms"`

	// AllocsPerToken is the number of heap allocations per decoded token. It is the smallest value
	// of all runs, because Go's scheduler occasionally allocates when a goroutine blocks.
	AllocsPerToken float64 `json:"allocs_per_token"`

	BytesPerToken float64 `json:"bytes_per_token"` // weights and KV read, at the mean depth of a run
	ReadGBs       float64 `json:"read_gb_s"`       // BytesPerToken times the median decode rate, in 10^9 bytes per second

	LoadMS     float64 `json:"load_ms"`
	Load       Load    `json:"load"`
	TTFTMS     float64 `json:"ttft_ms"` // median time from the prompt to its first token
	RSSMB      float64 `json:"rss_mb"`  // peak resident memory, 10^6 bytes; 0 if unknown
	TableBytes int     `json:"table_bytes"`

	// Latency is the result of RunLatency for the same model. It is nil if RunLatency was not
	// called.
	Latency *Latency `json:"latency,omitempty"`
}

// Load holds the milliseconds of the parts of Open; see pianola.LoadTimes.
type Load struct {
	HeaderMS    float64 `json:"header_ms"`
	TokenizerMS float64 `json:"tokenizer_ms"`
	CompileMS   float64 `json:"compile_ms"`
	TouchMS     float64 `json:"touch_ms"`
	KernelsMS   float64 `json:"kernels_ms"`
	UploadMS    float64 `json:"upload_ms"`
	WarmMS      float64 `json:"warm_ms"`
}

func load(t pianola.LoadTimes) Load {
	return Load{
		HeaderMS: milliseconds(t.Header), TokenizerMS: milliseconds(t.Tokenizer), CompileMS: milliseconds(t.Compile), TouchMS: milliseconds(t.Touch),
		KernelsMS: milliseconds(t.Kernels), UploadMS: milliseconds(t.Upload), WarmMS: milliseconds(t.Warm),
	}
}

// Run measures a model in one session, after a warm-up run. name is the model's name in the
// result. If ctx ends, Run ends the current chain and returns.
func Run(ctx context.Context, m *pianola.Model, name string, o Options) (res *Result, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if have := int(m.Table().Header.Context); o.Positions() > have {
		return nil, fmt.Errorf("bench: a run needs %d positions, but the context has %d", o.Positions(), have)
	}
	session, err := m.NewSession(pianola.SessionOptions{Chain: o.Chain, ChainTime: o.ChainTime, IgnoreStops: true})
	if err != nil {
		return nil, err
	}
	// A chain allocates nothing if its context cannot be cancelled. So the timed part uses the
	// background context, and the end of ctx closes the session.
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

// runner performs the runs.
type runner struct {
	s   *pianola.Session
	o   Options
	ids []int32 // [depth + prompt], at least one id

	prefill, decode []float64 // tokens per second
	first           []float64 // ms
	mallocs         []uint64
	chainMS         []float64        // times in ms of all submissions that decode
	last            pianola.Counters // counters of the last run's decoding
	longest         int              // tokens of the last run's longest submission
}

// reset discards the measurements of the warm-up run.
func (r *runner) reset() {
	r.prefill, r.decode, r.first, r.mallocs = nil, nil, nil, nil
	r.chainMS = make([]float64, 0, r.o.Runs*r.o.tokens()) // allocated here, not while decoding
}

// once performs one run.
func (r *runner) once() error {
	// Collect garbage here, so that no collection happens in the timed part. This must precede the
	// prompt, because a collection also empties the runtime's caches for blocking goroutines,
	// which the prompt fills again.
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

// prompt prefills the context up to the position at which decoding begins.
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
		// The pending token after the depth is the first token of the timed prompt. Session.Prompt
		// needs at least one more token.
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

// dryRuns is the number of dry runs, of whose times Dry returns the median.
const dryRuns = 5

// Dry returns the time to walk the decode program for n tokens in chains without running
// kernels. It is the median of several runs. Dry empties the context.
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

// result combines the measurements with values derived from the table.
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
		LoadMS: milliseconds(m.LoadTimes().Total), Load: load(m.LoadTimes()), TTFTMS: Median(r.first), TableBytes: len(roll),
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
	if walk == 0 { // the run decodes nothing: measure the cost per command only
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

// Prompt returns n random token ids for a model, which depend only on the seed. It avoids
// special tokens and stop ids if the vocabulary has other tokens.
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
		for range 64 { // give up if the vocabulary has only special tokens
			if ids[i] = rng.Int32N(vocab); !avoid(ids[i]) {
				break
			}
		}
	}
	return ids
}

// Median returns the median of a list. For an even number of values it is the mean of the two
// middle ones, and for an empty list 0.
func Median(list []float64) float64 {
	n := len(list)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// percentile returns the p-th percentile of a list, or 0 for an empty list.
func percentile(list []float64, p int) float64 {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[(len(sorted)*p+99)/100-1]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
