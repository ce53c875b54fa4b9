package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
)

var (
	// loadTime is the time during which TestLoad sends requests. A long time makes it a soak test:
	//
	//	go test ./examples/service -run TestLoad -load 10m -timeout 15m
	loadTime = flag.Duration("load", 3*time.Second, "length of TestLoad")
	// clientOf makes the test binary the client process of TestLoad.
	clientOf = flag.String("client", "", "only send requests to a `URL` for the time -load and print the outcome as JSON")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *clientOf != "" {
		if err := json.NewEncoder(os.Stdout).Encode(load(*clientOf, *loadTime)); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// start serves gopher and returns the service's URL. After the test it checks that all
// sessions and places in the queue are free and that no goroutine is left.
func start(t *testing.T, sessions, queue int) (url string, s *server) {
	before := runtime.NumGoroutine()
	// Leave one processor to HTTP and to the client process.
	m, err := pianola.Open(context.Background(), "../../testdata/gopher-q8_0.gguf", pianola.Options{Device: "cpu", Threads: max(1, runtime.GOMAXPROCS(0)-1)})
	if err != nil {
		t.Fatal(err)
	}
	if s, err = newServer(m, sessions, queue); err != nil {
		t.Fatal(err)
	}
	h := httptest.NewUnstartedServer(s)
	h.Config.ReadTimeout, h.Config.WriteTimeout = 5*time.Second, 2*time.Minute // the same as in main
	h.Start()
	t.Cleanup(func() {
		h.Close() // Close waits for answers in progress
		if len(s.free) != sessions || len(s.room) != 0 {
			t.Errorf("%d of %d sessions are free, %d requests still have a place in the queue", len(s.free), sessions, len(s.room))
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d goroutines are left, want %d", runtime.NumGoroutine(), before)
			}
		}
	})
	return h.URL, s
}

// outcome is the result of one request.
type outcome struct {
	status int
	text   string
	end    string // the end that the last line reports, or ""
	late   time.Duration
	err    error
}

// ask sends a request and reads the answer.
func ask(ctx context.Context, url string, q request) (o outcome) {
	body, err := json.Marshal(q)
	if err != nil {
		return outcome{err: err}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return outcome{err: err}
	}
	deadline := time.Now().Add(time.Duration(q.DeadlineMS) * time.Millisecond)
	defer func() { o.late = time.Since(deadline) }()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return outcome{err: err}
	}
	defer resp.Body.Close()
	if o.status = resp.StatusCode; o.status != http.StatusOK {
		b, err := io.ReadAll(resp.Body)
		return outcome{status: o.status, end: strings.TrimSpace(string(b)), err: err}
	}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil || o.end != "" {
			o.err = fmt.Errorf("line %q after the end %q: %w", lines.Bytes(), o.end, err)
			return o
		}
		o.text, o.end = o.text+a.Text, a.End
	}
	return o
}

// TestAnswers sends requests that can be answered and requests that cannot.
func TestAnswers(t *testing.T) {
	url, s := start(t, 1, 1)
	ctx := context.Background()
	whole := ask(ctx, url, request{"func main() {", 12, 20_000})
	if whole.status != 200 || whole.end != "done" || whole.text == "" || whole.err != nil {
		t.Errorf("%+v", whole)
	}
	if again := ask(ctx, url, request{"func main() {", 12, 20_000}); again.text != whole.text {
		t.Errorf("%q, then %q", whole.text, again.text)
	}
	if o := ask(ctx, url, request{"func main() {", 100_000, 1000}); o.status != 200 || o.end != context.DeadlineExceeded.Error() && !strings.Contains(o.end, "full") {
		t.Errorf("past the deadline: %+v", o)
	}
	for _, q := range []request{{"x", 0, 100}, {"x", 5, -1}, {"x", 5, 100_000}, {strings.Repeat("x", 2<<20), 5, 100}} {
		if o := ask(ctx, url, q); o.status != http.StatusBadRequest {
			t.Errorf("%.40q, %d tokens in %d ms: %+v", q.Prompt, q.MaxTokens, q.DeadlineMS, o)
		}
	}
	one := <-s.free // no session can answer
	if o := ask(ctx, url, request{"x", 5, 30}); o.status != http.StatusServiceUnavailable || !strings.Contains(o.end, "in time") {
		t.Errorf("without a session: %+v", o)
	}
	s.room <- struct{}{}
	s.room <- struct{}{}
	if o := ask(ctx, url, request{"x", 5, 20_000}); o.status != http.StatusServiceUnavailable || !strings.Contains(o.end, "full") {
		t.Errorf("with a full queue: %+v", o)
	}
	<-s.room
	<-s.room
	s.free <- one
}

// report is the outcome of a client's requests.
type report struct {
	Requests, Done, Cut, Refused, Left int // Left counts requests that the client abandoned
	Lost                               []string
	LateMS                             float64 // the largest overrun of a deadline
	ProbeMS                            float64 // the longest request without the model
}

