package replay_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/table"
)

var le = binary.LittleEndian

// hostileModels are the tables whose fields TestHostileRolls changes. They are of families with
// different commands and together contain all programs.
var hostileModels = []struct {
	name    string
	chip    string
	options compiler.Options
}{
	{"qwen3", "cpu", compiler.Options{Context: 48, LogProbs: true, AllLogits: true, Hidden: true}},
	{"gemma2", "cpu", compiler.Options{Context: 48, Draft: 3}},
	{"mistral", "cpu", compiler.Options{Context: 48, KVSinks: 2, KVWindow: 16}},
	{"phi3", "cpu", compiler.Options{Context: 48, NoFuse: true, KV: "q8_0"}},
	{"../variants/gpt_oss", "cpu", compiler.Options{Context: 48}},
	{"../variants/qwen3_moe", "cpu", compiler.Options{Context: 48, NoFuse: true}},
	{"../variants/starcoder2", "cpu", compiler.Options{Context: 48}},
	{"../variants/lfm2", "cpu", compiler.Options{Context: 200, Draft: 2}},
	{"../variants/qwen3_5_one", "cpu", compiler.Options{Context: 48}},
	{"../variants/llama4", "cpu", compiler.Options{Context: 48}},
	{"llama", "m4-pro", compiler.Options{Context: 48, Draft: 3}},
	{"../variants/olmo2", "h200", compiler.Options{Context: 48}},
	{"gemma3_text", "cpu", compiler.Options{Context: 130, Sequences: 3, Pages: 7, LogProbs: true}},
}

// TestHostileRolls changes fields of a valid table, one or several at a time, writes the roll
// and reads it again, and replays every table that passes Validate. Prefill and decode must not
// panic, and must end within ten times the time of the valid table plus slack.
func TestHostileRolls(t *testing.T) {
	for _, c := range hostileModels {
		t.Run(filepath.Base(c.name)+"/"+c.chip, func(t *testing.T) {
			tab, dir := compiledFor(t, c.chip, c.name, 8, c.options)
			tab.Header.Device = "cpu" // the CPU device can replay any table
			mapped, err := dir.Map()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := mapped.Close(); err != nil {
					t.Error(err)
				}
			})
			h := &hostile{t: t, source: mapped, tab: tab, r: rand.New(rand.NewPCG(1, 2))}
			h.limit = 10 * h.sound()
			h.run()
			t.Logf("%d changes, %d pass Validate, the slowest replayed in %v; sound: %v", h.changes, h.passed, h.slowest, h.limit/10)
		})
	}
}

// hostile changes the fields of one table.
type hostile struct {
	t       *testing.T
	source  replay.Source
	tab     *table.Table
	r       *rand.Rand
	limit   time.Duration
	changes int
	passed  int
	slowest time.Duration
}

// slack is additional time allowed for replay on a busy machine.
const slack = 3 * time.Second

// sound replays the unchanged table.
func (h *hostile) sound() time.Duration {
	start := time.Now()
	if err := h.replay(h.tab); err != nil {
		h.t.Fatal(err)
	}
	return time.Since(start)
}

// field is an unsigned number in a table.
type field struct {
	name string
	bits int
	get  func() uint64
	set  func(uint64)
}

// fields lists all numbers in a value, including its arrays, slices and structs.
func fields(name string, v reflect.Value, to []field) []field {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if v.Type() == reflect.TypeFor[table.Cmd]() && (f.Name == "Param" || f.Name == "Second") {
				to = words(name+"."+f.Name, v.Field(i), to)
			} else if f.IsExported() {
				to = fields(name+"."+f.Name, v.Field(i), to)
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 && v.Len() > 8 {
			return to // fingerprints and constants: any value is valid
		}
		for i := range v.Len() {
			to = fields(fmt.Sprintf("%s[%d]", name, i), v.Index(i), to)
		}
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		to = append(to, field{name, v.Type().Bits(), v.Uint, v.SetUint})
	}
	return to
}

