package e2e_test

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/table"
)

// TestStatsBytes compares the bytes that a generation reads with the sum of the bytes that the
// commands of its programs declare.
func TestStatsBytes(t *testing.T) {
	m := open(t, gopher, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 128}})
	reads := func(program string, sees ...int) (sum uint64) {
		all, err := m.Table().Reads(program)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range sees {
			for _, r := range all {
				sum += r.Bytes(n)
			}
		}
		return sum
	}
	for _, sampled := range []bool{false, true} {
		s := newSession(t, m, pianola.SessionOptions{Chain: 2, IgnoreStops: true})
		o := pianola.GenerateOptions{MaxTokens: 5}
		decode, head := table.ProgramDecode, table.ProgramHead
		if sampled {
			o.Sampling.Temperature, decode, head = 1, table.ProgramSample, table.ProgramSampleHead
		}
		prompt := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
		if got := ids(t, s, prompt, o); len(got) != 5 {
			t.Fatal(got)
		}
		st := s.Stats()
		if want := reads(table.ProgramPrefill, 10) + reads(head, 10) + reads(decode, 11, 12, 13, 14); st.BytesRead != want {
			t.Errorf("sampled %v: %d bytes read, want %d", sampled, st.BytesRead, want)
		}
		if st.Prefill <= 0 || st.FirstToken < st.Prefill || st.Device <= st.Prefill || st.Decode <= 0 {
			t.Errorf("times %+v", st)
		}
		if of := st.Memory.Kinds[table.SlotKV]; of.Active == 0 || of.Peak < of.Active || st.Memory != m.Memory() {
			t.Errorf("memory %+v", st.Memory)
		}
	}
}

// TestStatsQueue holds the device in one session while other sessions generate. The others
// must report the time that they waited, and must not count it as device time.
func TestStatsQueue(t *testing.T) {
	m := open(t, gopher, pianola.Options{Device: "cpu"})
	held := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
	holding, release := make(chan bool), make(chan bool)
	err := held.SetTaps(&pianola.Taps{Activations: []string{"out.logits"}, Show: func(pianola.Activation) error {
		holding <- true
		<-release
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	prompt := []int32{5, 6, 7}
	var done sync.WaitGroup
	done.Go(func() { ids(t, held, prompt, pianola.GenerateOptions{MaxTokens: 1}) })
	<-holding
	var stats [3]pianola.GenerateStats
	for i := range stats {
		s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
		done.Go(func() {
			ids(t, s, prompt, pianola.GenerateOptions{MaxTokens: 2})
			stats[i] = s.Stats()
		})
	}
	for waiting := 0; waiting < 1+len(stats); time.Sleep(time.Millisecond) { // until the submissions of all are in the queue
		b := make([]byte, 1<<20)
		waiting = 0
		for stack := range strings.SplitSeq(string(b[:runtime.Stack(b, true)]), "\n\n") {
			if strings.Contains(stack, "TestStatsQueue") && strings.Contains(stack, "internal/device.Base[...].Wait(") {
				waiting++
			}
		}
	}
	time.Sleep(200 * time.Millisecond)
	release <- true
	done.Wait()
	for _, st := range stats {
		if st.Queue < 200*time.Millisecond || st.FirstToken+st.Decode < st.Queue || st.FirstToken < st.Prefill {
			t.Errorf("%+v", st)
		}
	}
	if st := held.Stats(); st.Queue > st.Prefill || st.Prefill < 200*time.Millisecond {
		t.Errorf("the session that held the device: %+v", st)
	}
}
