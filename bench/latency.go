package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/table"
)

// LatencyOptions select what RunLatency measures. A request empties the context, sends a
// prompt of random tokens, and streams the tokens that follow by pianola.Session.GenerateIDs
// with a context that can be cancelled.
type LatencyOptions struct {
	Prompt   int // tokens of a request's prompt
	Decode   int // tokens that a request generates, at least 2
	Requests int // number of measured requests, and of cancellations of each kind
	Warmup   int // number of unmeasured requests before them
	// Chain and ChainTime are the fields of pianola.SessionOptions.
	Chain     int
	ChainTime time.Duration
	Seed      uint64
	// Load is the number of goroutines that allocate during the requests, as other goroutines of a
	// service would. Every ms, each of them allocates 256 KiB in small objects and keeps
	// 16 MiB of them reachable.
	Load int
	// Progress, if not nil, receives the number of completed generations and the number of all
	// generations.
	Progress func(done, total int)
}

// Positions returns the number of context positions that a request needs.
func (o *LatencyOptions) Positions() int { return o.Prompt + o.Decode }

func (o *LatencyOptions) check() error {
	for _, f := range []struct {
		name         string
		v, low, high int
	}{
		{"prompt tokens", o.Prompt, 1, table.MaxContext}, {"decoded tokens", o.Decode, 2, table.MaxContext},
		{"requests", o.Requests, 1, maxRequests}, {"requests to warm up", o.Warmup, 0, maxRequests},
		{"tokens of a chain", o.Chain, 0, table.MaxContext}, {"goroutines of load", o.Load, 0, maxLoad},
	} {
		if f.v < f.low || f.v > f.high {
			return fmt.Errorf("bench: latency with %d %s: not in %d..%d", f.v, f.name, f.low, f.high)
		}
	}
	return nil
}

const (
	maxRequests = 1 << 24
	maxLoad     = 1 << 10
)

// Latency holds the measurements of RunLatency as distributions of times.
//
// The tokens of a chain arrive together. So the time between two tokens is either close to 0
// or the time of a chain. A delivery consists of the tokens of one submission; a reader waits
// for deliveries.
type Latency struct {
	Requests int  `json:"requests"`
	Warmup   int  `json:"warmup"` // unmeasured requests
	Prompt   int  `json:"prompt_tokens"`
	Tokens   int  `json:"tokens"` // tokens of a request, including the first
	Load     int  `json:"load"`   // goroutines that allocated during the requests
	RealTime bool `json:"real_time"`
	// ChainMS is the time bound of a submission in ms. It is 0 if Chain fixes the number of
	// tokens.
	ChainMS float64 `json:"chain_ms"`
	// TokensPerDelivery is the mean number of tokens per delivery. It excludes the first delivery
	// of each request, which is a single token.
	TokensPerDelivery float64 `json:"tokens_per_delivery"`

	// FirstToken is the time from the call to the first token. It has one value per request.
	FirstToken *Distribution `json:"ttft"`
	// InterToken is the time between deliveries, from the last token of one to the first token of
	// the next. It has one value per delivery and measures how long a reader waits.
	InterToken *Distribution `json:"itl"`
	// PerToken is the time between two deliveries divided by the number of tokens of the second.
	// It has one value per token and measures the pace.
	PerToken *Distribution `json:"tpot"`
	// CancelPrefill and CancelDecode are the times from the call of cancel to the end of
	// the generation, for cancellations before and after the first token.
	CancelPrefill *Distribution `json:"cancel_prefill"`
	CancelDecode  *Distribution `json:"cancel_decode"`
	// Deadline is the overrun of a deadline: the time from the moment at which a cancellation was
	// due to the end of the generation, for both kinds. It includes the delay of the timer, whose
	// goroutine needs a processor too.
	Deadline *Distribution `json:"deadline"`
}

// named returns the distributions with the names that are displayed.
func (l *Latency) named() []namedDistribution {
	return []namedDistribution{
		{"first token", "ttft", l.FirstToken}, {"inter-token", "itl", l.InterToken}, {"per token", "tpot", l.PerToken},
		{"cancel in prefill", "cancel_prefill", l.CancelPrefill}, {"cancel in decode", "cancel_decode", l.CancelDecode},
		{"deadline overrun", "deadline", l.Deadline},
	}
}

type namedDistribution struct {
	name, key string
	d         *Distribution
}

