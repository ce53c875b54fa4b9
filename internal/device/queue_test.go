package device_test

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// TestOrder submits from several sessions while one job is held: jobs must run in order of
// submission, and each Wait must return its own result.
func TestOrder(t *testing.T) {
	d := loaded(t)
	first := session(t, d)
	gate := hold(t, d, first)
	ids, tickets := []replay.SessionID{first}, []replay.Ticket{submit(t, d, tokens(first, 1))}
	for i := range 5 {
		id := session(t, d)
		ids, tickets = append(ids, id), append(tickets, submit(t, d, tokens(id, i+2)))
	}
	<-gate
	gate <- true
	for i, ticket := range slices.Backward(tickets) {
		if res, err := d.Wait(ticket); err != nil || res.Count != i+1 {
			t.Errorf("submission %d: %+v, %v", i, res, err)
		}
	}
	if !slices.Equal(d.ran, ids) {
		t.Errorf("sessions %v ran, want %v", d.ran, ids)
	}
}

// TestCancelQueued cancels jobs that wait for one that does not end. They must end at once,
// wherever they are in the queue, and the others must run in order.
func TestCancelQueued(t *testing.T) {
	d := loaded(t)
	first := session(t, d)
	gate := hold(t, d, first)
	ids, tickets := []replay.SessionID{first}, []replay.Ticket{submit(t, d, tokens(first, 1))}
	<-gate // it is running
	for range 5 {
		id := session(t, d)
		ids, tickets = append(ids, id), append(tickets, submit(t, d, tokens(id, 2)))
	}
	for _, i := range []int{3, 1, 5} { // in the middle, at the front, at the end
		d.Cancel(tickets[i])
		if res, err := d.Wait(tickets[i]); err != nil || res.Count != 0 || res.Queued <= 0 {
			t.Errorf("submission %d: %+v, %v", i, res, err)
		}
	}
	last := submit(t, d, tokens(ids[5], 3)) // the session is still usable
	gate <- true
	for _, ticket := range []replay.Ticket{tickets[0], tickets[2], tickets[4], last} {
		if res, err := d.Wait(ticket); err != nil || res.Count == 0 {
			t.Errorf("%+v, %v", res, err)
		}
	}
	if want := []replay.SessionID{first, ids[2], ids[4], ids[5]}; !slices.Equal(d.ran, want) {
		t.Errorf("sessions %v ran, want %v", d.ran, want)
	}
}

// TestCancel cancels running, queued, ended and unknown submissions.
func TestCancel(t *testing.T) {
	d := loaded(t)
	a, b := session(t, d), session(t, d)
	gate := hold(t, d, a)
	running, waiting := submit(t, d, tokens(a, 10)), submit(t, d, tokens(b, 10))
	<-gate
	gate <- true
	<-gate
	for _, ticket := range []replay.Ticket{0, running + 1, running + 1<<40, waiting, running} {
		d.Cancel(ticket)
	}
	gate <- true
	if res, err := d.Wait(running); err != nil || res.Count != 2 {
		t.Errorf("running: %+v, %v", res, err)
	}
	if res, err := d.Wait(waiting); err != nil || res != (replay.Result{Queued: res.Queued}) {
		t.Errorf("queued: %+v, %v", res, err)
	}
	if !slices.Equal(d.ran, []replay.SessionID{a}) {
		t.Errorf("sessions %v ran, want %d alone", d.ran, a)
	}
	d.Cancel(waiting) // it has ended
	if res, err := d.Wait(submit(t, d, tokens(b, 10))); err != nil || res.Count != 10 {
		t.Errorf("after a cancellation: %+v, %v", res, err)
	}
}