// words lists the 32-bit words of a byte array.
func words(name string, v reflect.Value, to []field) []field {
	b := v.Slice(0, v.Len()).Bytes()
	for i := 0; i+4 <= len(b); i += 4 {
		to = append(to, field{fmt.Sprintf("%s[%d]", name, i), 32, func() uint64 { return uint64(le.Uint32(b[i:])) }, func(v uint64) { le.PutUint32(b[i:], uint32(v)) }})
	}
	return to
}

// values returns boundary values for a field of the given number of bits, and neighbours of its
// current value.
func values(bits int, now uint64) []uint64 {
	top := ^uint64(0) >> (64 - bits)
	list := []uint64{0, 1, 2, 3, 5, 7, top, top - 1, now + 1, now - 1, 2 * now, now / 2, now ^ 1}
	for i := 2; i < bits; i++ {
		list = append(list, 1<<i, 1<<i-1, 1<<i+1)
	}
	for i := range list {
		list[i] &= top
	}
	return list
}

// everyField makes TestHostileRolls change each field of each table, which takes many minutes.
var everyField = flag.Bool("every-field", false, "change every field of the tables of TestHostileRolls")

// run changes a sample of the fields, some of them several at once. With the flag every-field
// it changes each field to two of its values; because a kernel occurs in many commands, its
// fields still get all values.
func (h *hostile) run() {
	all := fields("table", reflect.ValueOf(h.tab).Elem(), nil)
	if *everyField {
		for _, f := range all {
			list := values(f.bits, f.get())
			for range 2 {
				h.try([]field{f}, []uint64{list[h.r.IntN(len(list))]})
			}
		}
	}
	for i := range exhaustive.Pick(150, 25) {
		n := 1 + i%2*h.r.IntN(3)
		var some []field
		var to []uint64
		for range n {
			f := all[h.r.IntN(len(all))]
			list := values(f.bits, f.get())
			some, to = append(some, f), append(to, list[h.r.IntN(len(list))])
		}
		h.try(some, to)
	}
}

// try changes fields, replays the table if it is valid, and changes them back.
func (h *hostile) try(some []field, to []uint64) {
	h.changes++
	was, what := make([]uint64, len(some)), ""
	for i, f := range some {
		was[i] = f.get()
		what += fmt.Sprintf("%s %d to %d; ", f.name, was[i], to[i])
		f.set(to[i])
	}
	defer func() {
		for i := len(some) - 1; i >= 0; i-- {
			some[i].set(was[i])
		}
	}()
	if huge(h.tab) || len(h.tab.Validate()) > 0 {
		return
	}
	roll, err := h.tab.Encode()
	if err != nil {
		h.t.Fatalf("%s: a valid table is not encoded: %v", what, err)
	}
	tab, err := table.Decode(roll)
	if err != nil {
		return // Read checks more than Validate
	}
	if faults := tab.Validate(); len(faults) > 0 {
		h.t.Fatalf("%s: valid until it was sealed: %v", what, faults[0])
	}
	h.passed++
	limit := h.limit + slack
	took, ended := h.timed(tab, what, limit)
	if !ended { // a busy machine is slow once, an unbounded loop is slow again
		took, ended = h.timed(tab, what, limit)
	}
	if !ended {
		h.t.Fatalf("%s: replay takes more than %v twice, which the sound table does in %v", what, limit, h.limit/10)
	}
	h.slowest = max(h.slowest, took)
}

// timed replays a table and returns how long that took, or false if it has not ended
// within the limit.
func (h *hostile) timed(tab *table.Table, what string, limit time.Duration) (time.Duration, bool) {
	start := time.Now()
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("panic: %v", p)
			}
		}()
		done <- ignore(h.replay(tab))
	}()
	select {
	case err := <-done:
		if err != nil {
			h.t.Errorf("%s: %v", what, err)
		}
	case <-time.After(limit):
		return 0, false
	}
	return time.Since(start), true
}

// errReplay marks errors that are allowed for a hostile table: the device refuses it, or its
// session ends early.
var errReplay = errors.New("refused")

func ignore(err error) error {
	if errors.Is(err, errReplay) {
		return nil
	}
	return err
}

// huge reports whether a slot is larger than in any small model. A roll may request all of the
// machine's memory; only a memory budget limits it.
func huge(t *table.Table) bool {
	for i := range t.Slots {
		if t.Slots[i].Size > 1<<24 {
			return true
		}
	}
	return false
}

