package bench_test

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/bench"
	"github.com/pianola-engine/pianola/internal/exhaustive"
)

// TestLatencyCounts checks the number of values in each distribution. Tokens that arrive
// together are one delivery.
func TestLatencyCounts(t *testing.T) {
	m := open(t, llama, pianola.Options{Table: pianola.TableOptions{Context: 96}})
	res, err := bench.RunLatency(context.Background(), m, bench.LatencyOptions{
		Prompt: 16, Decode: 10, Requests: 20, Warmup: 2, Chain: 4,
	})
	if err != nil {
		t.Fatal(err)
	}
	// The 9 tokens after the first arrive in chains of 4, 4 and 1.
	for name, c := range map[string]struct{ got, want int64 }{
		"first token": {res.FirstToken.Count, 20}, "inter-token": {res.InterToken.Count, 3 * 20}, "per token": {res.PerToken.Count, 9 * 20},
	} {
		if c.got != c.want {
			t.Errorf("%s has %d values, want %d", name, c.got, c.want)
		}
	}
	if res.TokensPerDelivery != 3 || res.ChainMS != 0 || res.FirstToken.Min <= 0 {
		t.Errorf("%v tokens per delivery, ChainMS %v, first token after %v at least", res.TokensPerDelivery, res.ChainMS, res.FirstToken.Min)
	}
	// A delivery takes longer than one of its tokens.
	if res.InterToken.Max < res.PerToken.Quantile(0.5) {
		t.Errorf("the longest delivery took %v, a token %v", res.InterToken.Max, res.PerToken.Quantile(0.5))
	}
}

// TestLatencyCancels cancels generations that last long enough, with load goroutines running.
func TestLatencyCancels(t *testing.T) {
	m := open(t, gopher, pianola.Options{})
	requests := exhaustive.Pick(8, 3)
	res, err := bench.RunLatency(context.Background(), m, bench.LatencyOptions{
		Prompt: 256, Decode: 128, Requests: requests, ChainTime: 5 * time.Millisecond, Load: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	p, d := res.CancelPrefill, res.CancelDecode
	if p.Count < 1 || p.Count > int64(requests) || d.Count < 1 || d.Count > int64(requests) || res.Deadline.Count != p.Count+d.Count {
		t.Errorf("%d and %d cancellations, %d deadlines", p.Count, d.Count, res.Deadline.Count)
	}
	for _, c := range []*bench.Distribution{p, d} {
		if c.Min <= 0 || c.Max > 5*time.Second || c.Max > res.Deadline.Max {
			t.Errorf("cancelling took %v to %v, deadlines at most %v", c.Min, c.Max, res.Deadline.Max)
		}
	}
	if res.ChainMS != 5 || res.Load != 1 {
		t.Errorf("%+v", res)
	}
}

func TestLatencyErrors(t *testing.T) {
	m := open(t, llama, pianola.Options{Table: pianola.TableOptions{Context: 32}})
	ok := bench.LatencyOptions{Prompt: 8, Decode: 8, Requests: 1}
	for _, c := range []struct {
		change   func(*bench.LatencyOptions)
		contains string
	}{
		{func(o *bench.LatencyOptions) { o.Prompt = 0 }, "0 prompt tokens"},
		{func(o *bench.LatencyOptions) { o.Decode = 1 }, "1 decoded tokens"},
		{func(o *bench.LatencyOptions) { o.Requests = 0 }, "0 requests"},
		{func(o *bench.LatencyOptions) { o.Warmup = -1 }, "-1 requests to warm up"},
		{func(o *bench.LatencyOptions) { o.Chain = -1 }, "-1 tokens of a chain"},
		{func(o *bench.LatencyOptions) { o.Load = 1 << 30 }, "goroutines of load"},
		{func(o *bench.LatencyOptions) { o.Decode = 25 }, "needs 33 positions, but the context has 32"},
		{func(o *bench.LatencyOptions) { o.ChainTime = -1 }, "Chain 0 and ChainTime -1ns must not be negative"},
	} {
		o := ok
		c.change(&o)
		if _, err := bench.RunLatency(context.Background(), m, o); err == nil || !strings.Contains(err.Error(), c.contains) {
			t.Errorf("%+v: %v, want %q", o, err, c.contains)
		}
	}
}

func TestLatencyIsCancelled(t *testing.T) {
	m := open(t, llama, pianola.Options{Table: pianola.TableOptions{Context: 96}})
	before := runtime.NumGoroutine()
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	o := bench.LatencyOptions{Prompt: 16, Decode: 16, Requests: 1 << 20, Load: 2}
	o.Progress = func(done, total int) {
		if done == 5 {
			cancel(cause)
		}
		if total != 3*o.Requests {
			t.Errorf("progress reached %d of %d", done, total)
		}
	}
	if res, err := bench.RunLatency(ctx, m, o); !errors.Is(err, cause) || res != nil {
		t.Errorf("%v, %v", res, err)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // stopped goroutines need a moment to end
		if runtime.NumGoroutine() <= before {
			return
		}
	}
	t.Errorf("%d goroutines are left, want %d", runtime.NumGoroutine(), before)
}

func TestLatencyOutput(t *testing.T) {
	m := open(t, llama, pianola.Options{Table: pianola.TableOptions{Context: 96}})
	res := run(t, m, bench.Options{Prompt: 4, Decode: 4, Runs: 1})
	l, err := bench.RunLatency(context.Background(), m, bench.LatencyOptions{Prompt: 16, Decode: 10, Requests: 5, Load: 1})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := l.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"5 requests of 16 + 10 tokens after 0 to warm up, chains of at most 50 ms", "with 1 goroutines that allocate 262 MB/s each",
		"p50", "p95", "p99", "max", "first token, ms\n", "inter-token, ms\n", "per token, ms\n", "cancel in prefill, ms\n", "cancel in decode, ms\n", "█",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, b.String())
		}
	}
	b.Reset()
	if err := l.WriteBenchfmt(&b, res); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if !benchLine.MatchString(strings.TrimSuffix(line, "\n")) || !strings.Contains(line, "p99-ns") {
			t.Errorf("benchmark line %q", line)
		}
	}
	b.Reset()
	if err := l.WriteSVG(&b, "<a> & b"); err != nil {
		t.Fatal(err)
	}
	elements, text := map[string]int{}, ""
	for dec := xml.NewDecoder(strings.NewReader(b.String())); ; {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			elements[tok.Name.Local]++
		case xml.CharData:
			text += string(tok) + "\n"
		}
	}
	// How many lines mark values depends on the range of the measurements.
	if elements["rect"] < 6 || elements["line"] < 6*4 || !strings.Contains(text, "<a> & b") || !strings.Contains(text, "first token, n = 5") || !strings.Contains(text, "p99 ") {
		t.Errorf("%v\n%s", elements, text)
	}
}