// TestOnCancel checks that Cancel calls the function while the job runs, and neither before nor
// after.
func TestOnCancel(t *testing.T) {
	d := newFake()
	begun, end := make(chan bool), make(chan bool)
	calls := 0
	d.execute = func(j *job) (replay.Result, error) {
		if j.Cancelled() {
			t.Error("a job begins cancelled")
		}
		begun <- true
		<-end
		j.OnCancel(func() {
			if !j.Cancelled() {
				t.Error("called before the job is cancelled")
			}
			calls++
		})
		begun <- true
		<-end
		return replay.Result{}, nil
	}
	if err := d.Load(bg, small(), nil, replay.LoadOptions{}); err != nil {
		t.Fatal(err)
	}
	id := session(t, d)
	for _, when := range []string{"before", "while"} {
		ticket := submit(t, d, tokens(id, 1))
		<-begun
		if when == "before" {
			d.Cancel(ticket)
		}
		end <- true
		<-begun
		if when == "while" {
			d.Cancel(ticket)
		}
		end <- true
		if _, err := d.Wait(ticket); err != nil {
			t.Error(err)
		}
		d.Cancel(ticket)
		if want := map[string]int{"while": 1}[when]; calls != want {
			t.Errorf("cancelled %s: %d calls, want %d", when, calls, want)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestTickets waits for unknown tickets, twice for one ticket, and for tickets of sessions in
// flight.
func TestTickets(t *testing.T) {
	d := loaded(t)
	id := session(t, d)
	gate := hold(t, d, id)
	ticket := submit(t, d, tokens(id, 1))
	for what, err := range map[string]error{
		"Submit": second(d.Submit(tokens(id, 1))),
		"Write":  d.Write(id, 0, 0, nil),
		"Read":   d.Read(id, 0, 0, make([]byte, 1)),
	} {
		if !errors.Is(err, device.ErrBusy) || err.Error() != "fake: the session has a submission in flight" {
			t.Errorf("%s in flight: %v", what, err)
		}
	}
	<-gate
	gate <- true
	for _, other := range []replay.Ticket{0, ticket + 1, ticket - 1, ticket + 1<<32} {
		if _, err := d.Wait(other); !errors.Is(err, device.ErrTicket) {
			t.Errorf("ticket %#x: %v", other, err)
		}
	}
	if _, err := d.Wait(ticket); err != nil {
		t.Error(err)
	}
	if _, err := d.Wait(ticket); !errors.Is(err, device.ErrTicket) {
		t.Errorf("a second Wait: %v", err)
	}
	if res, err := d.Wait(submit(t, d, &replay.Submission{Session: id})); err != nil || res.Count != 0 {
		t.Errorf("an empty submission: %+v, %v", res, err)
	}
}

// TestRefusals checks that invalid submissions and transfers are refused and change nothing.
func TestRefusals(t *testing.T) {
	d := loaded(t)
	id := session(t, d)
	good := replay.Run{Program: 1, Count: 2, Step: table.Step{KVLen: 1, Rows: 8}}
	for what, change := range map[string]func(r *replay.Run){
		"run 1: program 2: the table has 2 programs":                                func(r *replay.Run) { r.Program = 2 },
		"run 1: program 2147483648: the table has 2 programs":                       func(r *replay.Run) { r.Program = 1 << 31 },
		"run 1 (prefill): 0 rows are not within 1 to 8":                             func(r *replay.Run) { r.Step.Rows = 0 },
		"run 1 (decode): 8 rows are not within 1 to 1":                              func(r *replay.Run) { r.Program = 0 },
		"run 1 (prefill): position 0 + 72 rows is past the context of 64":           func(r *replay.Run) { r.Count = 9 },
		"run 1 (prefill): position 4294967295 + 34359738360 rows":                   func(r *replay.Run) { r.Step.Position, r.Count = 1<<32-1, 1<<32-1 },
		"run 1 (prefill): token 49 + 16 is past":                                    func(r *replay.Run) { r.Step.TokenIndex = 49 },
		"run 1 (prefill): KV length 0 with 16 rows":                                 func(r *replay.Run) { r.Step.KVLen = 0 },
		"run 1 (prefill): KV length 50 with 16 rows is not within 1 to the context": func(r *replay.Run) { r.Step.KVLen = 50 },
	} {
		r := good
		change(&r)
		_, err := d.Submit(&replay.Submission{Session: id, Runs: []replay.Run{good, r}})
		var run *device.RunError
		if !errors.As(err, &run) || run.Run != 1 || !strings.HasPrefix(err.Error(), "fake: "+what) {
			t.Errorf("%v, want %s", err, what)
		}
	}
	edge := good
	edge.Step.Position, edge.Step.TokenIndex, edge.Step.KVLen = 48, 48, 49
	if _, err := d.Wait(submit(t, d, &replay.Submission{Session: id, Runs: []replay.Run{edge}})); err != nil {
		t.Errorf("to the end of the context: %v", err)
	}
	b := make([]byte, 8)
	timed := tokens(id, 1)
	timed.Timings = make([]time.Duration, 1)
	for want, err := range map[string]error{
		"fake: slot 2: the table has 2 slots":                                     d.Read(id, 2, 0, nil),
		"fake: slot 4294967295: the table has 2 slots":                            d.Write(id, 1<<32-1, 0, b),
		"fake: slot w does not have session scope":                                d.Write(id, 1, 0, b),
		"fake: slot tokens: offset 9 + 8 bytes is past its 16":                    d.Write(id, 0, 9, b),
		"fake: slot tokens: offset 17 + 0 bytes is past its 16":                   d.Read(id, 0, 17, nil),
		"fake: slot tokens: offset 18446744073709551612 + 8 bytes is past its 16": d.Read(id, 0, 1<<64-4, b),
		"fake: no such session":                                                   d.Read(id+1, 0, 0, b),
		"fake: timings of 1 commands, but program decode has 2":                   second(d.Submit(timed)),
		"fake: timings without a run":                                             second(d.Submit(&replay.Submission{Session: id, Timings: timed.Timings})),
		"fake: no such ticket, or it has been waited for":                         second(d.Wait(7)),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := errors.Join(d.Read(id, 0, 16, nil), d.Write(id, 0, 0, make([]byte, 16))); err != nil {
		t.Errorf("writing a whole slot: %v", err)
	}
	if len(d.ran) != 1 {
		t.Errorf("%d submissions ran, want 1", len(d.ran))
	}
}

// TestTransfer writes and reads a slot.
func TestTransfer(t *testing.T) {
	d := loaded(t)
	id := session(t, d)
	got := make([]byte, 5)
	if err := errors.Join(d.Write(id, 0, 4, []byte{1, 2, 3}), d.Read(id, 0, 3, got)); err != nil || !slices.Equal(got, []byte{0, 1, 2, 3, 0}) {
		t.Errorf("%v, %v", got, err)
	}
	other := errors.New("other")
	if err := d.queue.Hold(id, func(*own) error { return other }); err != other {
		t.Errorf("Hold: %v", err)
	}
}

// TestLose loses the device while a job runs: queued jobs and later calls must fail.
func TestLose(t *testing.T) {
	d := newFake()
	lost := errors.New("fake: lost")
	gate := make(chan bool)
	d.execute = func(*job) (replay.Result, error) {
		<-gate
		d.queue.Lose(lost)
		d.queue.Lose(errors.New("later"))
		return replay.Result{}, lost
	}
	if err := d.Load(bg, small(), nil, replay.LoadOptions{}); err != nil {
		t.Fatal(err)
	}
	a, b := session(t, d), session(t, d)
	first, behind := submit(t, d, tokens(a, 1)), submit(t, d, tokens(b, 1))
	gate <- true
	for what, err := range map[string]error{
		"Wait": second(d.Wait(first)), "the one behind": second(d.Wait(behind)), "Submit": second(d.Submit(tokens(a, 1))),
		"NewSession": second(d.NewSession()), "Read": d.Read(a, 0, 0, nil),
	} {
		if err != lost {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := errors.Join(d.CloseSession(a), d.Close()); err != nil {
		t.Error(err)
	}
	if d.left != 1 || len(d.ran) != 1 {
		t.Errorf("%d sessions were left, %d submissions ran", d.left, len(d.ran))
	}
}

// TestClose closes a device twice at once, with one submission running and one queued. Both must
// end with ErrClosed before either Close returns.
func TestClose(t *testing.T) {
	d := loaded(t)
	a, b := session(t, d), session(t, d)
	gate := hold(t, d, a)
	running, waiting := submit(t, d, tokens(a, 10)), submit(t, d, tokens(b, 10))
	<-gate
	var closing sync.WaitGroup
	for range 2 {
		closing.Go(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			if d.closes != 1 {
				t.Errorf("Close returns after %d Unload", d.closes)
			}
		})
	}
	for !errors.Is(d.Read(a, 0, 0, nil), device.ErrClosed) {
		runtime.Gosched()
	}
	gate <- true
	for what, ticket := range map[string]replay.Ticket{"running": running, "queued": waiting} {
		if res, err := d.Wait(ticket); !errors.Is(err, device.ErrClosed) || res.Count > 1 {
			t.Errorf("%s: %+v, %v", what, res, err)
		}
	}
	closing.Wait()
	if !slices.Equal(d.ran, []replay.SessionID{a}) || d.left != 2 {
		t.Errorf("sessions %v ran, %d were left", d.ran, d.left)
	}
}

// TestRace uses sessions from several goroutines while the device is closed.
func TestRace(t *testing.T) {
	d := loaded(t)
	expected := func(err error) bool {
		return err == nil || errors.Is(err, device.ErrClosed) || errors.Is(err, device.ErrSession)
	}
	var users sync.WaitGroup
	for range 6 {
		users.Go(func() {
			for {
				id, err := d.NewSession()
				if err != nil {
					if !expected(err) {
						t.Error(err)
					}
					return
				}
				ticket, err := d.Submit(tokens(id, 3))
				if err == nil {
					go d.Cancel(ticket)
					_, err = d.Wait(ticket)
				}
				for _, err := range []error{err, d.Write(id, 0, 0, []byte{1}), d.CloseSession(id)} {
					if !expected(err) {
						t.Error(err)
					}
				}
				d.Memory()
			}
		})
	}
	time.Sleep(5 * time.Millisecond)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	users.Wait()
	for i, s := range d.open {
		if s.freed != 1 {
			t.Errorf("session %d of %d was freed %d times", i, len(d.open), s.freed)
		}
	}
}

// TestNoAllocation submits, waits, writes and reads without allocating.
func TestNoAllocation(t *testing.T) {
	d := loaded(t)
	id := session(t, d)
	sub, b := tokens(id, 3), make([]byte, 4)
	best := ^uint64(0)
	for range 20 { // the runtime's own background work may allocate
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d.ran = d.ran[:0]
		ticket, err := d.Submit(sub)
		d.Cancel(ticket + 1)
		_, e := d.Wait(ticket)
		if err = errors.Join(err, e, d.Write(id, 0, 0, b), d.Read(id, 0, 0, b)); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		best = min(best, after.Mallocs-before.Mallocs)
	}
	if best != 0 {
		t.Errorf("%d allocations", best)
	}
}
