package schedule

import (
	"slices"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/pages"
)

// curve is a Cost of measured times: of steps, of chunks and of joint passes by rows, in ms.
type curve struct {
	decode, prefill []point
	passes          []point // of the programs of joint passes; without any, a pass takes as long as a step
}

type point struct {
	rows int
	ms   float64
}

// at interpolates the time of a number of rows. Beyond the last point each row takes as long as before it.
func at(points []point, rows int) time.Duration {
	i := slices.IndexFunc(points, func(p point) bool { return p.rows >= rows })
	switch {
	case i == 0:
		return milli(points[0].ms)
	case i < 0:
		i = len(points) - 1
	}
	a, b := points[i-1], points[i]
	return milli(a.ms + (b.ms-a.ms)*float64(rows-a.rows)/float64(b.rows-a.rows))
}

func milli(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

func (c curve) Decode(rows, depth int) time.Duration     { return at(c.decode, rows) }
func (c curve) Prefill(position, rows int) time.Duration { return at(c.prefill, rows) }

// Joint takes a row of a prompt for one that decodes: it attends as such a row does. A pass takes as long as one
// with all rows of its program.
func (c curve) Joint(rows, heads, depth int) time.Duration {
	if i := slices.IndexFunc(c.passes, func(p point) bool { return p.rows >= rows }); i >= 0 {
		return milli(c.passes[i].ms)
	}
	return at(c.decode, rows)
}

// classes returns the rows of the programs of joint passes.
func (c curve) classes() (rows []int) {
	for _, p := range c.passes {
		rows = append(rows, p.rows)
	}
	return rows
}

// h200Passes are the times of llama-3.1-8b F16 on one H200 (docs/BENCHMARKS.md, 2026-11-29), those of 384 rows interpolated.
var h200Passes = curve{
	decode:  []point{{1, 4.05}, {8, 4.02}, {32, 5.48}, {64, 6.01}, {128, 7.37}, {256, 12.2}, {384, 16.2}, {512, 20.2}},
	prefill: []point{{1, 4.4}, {8, 4.5}, {32, 5.5}, {128, 7.3}, {512, 14.3}},
	passes:  []point{{32, 5.5}, {64, 6.1}, {128, 7.5}, {256, 12.3}, {384, 16.3}, {512, 20.3}},
}

// h200 are the times of llama-3.1-8b F16 on one H200 (docs/BENCHMARKS.md, 2026-11-24).
var h200 = curve{
	decode:  []point{{1, 5.1}, {8, 5.2}, {32, 6.1}, {64, 7.8}, {256, 14.8}},
	prefill: []point{{8, 5.2}, {32, 5.5}, {128, 7.5}, {512, 17}},
}

// quantised are the times of llama-3.1-8b Q4_0 on one H100 (docs/BENCHMARKS.md, 2026-11-26), roughly: with more
// than 64 rows, the products expand the weights.
var quantised = curve{
	decode:  []point{{1, 3.15}, {8, 3.55}, {32, 5.44}, {64, 8}, {65, 12}, {256, 18.9}, {512, 30}},
	prefill: []point{{8, 3.7}, {32, 5.13}, {128, 8.75}, {512, 20}},
}

// served is a simulated closed loop: each client sends its next request when its last one has ended.
type served struct {
	clients, prompt, tokens, requests int
	bound                             time.Duration
	trip                              time.Duration // between two submissions
	joint                             int
	passes                            []int // rows of the programs of joint passes
	brief                             bool  // the scheduler knows the time of a trip
}

// result are the figures of a simulated load, as bench --serve-load prints them.
type result struct {
	rate         float64 // tok/s
	first, inter []time.Duration
}

func (r *result) first50() time.Duration { return quantile(r.first, 50) }
func (r *result) inter99() time.Duration { return quantile(r.inter, 99) }

func quantile(sorted []time.Duration, percent int) time.Duration {
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

// run simulates the load.
func (l served) run(t *testing.T, cost Cost) (res result) {
	t.Helper()
	c := Config{Cost: cost, Sequences: l.clients, Context: 512, Chunk: 512, Joint: l.joint, Passes: l.passes, Queue: 1 << 20, Chain: 256}
	s := newSim(t, c, pages.Kind{Name: "full", Pages: 8 * l.clients})
	const think = 100 * time.Microsecond
	arrivals := make([]time.Duration, l.clients) // in ascending order
	sent, chosen := 0, map[*Request]int{}
	last := map[*Request]time.Duration{}
	for sent < l.requests || len(s.live) > 0 {
		for ; len(arrivals) > 0 && arrivals[0] <= s.now && sent < l.requests; arrivals = arrivals[1:] {
			r := must(t)(s.add(l.prompt, l.tokens, func(r *Request) { r.Bound, r.Caching, r.Arrival = l.bound, Private, arrivals[0] }))
			sent++
			last[r] = arrivals[0]
		}
		if len(s.live) == 0 {
			s.now = arrivals[0]
			continue
		}
		live := slices.Clone(s.live)
		if _, err := s.step(); err != nil {
			t.Fatal(err)
		}
		for _, r := range live {
			if r.Chosen == chosen[r] {
				continue
			}
			if gap := s.now - last[r]; chosen[r] == 0 {
				res.first = append(res.first, gap)
			} else {
				res.inter = append(res.inter, gap)
			}
			chosen[r], last[r] = r.Chosen, s.now
			if !slices.Contains(s.live, r) {
				arrivals = append(arrivals, s.now+think)
			}
		}
		s.timeline.Reset()
		if s.now += l.trip; l.brief {
			s.Idle(l.trip)
		}
	}
	res.rate = float64(l.requests*l.tokens) / s.now.Seconds()
	slices.Sort(res.first)
	slices.Sort(res.inter)
	return res
}

// apart returns the rate that the curves give if the device only decodes all clients together and prefills
// each prompt as one chunk.
func (l served) apart(c Cost) float64 {
	each := time.Duration(l.tokens)*c.Decode(l.clients, 0)/time.Duration(l.clients) + c.Prefill(0, l.prompt)
	return float64(l.tokens) / each.Seconds()
}

// TestServedLoad predicts the served load of issue 18 on an H200: 200 tokens in, 200 out, closed loop. Asked are,
// with 50 clients, 8,000 tok/s, 10 ms between tokens (p99) and 70 ms to the first token (p50); with 200,
// 13,300 tok/s; and with one, 12 ms to the first token. The curves do not give these rates: steps of 50 rows alone
// are 7,100 tok/s. So the test asks for the rate of the curves, and for the times.
func TestServedLoad(t *testing.T) {
	const trip = 30 * time.Microsecond
	for _, load := range []struct {
		served
		part                   float64 // of the rate of the curves
		first50, inter99, most time.Duration
	}{
		{served{clients: 1, requests: 12, bound: 50 * time.Millisecond}, 0.97, 12 * time.Millisecond, 10 * time.Millisecond, 0},
		{served{clients: 50, requests: 500, bound: 10 * time.Millisecond}, 0.9, 70 * time.Millisecond, 10100 * time.Microsecond, 0},
		{served{clients: 200, requests: 800, bound: 50 * time.Millisecond}, 0.9, 300 * time.Millisecond, 50 * time.Millisecond, 0},
	} {
		l := load.served
		l.prompt, l.tokens, l.trip = 200, 200, trip
		want := l.apart(h200)
		show := func(how string, l served) result {
			r := l.run(t, h200)
			t.Logf("%3d clients, %s: %6.0f tok/s, %3.0f %% of %.0f; first token p50 %v p99 %v; between tokens p50 %v p99 %v", l.clients, how,
				r.rate, 100*r.rate/want, want, r.first50(), quantile(r.first, 99), quantile(r.inter, 50), r.inter99())
			return r
		}
		for _, bound := range []time.Duration{10, 50} {
			l.bound = bound * time.Millisecond
			show(l.bound.String()+" chunks apart, long chains", l)
		}
		for _, bound := range []time.Duration{10, 50} {
			l.bound, l.joint, l.brief = bound*time.Millisecond, 512, true
			r := show(l.bound.String()+" joint passes", l)
			if l.bound != load.bound {
				continue
			}
			if r.rate < load.part*want {
				t.Errorf("%d clients: %.0f tok/s, want %.0f", l.clients, r.rate, load.part*want)
			}
			if r.first50() > load.first50 || r.inter99() > load.inter99 {
				t.Errorf("%d clients: first token %v, between tokens %v; want %v and %v", l.clients, r.first50(), r.inter99(), load.first50, load.inter99)
			}
		}
	}
}

// servedCase is a simulated load of as many requests as ten for each client, its least rate, and the longest
// median time of a first token.
type servedCase struct {
	cost    curve
	clients int
	bound   time.Duration
	rate    float64
	first   time.Duration
}

// check simulates the load. No row may wait longer than two bounds.
func (c servedCase) check(t *testing.T) {
	t.Helper()
	l := served{clients: c.clients, prompt: 200, tokens: 200, requests: 10 * c.clients, bound: c.bound, trip: 30 * time.Microsecond, joint: 512, passes: c.cost.classes(), brief: true}
	r := l.run(t, c.cost)
	t.Logf("%d clients, bound %v: %.0f tok/s; first token p50 %v; between tokens p50 %v p99 %v", c.clients, c.bound, r.rate, r.first50(), quantile(r.inter, 50), r.inter99())
	if most := 2 * (l.bound + l.trip); r.inter99() > most {
		t.Errorf("%d clients, bound %v: between tokens p99 %v, want at most %v", c.clients, c.bound, r.inter99(), most)
	}
	if r.rate < c.rate || r.first50() > c.first {
		t.Errorf("%d clients, bound %v: %.0f tok/s, first token %v, want %.0f and %v", c.clients, c.bound, r.rate, r.first50(), c.rate, c.first)
	}
}

// TestServedLoadQuantised simulates a model for which the share of a step would permit only passes that compute few
// rows a second: prompts would take the places of rows that decode for so long that 50 clients had 3,859 tok/s
// and a first token after 985 ms, and 200 clients 3,916 tok/s and 8.6 s. So had 50 clients with a bound of 10 or
// 15 ms, which has room for few rows of prompts beside those that decode.
func TestServedLoadQuantised(t *testing.T) {
	for _, c := range []servedCase{
		{quantised, 50, milli(50), 4800, milli(100)}, {quantised, 200, milli(50), 7400, milli(100)},
		{quantised, 50, milli(10), 4500, milli(80)}, {quantised, 50, milli(15), 4200, milli(110)},
	} {
		c.check(t)
	}
}

// TestServedLate simulates loads whose bound has just enough room that joint passes compute more than half as
// many rows of prompts a second as submissions in turn. Prompts then fell behind for good: with the first of
// these, a first token came after 3.2 s (p50) at 7,142 tok/s, and with the second after 1.8 s at 6,851.
func TestServedLate(t *testing.T) {
	for _, c := range []servedCase{{h200, 200, milli(12), 8500, milli(50)}, {quantised, 200, milli(20), 7000, milli(150)}} {
		c.check(t)
	}
}

// TestServedPasses simulates loads whose passes take as long as the program that computes them, as on a GPU. A pass
// that does not fill its program computes fewer rows of prompts in the same time: 50 clients with a bound of 10 ms had
// 6,137 tok/s without programs for 128 and 384 rows, and 200 with a bound of 50 ms 10,810.
func TestServedPasses(t *testing.T) {
	for _, c := range []servedCase{
		{h200Passes, 50, milli(10), 6800, milli(45)}, {h200Passes, 50, milli(50), 6500, milli(60)}, {h200Passes, 100, milli(20), 9000, milli(45)},
		{h200Passes, 200, milli(20), 11400, milli(160)}, {h200Passes, 200, milli(50), 11400, milli(160)},
	} {
		c.check(t)
	}
}
