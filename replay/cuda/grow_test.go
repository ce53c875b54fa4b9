package cuda

import (
	"bytes"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/cuda/fake"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// TestGrow writes rows of caches that grow step by step up to the context. Written rows must
// keep their values, the caches must take less memory than a full context, and the session must
// decode the right tokens. A fork must contain the written rows and no others.
func TestGrow(t *testing.T) {
	for _, kind := range decl.KVKinds() {
		t.Run(kind, func(t *testing.T) { grow(t, tinyWith(t, "llama", compiler.Options{KV: kind})) })
	}
}

func grow(t *testing.T, m model) {
	caches := m.t.KVCaches()
	if len(caches) == 0 {
		t.Fatal("the model has no caches that grow")
	}
	for _, mode := range Modes() {
		drv := fake.New(t)
		d := load(t, drv, mode, m)
		want := chains(t, d, begun(t, d), 60, 7)
		id := begun(t, d)
		// row returns the offset of a cache row in its slot, and the content that the test
		// writes to it.
		row := func(c *table.KVCache, part uint32, p int) (uint64, []byte) {
			at, n := c.Span(part, uint32(p), uint32(p+1))
			return at, bytes.Repeat([]byte{byte(int(c.Slot)*31 + int(part)*7 + p)}, int(n))
		}
		check := func(id replay.SessionID, positions int) {
			t.Helper()
			for i := range caches {
				c := &caches[i]
				for part := range c.Parts() {
					at, n := c.Span(part, 0, uint32(positions))
					got := make([]byte, n)
					if err := d.Read(id, c.Slot, at, got); err != nil {
						t.Fatal(err)
					}
					for p := range positions {
						if from, want := row(c, part, p); !bytes.Equal(got[from-at:][:len(want)], want) {
							t.Fatalf("%s: slot %d, part %d, row %d of %d", mode, c.Slot, part, p, positions)
						}
					}
				}
			}
		}
		var written int
		for _, positions := range []int{10, 256, 257, 300, int(m.t.Header.Context)} {
			if err := d.Reserve(id, positions); err != nil {
				t.Fatal(err)
			}
			check(id, written)
			for i := range caches {
				for part := range caches[i].Parts() {
					for p := written; p < positions; p++ {
						at, bytes := row(&caches[i], part, p)
						if err := d.Write(id, caches[i].Slot, at, bytes); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			written = positions
			if mem := d.Memory(); int(mem.Weights+mem.Sessions+mem.Executor) != drv.Used() || mem.Kinds[table.SlotKV].Peak < mem.Kinds[table.SlotKV].Active {
				t.Errorf("%s: %+v, the driver has %d", mode, mem, drv.Used())
			}
			if written == 300 {
				fork, err := d.Fork(id, 280)
				if err != nil {
					t.Fatal(err)
				}
				check(fork, 280)
				if err := d.CloseSession(fork); err != nil {
					t.Error(err)
				}
			}
		}
		check(id, written)
		if got := chains(t, d, id, 60, 7); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", mode, got, want)
		}
		small := begun(t, d)
		if err := d.Write(small, caches[0].Slot, 0, []byte{1}); err == nil {
			t.Errorf("%s: a row of a new session was written", mode)
		}
		if err := d.Reserve(small, 1); err != nil {
			t.Fatal(err)
		}
		if err := d.Write(small, caches[0].Slot, 0, []byte{1}); err != nil {
			t.Errorf("%s: a row: %v", mode, err)
		}
		if at, _ := caches[0].Span(0, 400, 401); d.Write(small, caches[0].Slot, at, []byte{1}) == nil {
			t.Errorf("%s: writing a row without memory succeeds", mode)
		}
	}
}

// TestFirstUse uses a program that is prepared on first use. The first submission must prepare it
// once, also for other sessions and after the caches have moved. If the preparation fails, the
// session must stay unchanged. The warm-up has recorded a graph of one token.
func TestFirstUse(t *testing.T) {
	m := tiny(t, "llama")
	_, sample, ok := m.t.Program(table.ProgramSample)
	if !ok {
		t.Fatal("the table does not sample")
	}
	for mode, objects := range map[string]int{"record": len(graphTokens()) - 1, "resident": 0, "encode": 0} {
		drv := fake.New(t)
		d := load(t, drv, mode, m)
		id := begun(t, d)
		at := 0
		run := func(program int) error {
			sub := decode(d, id, at, 9)
			sub.Runs[0].Program = uint32(program)
			_, err := submit(d, sub)
			if err == nil {
				at += 9
			}
			return err
		}
		if err := run(0); err != nil {
			t.Fatal(err)
		}
		before := drv.Live()
		if mode != "encode" {
			drv.FailAt(2, 2)
			if err := run(sample); err == nil {
				t.Errorf("%s: no error from a failing preparation", mode)
			}
			if err := run(0); err != nil {
				t.Fatalf("%s: after the failure: %v", mode, err)
			}
		}
		if got := drv.Live() - before; got != 0 {
			t.Errorf("%s: %d more objects after the failure", mode, got)
		}
		for _, positions := range []int{1, 300} {
			if err := d.Reserve(id, positions); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := run(sample); err != nil {
					t.Fatal(err)
				}
				if got := drv.Live() - before; got != objects {
					t.Errorf("%s: %d objects for the program, want %d", mode, got, objects)
				}
			}
		}
		made := drv.Called()["cuGraphInstantiateWithFlags"]
		id, at = begun(t, d), 0
		if err := run(sample); err != nil {
			t.Fatal(err)
		}
		if n := drv.Called()["cuGraphInstantiateWithFlags"] - made; n != 0 {
			t.Errorf("%s: another session causes %d graphs", mode, n)
		}
	}
}

// TestExchange lets sessions run in turn and reads, writes, forks and ends them between. Each must decode the
// tokens that it decodes alone, and recordings must be made for the first only.
func TestExchange(t *testing.T) {
	for _, name := range []string{"llama", "gemma2"} {
		m := tiny(t, name)
		for _, mode := range Modes() {
			drv := fake.New(t)
			d := load(t, drv, mode, m)
			const n = 40
			want := chains(t, d, begun(t, d), n, 7)
			stop := []uint32{want[n/2]}
			short := chains(t, d, begun(t, d, stop...), n, 7)
			made := drv.Called()["cuGraphInstantiateWithFlags"]
			ids := []replay.SessionID{begun(t, d), begun(t, d, stop...), begun(t, d)}
			ends := []bool{false, false, false}
			for at := 0; at < n; at += 5 {
				for i, id := range ids {
					if ends[i] {
						continue
					}
					res, err := submit(d, decode(d, id, at, 5))
					if err != nil {
						t.Fatal(err)
					}
					ends[i] = res.Stopped
				}
				fork, err := d.Fork(ids[2], at+5)
				if err != nil {
					t.Fatal(err)
				}
				if err := d.CloseSession(ids[2]); err != nil {
					t.Fatal(err)
				}
				ids[2] = fork
			}
			for i, want := range [][]uint32{want, short, want} {
				got, err := tokens(d, ids[i], len(want))
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%s, %s: session %d: %v, %v, want %v", name, mode, i, got, err, want)
				}
			}
			if got := drv.Called()["cuGraphInstantiateWithFlags"] - made; got != 0 {
				t.Errorf("%s, %s: %d more graphs", name, mode, got)
			}
		}
	}
}