// load sends requests of all kinds at once and reports their outcome.
func load(url string, length time.Duration) (rep report) {
	const clients = 16
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = clients + 1
	var mu sync.Mutex
	texts := map[string]string{} // the longest text by prompt
	lost := func(format string, args ...any) {
		if rep.Lost = append(rep.Lost, fmt.Sprintf(format, args...)); len(rep.Lost) > 10 {
			rep.Lost = rep.Lost[:10]
		}
	}
	note := func(q request, o outcome, left bool) {
		mu.Lock()
		defer mu.Unlock()
		rep.Requests++
		switch {
		case left:
			rep.Left++
			return
		case o.err != nil:
			lost("%+v: %v", q, o.err)
		case o.status == http.StatusServiceUnavailable && o.end != "":
			rep.Refused++
		case o.status != http.StatusOK:
			lost("%+v: status %d: %s", q, o.status, o.end)
		case o.end == "done":
			rep.Done++
		case o.end == context.DeadlineExceeded.Error():
			rep.Cut++
		default:
			lost("%+v: ended with %q", q, o.end)
		}
		if o.status == http.StatusOK {
			// Generation is greedy, so each text is a prefix of the longest one.
			short, long := o.text, texts[q.Prompt]
			if len(short) > len(long) {
				short, long = long, short
			}
			if texts[q.Prompt] = long; !strings.HasPrefix(long, short) {
				lost("%.40q: %q, and %q", q.Prompt, short, long)
			}
		}
		rep.LateMS = max(rep.LateMS, o.late.Seconds()*1e3)
	}
	var wg sync.WaitGroup
	end := time.Now().Add(length)
	for c := range clients {
		r := rand.New(rand.NewPCG(uint64(c), 1))
		wg.Go(func() {
			for time.Now().Before(end) {
				q := request{fmt.Sprintf("// Package p%d\n%s", r.IntN(6), strings.Repeat("func main() {}\n", r.IntN(3)*20)), 1 + r.IntN(60), 20 + r.IntN(400)}
				ctx, cancel := context.WithCancel(context.Background())
				left := r.IntN(8) == 0
				if left {
					time.AfterFunc(time.Duration(r.IntN(60))*time.Millisecond, cancel)
				}
				o := ask(ctx, url, q)
				note(q, o, ctx.Err() != nil)
				cancel()
				if o.status == http.StatusServiceUnavailable {
					time.Sleep(time.Duration(5+r.IntN(10)) * time.Millisecond)
				}
			}
		})
	}
	// Measure the delays of the machine itself with requests that the service refuses at once.
	wg.Go(func() {
		for time.Now().Before(end) {
			began := time.Now()
			if o := ask(context.Background(), url, request{}); o.status != http.StatusBadRequest {
				mu.Lock()
				lost("a probe: %+v", o)
				mu.Unlock()
			}
			mu.Lock()
			rep.ProbeMS = max(rep.ProbeMS, time.Since(began).Seconds()*1e3)
			mu.Unlock()
			time.Sleep(2 * time.Millisecond)
		}
	})
	wg.Wait()
	return rep
}

// TestLoad lets another process send more requests, with deadlines, than the service can
// answer, and abandon some of them. No request may be lost: each must be answered completely,
// cut at its deadline or refused. An answer may end after its deadline by at most one chain
// plus four times the longest time of a request that does not use the model, because ending an
// answer takes more wake-ups: of the timer, the cancellation, the team, the session and the
// client.
func TestLoad(t *testing.T) {
	url, _ := start(t, 4, 8)
	const attempts = 5 // other load on the machine may disturb some of them
	for attempt := 1; ; attempt++ {
		cmd := exec.Command(os.Args[0], "-client", url, "-load", loadTime.String())
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		var rep report
		if err == nil {
			err = json.Unmarshal(out, &rep)
		}
		if err != nil {
			t.Fatalf("the client: %v: %s", err, out)
		}
		t.Logf("%+v", rep)
		for _, lost := range rep.Lost {
			t.Error(lost)
		}
		if rep.Requests != rep.Done+rep.Cut+rep.Refused+rep.Left {
			t.Errorf("of %d requests %d were answered, %d cut, %d refused, %d abandoned", rep.Requests, rep.Done, rep.Cut, rep.Refused, rep.Left)
		}
		every := rep.Done > 0 && rep.Cut > 0 && rep.Refused > 0 && rep.Left > 0
		bound := chainTime.Seconds()*1e3 + 4*max(rep.ProbeMS, 10)
		if t.Failed() || every && rep.LateMS <= bound {
			return
		}
		if attempt == attempts {
			t.Errorf("an answer ended %.1f ms after its deadline, the bound is %.1f ms; or not every end occurred: %+v", rep.LateMS, bound, rep)
			return
		}
	}
}
