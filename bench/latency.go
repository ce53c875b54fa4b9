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

// LatencyOptions say what RunLatency measures. A request is an empty context, a
// prompt of its own random tokens and the tokens that follow it, streamed by
// pianola.Session.GenerateIDs with a context that can be cancelled.
type LatencyOptions struct {
	Prompt   int // tokens of a request's prompt
	Decode   int // tokens that a request asks for, at least 2
	Requests int // that count, and as many cancellations of each kind
	Warmup   int // requests before them, which do not
	// Chain and ChainTime are those of pianola.SessionOptions.
	Chain     int
	ChainTime time.Duration
	Seed      uint64
	// Load is how many goroutines work beside the requests, as a service's own
	// do: every ms each allocates LoadBytes in small objects, of
	// which LoadLive bytes stay reachable.
	Load int
	// Progress is told how many of all generations are done; may be nil.
	Progress func(done, total int)
}

// Positions returns how many positions of context a request takes.
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

// Latency is what RunLatency measured, each a distribution of times.
//
// Tokens of a chain arrive together, so that the time between two tokens is
// either next to nothing or a chain's. What a reader waits for is a delivery,
// the tokens of one submission.
type Latency struct {
	Requests int  `json:"requests"`
	Warmup   int  `json:"warmup"` // requests before them that do not count
	Prompt   int  `json:"prompt_tokens"`
	Tokens   int  `json:"tokens"` // of a request, the first included
	Load     int  `json:"load"`   // goroutines that allocated meanwhile
	RealTime bool `json:"real_time"`
	// ChainMS bounds a submission, in ms; 0 where Chain fixes its tokens.
	ChainMS float64 `json:"chain_ms"`
	// TokensPerDelivery is the mean over all deliveries but the first of a
	// request, which is one token.
	TokensPerDelivery float64 `json:"tokens_per_delivery"`

	// FirstToken is the time from the call to the first token, one value a
	// request.
	FirstToken *Distribution `json:"ttft"`
	// InterToken is the time from a token to the next where the latter begins
	// a delivery, one value a delivery: what a reader waits.
	InterToken *Distribution `json:"itl"`
	// PerToken is the time from a delivery to the next by the tokens of the
	// latter, one value a token: the pace.
	PerToken *Distribution `json:"tpot"`
	// CancelPrefill and CancelDecode are the times from the call of cancel to
	// the end of the generation, where the cancellation came before the first
	// token, and after it.
	CancelPrefill *Distribution `json:"cancel_prefill"`
	CancelDecode  *Distribution `json:"cancel_decode"`
	// Deadline is the time from the moment at which a cancellation was due to
	// the end of the generation, of both kinds: how far a deadline is overrun,
	// with the delay of the timer, whose goroutine needs a processor too.
	Deadline *Distribution `json:"deadline"`
}

// named are the distributions with what a person calls them.
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

// RunLatency measures what a caller of the streaming interface waits for: first
// tokens, deliveries, and the end of generations that it cancels at random
// moments. Requests follow one another in one session.
func RunLatency(ctx context.Context, m *pianola.Model, o LatencyOptions) (res *Latency, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if have := int(m.Table().Header.Context); o.Positions() > have {
		return nil, fmt.Errorf("bench: a request takes %d positions and the context has %d", o.Positions(), have)
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

	sent               int // generations so far
	tokens, deliveries int
	decode             *Distribution // from a request's first token to its last
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
		first bool          // the moment counts from the first token on
		most  time.Duration // it is before that
	}{
		{r.res.CancelPrefill, false, r.res.FirstToken.Quantile(0.5)},
		{r.res.CancelDecode, true, r.decode.Quantile(0.5)},
	} {
		// A request that is over before its cancellation says nothing; another
		// takes its place, within reason.
		for tries := 4 * r.o.Requests; tries > 0 && c.to.Count < int64(r.o.Requests); tries-- {
			if err := r.cancelled(c.to, c.first, time.Duration(r.rng.Float64()*float64(c.most))); err != nil {
				return err
			}
		}
	}
	return nil
}

// begin empties the context and returns a prompt. Each is another one, so that
// nothing of the last can be used again.
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

// request streams one generation to its end.
func (r *latencyRunner) request(counts bool) error {
	ids, err := r.begin()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	var (
		n, batch                    int // tokens; of the delivery that comes in
		first, delivery, last, wait time.Time
		submissions                 int
	)
	res := r.res
	if !counts {
		res = &Latency{FirstToken: newDistribution(), InterToken: newDistribution(), PerToken: newDistribution()}
	}
	// flush records the pace of the delivery that began at delivery, after the
	// one at wait.
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
		return fmt.Errorf("bench: a request gave %d tokens of %d", n, r.o.Decode)
	}
	flush()
	if counts {
		r.tokens += n - 1
		r.decode.record(last.Sub(first), 1)
	}
	return nil
}

// cancelled cancels one generation some time after its start, or after its first
// token, and records how long it then went on.
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
		return nil // it was over before
	case !errors.Is(failed, context.Canceled):
		return failed
	case n > 0 != fromFirst:
		return nil // the prompt was faster than most
	}
	// The generation has seen the cancellation, and so what came before it.
	to.record(end.Sub(called), 1)
	r.res.Deadline.record(end.Sub(due), 1)
	return nil
}