// replay loads a table, prefills a prompt of two chunks and decodes with each of the table's
// programs.
func (h *hostile) replay(t *table.Table) (err error) {
	ctx := context.Background()
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	m, err := replay.Load(ctx, dev, t, h.source, replay.LoadOptions{})
	if err != nil {
		return fmt.Errorf("%w: %w", errReplay, err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	o := replay.SessionOptions{StopIDs: []int32{1}, Chain: 3}
	if _, pooled := sequence.Of(t.Header.Options, int(t.Header.Context)); pooled {
		o.Chain = 0
	}
	s, err := m.NewSession(o)
	if err != nil {
		return fmt.Errorf("%w: %w", errReplay, err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	prompt := []int32{2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4}
	run := func(n int) error {
		if _, _, err := s.Prompt(ctx, prompt); err != nil {
			return err
		}
		for range n {
			if _, _, err := s.Chain(ctx, 3); err != nil {
				return err
			}
		}
		return nil
	}
	steps := []func() error{func() error { return run(4) }}
	if _, _, ok := t.Program(table.ProgramSampleHead); ok {
		logProbs := 0
		if _, _, ok := t.Program(table.ProgramRankedHead); ok {
			logProbs = 3
		}
		steps = append(steps, func() error {
			if err := errors.Join(s.Reset(), s.SetSampling(replay.Sampling{Temperature: 0.8, TopK: 5, TopP: 0.9, MinP: 0.01, Seed: 1, RepeatPenalty: 1.1, RepeatLastN: 16, LogProbs: logProbs})); err != nil {
				return err
			}
			return run(1)
		})
	}
	if _, _, ok := t.Program(table.ProgramVerify); ok {
		steps = append(steps, func() error {
			if err := errors.Join(s.Reset(), s.SetSampling(replay.Sampling{}), s.SetSpeculation(true)); err != nil {
				return err
			}
			return run(2)
		})
	}
	if _, _, ok := t.Program(table.ProgramLogits); ok {
		steps = append(steps, func() error {
			if err := s.Reset(); err != nil {
				return err
			}
			return s.AllLogits(ctx, prompt, func(int, []float32) error { return nil })
		})
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("%w: %w", errReplay, err)
		}
	}
	return nil
}

// TestSecondaryValuesAreBounded sets the row of a single-row attention command beyond the rows
// of its program. The row extends the range of positions; if Validate did not bound it, replay
// would take practically forever.
func TestSecondaryValuesAreBounded(t *testing.T) {
	tab, _ := compiledFor(t, "cpu", "llama", 8, compiler.Options{Context: 48, Draft: 3})
	p, _, ok := tab.Program(table.ProgramVerify)
	if !ok {
		t.Fatal("no program verify")
	}
	found := 0
	for i := range tab.ProgramCmds(p) {
		c := &tab.Cmds[int(p.First)+i]
		k, _ := decl.Lookup(c.Kernel)
		if len(k.Second) > 0 && !k.HasSecond(decl.SecondBehind) {
			// The field must be 0 in commands of other kernels, because they share code that
			// reads it.
			le.PutUint32(c.Second[decl.SecondBehind:], 1)
			if faults := tab.Validate(); len(faults) == 0 {
				t.Errorf("%s: Validate accepts a value in a field that %s does not have", tab.Label(int(p.First)+i), k.Name)
			}
			le.PutUint32(c.Second[decl.SecondBehind:], 0)
		}
		for _, s := range k.Second {
			if s.Name != "behind" {
				continue
			}
			at := c.Second[s.Offset:][:4]
			was := le.Uint32(at)
			for _, v := range []uint32{p.MaxRows, 1 << 24, 1<<32 - 1} {
				le.PutUint32(at, v)
				if faults := tab.Validate(); len(faults) == 0 {
					t.Errorf("%s: Validate accepts behind = %d", tab.Label(int(p.First)+i), v)
				}
			}
			le.PutUint32(at, was)
			found++
		}
	}
	if faults := tab.Validate(); len(faults) > 0 || found == 0 {
		t.Errorf("%d single-row commands of a program with several rows, %v", found, faults)
	}
}