// RunLatency measures the latencies that a user of the streaming interface observes: the times
// to first tokens, between deliveries, and to the end of generations that it cancels at random
// moments. It sends requests one after another in one session.
func RunLatency(ctx context.Context, m *pianola.Model, o LatencyOptions) (res *Latency, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if have := int(m.Table().Header.Context); o.Positions() > have {
		return nil, fmt.Errorf("bench: a request needs %d positions, but the context has %d", o.Positions(), have)
	}
	s, err := m.NewSession(pianola.SessionOptions{Chain: o.Chain, ChainTime: o.ChainTime, IgnoreStops: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	stopLoad := startLoad(o.Load)
	defer stopLoad()
	r := &latencyRunner{
		ctx: ctx, m: m, s: s, o: o, rng: rand.New(rand.NewPCG(o.Seed, 0x6c6174656e6379)),
		res: &Latency{
			Requests: o.Requests, Warmup: o.Warmup, Prompt: o.Prompt, Tokens: o.Decode, Load: o.Load, RealTime: m.RealTime(),
			ChainMS:    milliseconds(s.ChainTime()),
			FirstToken: newDistribution(), InterToken: newDistribution(), PerToken: newDistribution(),
			CancelPrefill: newDistribution(), CancelDecode: newDistribution(), Deadline: newDistribution(),
		},
	}
	if err := r.run(); err != nil {
		return nil, err
	}
	return r.res, nil
}

// latencyRunner sends requests one after another.
type latencyRunner struct {
	ctx context.Context
	m   *pianola.Model
	s   *pianola.Session
	o   LatencyOptions
	rng *rand.Rand
	res *Latency

	sent               int // number of generations so far
	tokens, deliveries int
	decode             *Distribution // time from a request's first token to its last
}

func (r *latencyRunner) run() error {
	r.decode = newDistribution()
	for i := range r.o.Warmup + r.o.Requests {
		if err := r.request(i >= r.o.Warmup); err != nil {
			return err
		}
	}
	if r.deliveries > 0 {
		r.res.TokensPerDelivery = float64(r.tokens) / float64(r.deliveries)
	}
	for _, c := range []struct {
		to    *Distribution
		first bool          // the delay is counted from the first token
		most  time.Duration // upper bound of the delay
	}{
		{r.res.CancelPrefill, false, r.res.FirstToken.Quantile(0.5)},
		{r.res.CancelDecode, true, r.decode.Quantile(0.5)},
	} {
		// A request that ends before its cancellation gives no value. It is repeated, up to a
		// limit.
		for tries := 4 * r.o.Requests; tries > 0 && c.to.Count < int64(r.o.Requests); tries-- {
			if err := r.cancelled(c.to, c.first, time.Duration(r.rng.Float64()*float64(c.most))); err != nil {
				return err
			}
		}
	}
	return nil
}

// begin empties the context and returns a new random prompt, so that no positions of the
// previous prompt can be reused.
func (r *latencyRunner) begin() ([]int32, error) {
	if err := context.Cause(r.ctx); err != nil {
		return nil, err
	}
	if p := r.o.Progress; p != nil {
		p(r.sent, r.o.Warmup+3*r.o.Requests)
	}
	r.sent++
	return Prompt(r.m, r.o.Prompt, r.rng.Uint64()), r.s.Reset()
}

// request streams one generation to its end. counts reports whether it is measured.
func (r *latencyRunner) request(counts bool) error {
	ids, err := r.begin()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	var (
		n, batch                    int // tokens so far, and tokens of the current delivery
		first, delivery, last, wait time.Time
		submissions                 int
	)
	res := r.res
	if !counts {
		res = &Latency{FirstToken: newDistribution(), InterToken: newDistribution(), PerToken: newDistribution()}
	}
	// flush records the pace of the current delivery, which began at delivery. The previous one
	// ended at wait.
	flush := func() {
		if batch > 0 {
			res.PerToken.record(delivery.Sub(wait)/time.Duration(batch), int64(batch))
		}
	}
	start := time.Now()
	for _, err := range r.s.GenerateIDs(ctx, ids, pianola.GenerateOptions{MaxTokens: r.o.Decode}) {
		now := time.Now()
		if err != nil {
			return err
		}
		sent := r.s.Counters().Submissions
		switch {
		case n == 0:
			res.FirstToken.record(now.Sub(start), 1)
			first, delivery = now, now
		case sent != submissions:
			flush()
			res.InterToken.record(now.Sub(last), 1)
			wait, delivery, batch = delivery, now, 1
			if counts {
				r.deliveries++
			}
		default:
			batch++
		}
		submissions, last = sent, now
		n++
	}
	if n != r.o.Decode {
		return fmt.Errorf("bench: a request generated %d of %d tokens", n, r.o.Decode)
	}
	flush()
	if counts {
		r.tokens += n - 1
		r.decode.record(last.Sub(first), 1)
	}
	return nil
}

// cancelled starts a generation, cancels it after a delay from its start or from its first
// token, and records the time until it ends.
func (r *latencyRunner) cancelled(to *Distribution, fromFirst bool, after time.Duration) error {
	ids, err := r.begin()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	var due, called time.Time
	var timer *time.Timer
	arm := func() {
		due = time.Now().Add(after)
		timer = time.AfterFunc(after, func() {
			called = time.Now()
			cancel()
		})
	}
	if !fromFirst {
		arm()
	}
	n := 0
	var failed error
	for _, err := range r.s.GenerateIDs(ctx, ids, pianola.GenerateOptions{MaxTokens: r.o.Decode}) {
		if failed = err; err != nil {
			break
		}
		if n++; n == 1 && fromFirst {
			arm()
		}
	}
	end := time.Now()
	if timer != nil {
		timer.Stop()
	}
	switch {
	case r.ctx.Err() != nil:
		return context.Cause(r.ctx)
	case failed == nil:
		return nil // the generation ended before the cancellation
	case !errors.Is(failed, context.Canceled):
		return failed
	case n > 0 != fromFirst:
		return nil // the cancellation came in the other phase
	}
	// The generation has observed the cancellation, so the variables written before are visible
	// here.
	to.record(end.Sub(called), 1)
	r.res.Deadline.record(end.Sub(due), 1)
	return nil
}
