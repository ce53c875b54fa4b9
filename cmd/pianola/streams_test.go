package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/serve"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
	"github.com/pianola-engine/pianola/internal/serve/local"
)

// Flags of TestServeStreams; make load selects 1,000 streams.
var (
	streamCount  = flag.Int("streams", 60, "number of streams of TestServeStreams")
	streamRounds = flag.Int("stream-rounds", 2, "number of times that TestServeStreams sends all its streams")
)

// throughputModel is the model of TestServeThroughput.
var throughputModel = flag.String("throughput-model", "", "a model `FILE` for TestServeThroughput")

// streamed is the outcome of a stream.
type streamed struct {
	text   string
	done   bool // the last event was [DONE]
	left   bool // the client has gone away
	status int
}

// stream sends a request for a stream and reads its text. If leave is positive, the client goes away after
// this number of events.
func stream(client *http.Client, url, body string, leave int) (s streamed, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return s, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(r)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	s.status = resp.StatusCode
	lines := bufio.NewScanner(resp.Body)
	for events := 0; lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if s.done {
			return s, fmt.Errorf("%q after the last event", data)
		}
		if s.done = data == "[DONE]"; s.done {
			continue
		}
		var e struct {
			Choices []struct{ Text string }
			Error   *struct{ Message string }
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil || e.Error != nil {
			return s, fmt.Errorf("the event %s: %w", data, err)
		}
		for _, c := range e.Choices {
			s.text += c.Text
		}
		if events++; events == leave {
			s.left = true
			return s, nil
		}
	}
	return s, lines.Err()
}

// TestServeStreams sends many streams at once, of which some are left by their clients. No stream may be lost
// or mixed up with another: each text is that of the same request alone. Afterwards no goroutine is left, and
// the heap does not grow from round to round.
func TestServeStreams(t *testing.T) {
	before := runtime.NumGoroutine()
	s, err := server.New(server.Options{
		Models: []fleet.Entry{{ID: "gopher", Path: gopher, Pinned: true}},
		Load: func(ctx context.Context, e fleet.Entry) (engine.Model, error) {
			return local.Open(ctx, e.Path, local.Options{Library: pianola.Options{
				Device: pianola.DeviceCPU, Parallel: 16, Queue: *streamCount, Table: pianola.TableOptions{Context: 256},
			}})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	if err := s.Preload(context.Background()); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	url := "http://" + l.Addr().String()
	var bodies []string
	for i, prompt := range []string{"func main() {", "package ", "// Copyright", "import (\\n", "type T struct", "for i := range ", "return err", "func (s *"} {
		for _, temperature := range []float64{0, 0.9} {
			bodies = append(bodies, fmt.Sprintf(`{"model":"gopher","prompt":"%s","stream":true,"max_tokens":%d,"temperature":%g,"seed":%d}`, prompt, 20+3*i, temperature, i))
		}
	}
	alone := make([]string, len(bodies))
	for i, body := range bodies {
		one, err := stream(client, url, body, 0)
		if err != nil || !one.done || one.text == "" {
			t.Fatalf("%s: %+v, %v", body, one, err)
		}
		alone[i] = one.text
	}
	var heaps []uint64
	start := time.Now()
	for round := range *streamRounds {
		done, left := sendStreams(t, client, url, bodies, alone, uint64(round))
		if done+left != *streamCount || done == 0 || left == 0 {
			t.Errorf("round %d: %d streams are complete and %d were left, of %d", round, done, left, *streamCount)
		}
		heaps = append(heaps, liveHeap())
	}
	t.Logf("%d streams in %v; live heap after each round: %v bytes", *streamCount**streamRounds, time.Since(start).Round(time.Millisecond), heaps)
	if first, last := heaps[0], heaps[len(heaps)-1]; last > first+first/4+4<<20 {
		t.Errorf("the live heap grew from %d to %d bytes", first, last)
	}
	client.CloseIdleConnections()
	if err := errors.Join(s.Shutdown(context.Background(), time.Minute), <-served); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			b := make([]byte, 1<<20)
			t.Fatalf("%d goroutines are left, there were %d: %s", runtime.NumGoroutine(), before, b[:runtime.Stack(b, true)])
		}
	}
}

// sendStreams sends all streams of a round at once, and returns how many are complete and were left.
func sendStreams(t *testing.T, client *http.Client, url string, bodies, alone []string, round uint64) (done, left int) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range *streamCount {
		r := rand.New(rand.NewPCG(round, uint64(i)))
		leave := 0
		if r.IntN(4) == 0 {
			leave = 1 + r.IntN(10)
		}
		which := r.IntN(len(bodies))
		wg.Go(func() {
			s, err := stream(client, url, bodies[which], leave)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				t.Errorf("stream %d: status %d: %v", i, s.status, err)
			case s.left && strings.HasPrefix(alone[which], s.text):
				left++
			case s.done && s.text == alone[which]:
				done++
			default:
				t.Errorf("stream %d: status %d: %q, alone %q", i, s.status, s.text, alone[which])
			}
		})
	}
	wg.Wait()
	return done, left
}

