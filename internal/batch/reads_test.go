package batch

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/pages"
	"github.com/pianola-engine/pianola/internal/schedule"
)

// hashes returns the hashes of the positions of a context from from on.
func hashes(kinds []pages.Kind, tokens []int32, from int) []uint64 {
	var all []uint64
	for p, id := range tokens {
		sum, _ := sees(kinds, p, func(_, q int) (uint64, error) { return all[q], nil })
		all = append(all, mix(mix(sum, uint64(id)), uint64(p)))
	}
	return all[from:]
}

// readAll returns the values of a request that reads positions.
func readAll(c *Context, a Ask, slow time.Duration) (all []uint64, err error) {
	st, err := c.Start(a)
	if err != nil {
		return nil, err
	}
	defer st.Close(0)
	for {
		v, err := st.Values(bg)
		if v == nil {
			return all, err
		}
		for i := 0; i < len(v); i += 8 {
			all = append(all, binary.LittleEndian.Uint64(v[i:]))
		}
		time.Sleep(slow)
	}
}

// TestReads reads the values of positions of many contexts, some slowly, beside requests that choose
// tokens. The pages do not suffice for all, so that requests are set back.
func TestReads(t *testing.T) {
	for _, kinds := range [][]pages.Kind{
		{{Name: "full", Pages: 14}}, {{Name: "full", Pages: 16}, {Name: "window", Pages: 16, Window: 40}},
	} {
		e, _ := open(t, kinds, 4, nil)
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 1))
				tokens := numbers(i%3, 1+r.IntN(300))
				c := e.NewContext("")
				defer c.Close()
				if i%2 == 0 {
					got, err := run(c, ask(tokens, 20, settings{seed: 1}))
					if want := alone(kinds, tokens, 20, settings{seed: 1}); err != nil || !slices.Equal(got, want) {
						t.Errorf("request %d: %v %v, want %v", i, err, got, want)
					}
					return
				}
				from := r.IntN(len(tokens))
				a := ask(tokens, 0, settings{})
				a.Reads, a.Priority = &schedule.Reads{From: from, Most: 1 + r.IntN(40)}, r.IntN(3)
				slow := time.Duration(i%5/4) * time.Millisecond
				if got, err := readAll(c, a, slow); err != nil || !slices.Equal(got, hashes(kinds, tokens, from)) {
					t.Errorf("request %d: %v, %d values of %d", i, err, len(got), len(tokens)-from)
				}
				// The context goes on behind the last token.
				if got, err := run(c, ask(nil, 3, settings{seed: 2})); err != nil || !slices.Equal(got, alone(kinds, tokens, 3, settings{seed: 2})) {
					t.Errorf("request %d: %v, then %v", i, err, got)
				}
			})
		}
		all.Wait()
		released(t, e)
	}
}

// TestReadsInvalid checks that a request that reads positions must have them and chooses nothing.
func TestReadsInvalid(t *testing.T) {
	e, _ := open(t, plenty, 1, nil)
	c := e.NewContext("")
	defer c.Close()
	for i, a := range []Ask{
		{Reads: &schedule.Reads{From: 5, Most: 1}}, {Reads: &schedule.Reads{From: -1, Most: 1}}, {Reads: &schedule.Reads{}},
		{Reads: &schedule.Reads{Most: 1}, Most: 1}, {},
	} {
		a.Tokens, a.Bound = numbers(0, 5), time.Millisecond
		if st, err := c.Start(a); err == nil {
			st.Close(-1)
			t.Errorf("request %d is accepted", i)
		}
	}
}