// liveHeap returns the bytes of live objects.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // frees what finalizers kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestServeThroughput compares the rate of 32 clients of the service with that of 32 calls of the library, in
// alternation. It needs a model, and a machine that does nothing else:
//
//	pianola synth qwen3-0.6b --quant Q4_0 -o /tmp/qwen3.gguf
//	go test ./cmd/pianola -count=1 -run TestServeThroughput -v -throughput-model /tmp/qwen3.gguf
func TestServeThroughput(t *testing.T) {
	if *throughputModel == "" {
		t.Skip("measures the machine: needs -throughput-model, and a machine that does nothing else")
	}
	const clients, tokens, rounds = 32, 64, 3
	lib, err := local.Open(context.Background(), *throughputModel, local.Options{Library: pianola.Options{
		Parallel: clients + 1, Table: pianola.TableOptions{Context: 512},
	}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Options{
		Models: []fleet.Entry{{ID: "m", Pinned: true}},
		Load:   func(context.Context, fleet.Entry) (engine.Model, error) { return lib, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		if err := errors.Join(s.Shutdown(context.Background(), 0), <-served); err != nil {
			t.Error(err)
		}
	}()
	if err := s.Preload(context.Background()); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	r := rand.New(rand.NewPCG(1, 2))
	prompt := func() []int32 { // other tokens each time, so that no page is found
		ids := make([]int32, 128)
		for i := range ids {
			ids[i] = int32(r.IntN(lib.Info().Vocabulary))
		}
		return ids
	}
	// together runs calls at once, and returns their tokens per second.
	together := func(call func(ids []int32) error) float64 {
		var wg sync.WaitGroup
		start := time.Now()
		for range clients {
			ids := prompt()
			wg.Go(func() {
				if err := call(ids); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		return clients * tokens / time.Since(start).Seconds()
	}
	best := 0.0
	for range rounds {
		direct := together(func(ids []int32) error {
			g := engine.Generation{Prompt: engine.Text{IDs: ids}, MaxTokens: tokens, IgnoreStops: true}
			_, err := lib.Generate(context.Background(), g, func(engine.Token) bool { return true })
			return err
		})
		over := together(func(ids []int32) error {
			text, err := json.Marshal(ids)
			if err != nil {
				return err
			}
			got, err := stream(client, "http://"+l.Addr().String(), fmt.Sprintf(`{"model":"m","prompt":%s,"stream":true,"max_tokens":%d,"temperature":0,"ignore_eos":true}`, text, tokens), 0)
			if err == nil && !got.done {
				err = fmt.Errorf("status %d: %q", got.status, got.text)
			}
			return err
		})
		t.Logf("the library %.1f tokens/s, the service %.1f (%.1f %%)", direct, over, 100*over/direct)
		best = max(best, over/direct)
	}
	if best < 0.9 {
		t.Errorf("the service has at most %.1f %% of the library's rate", 100*best)
	}
}
