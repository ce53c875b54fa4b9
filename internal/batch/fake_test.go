package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/internal/pages"
)

// settings are those of the requests of the fake device: a seed, as of a sampler, and a number of
// which one token in so many is a stop token.
type settings struct{ seed, stops uint64 }

const vocab = 1000

// fake is a device whose model is a hash: a row of a page holds a hash of the token and of all rows
// that its position sees, and the next token is a hash of that. It reads them through the page tables,
// so that a wrong page, a stale one or a lost copy changes the tokens.
type fake struct {
	kinds  []pages.Kind
	rows   [][]uint64 // by kind: [page*Size + row]
	rings  [][]int32  // by number
	tables [][][]pages.Page

	mu        sync.Mutex
	fault     func(call string) error // may be nil
	cancelled atomic.Bool
	filled    int // positions of chunks
	passes    int // joint passes with rows that decode
	broken    error
}

func newFake(kinds []pages.Kind, sequences, context int) *fake {
	d := &fake{kinds: kinds}
	for _, k := range kinds {
		d.rows = append(d.rows, make([]uint64, k.Pages*pages.Size))
	}
	for range sequences {
		d.rings = append(d.rings, make([]int32, context+1))
		var t [][]pages.Page
		for range kinds {
			t = append(t, make([]pages.Page, (context+pages.Size-1)/pages.Size))
		}
		d.tables = append(d.tables, t)
	}
	return d
}

func (d *fake) failing(call string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.broken != nil {
		return d.broken
	}
	if d.fault != nil {
		return d.fault(call)
	}
	return nil
}

// hold lets n further submissions run. The next one closes held and waits, like those after it, until over
// returns true.
func (d *fake) hold(n int, held chan<- struct{}, over func() bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = func(call string) error {
		if call != "run" {
			return nil
		}
		if n--; n == -1 {
			close(held)
		}
		for n < 0 && !over() {
			time.Sleep(time.Millisecond)
		}
		return nil
	}
}

func mix(a, b uint64) uint64 {
	a ^= b * 0x9e3779b97f4a7c15
	a ^= a >> 29
	a *= 0xbf58476d1ce4e5b9
	return a ^ a>>32
}

func (d *fake) Place(p *Placement) error {
	if err := d.failing("place"); err != nil {
		// The number now holds anything.
		for i := range d.rings[p.Number] {
			d.rings[p.Number][i] = -1
		}
		return err
	}
	copy(d.rings[p.Number][p.Known:], p.Tokens[p.Known:])
	for _, t := range d.tables[p.Number] {
		for i := range t {
			t[i] = pages.None
		}
	}
	return nil
}

func (d *fake) Copy(copies []pages.Copy) error {
	err := d.failing("copy")
	for i, c := range copies {
		from, to := d.rows[c.Kind][int(c.From)*pages.Size:][:pages.Size], d.rows[c.Kind][int(c.To)*pages.Size:][:pages.Size]
		if copy(to, from); err != nil && i%2 == 0 {
			clear(to)
		}
	}
	return err
}

// row returns the row of a position.
func (d *fake) row(number, kind, position int) (*uint64, error) {
	pg := d.tables[number][kind][position/pages.Size]
	if int64(pg) >= int64(d.kinds[kind].Pages) {
		return nil, fmt.Errorf("sequence %d has no page for position %d of %s", number, position, d.kinds[kind].Name)
	}
	return &d.rows[kind][int(pg)*pages.Size+position%pages.Size], nil
}

// sees returns a hash of the rows that a position sees, without its own.
func sees(kinds []pages.Kind, position int, row func(kind, position int) (uint64, error)) (sum uint64, err error) {
	for kind, k := range kinds {
		for p := range position {
			if k.Window > 0 && p >= k.Sinks && p <= position-k.Window {
				continue
			}
			v, err := row(kind, p)
			if err != nil {
				return 0, err
			}
			sum += mix(v, uint64(p+1))
		}
	}
	return sum, nil
}

// compute writes the rows of a position and returns their hash.
func (d *fake) compute(number, position int) (uint64, error) {
	sum, err := sees(d.kinds, position, func(kind, p int) (uint64, error) {
		row, err := d.row(number, kind, p)
		if err != nil {
			return 0, err
		}
		return *row, nil
	})
	if err != nil {
		return 0, err
	}
	h := mix(mix(sum, uint64(d.rings[number][position])), uint64(position))
	for kind := range d.kinds {
		row, err := d.row(number, kind, position)
		if err != nil {
			return 0, err
		}
		*row = h
	}
	return h, nil
}

// choose returns the token that follows a hash, and whether it ends the request.
func choose(h uint64, s settings) (int32, bool) {
	id := mix(h, s.seed) % vocab
	return int32(id), s.stops > 0 && id%s.stops == 0
}

// joint is the largest number of rows of a joint pass.
const joint = 128

// checkJoint returns an error if the device could not compute a submission in one pass.
func (d *fake) checkJoint(s *Submission) error {
	if !s.Joint {
		return nil
	}
	all := len(s.Rows)
	for _, r := range s.Rows {
		if r.Tokens != 1 {
			return fmt.Errorf("a row of a joint pass chooses %d tokens", r.Tokens)
		}
	}
	for _, c := range s.Chunks {
		if all += c.Rows; c.Read > 0 {
			return errors.New("a joint pass reads values")
		}
	}
	if all > joint || len(s.Chunks) == 0 {
		return fmt.Errorf("a joint pass has %d rows and %d chunks", all, len(s.Chunks))
	}
	if len(s.Rows) > 0 {
		d.passes++
	}
	return nil
}

func (d *fake) Run(s *Submission) error {
	if err := d.checkJoint(s); err != nil {
		return d.breaks(err)
	}
	if err := d.failing("run"); err != nil {
		// What the submission would have written holds anything.
		for _, e := range s.Entries[:len(s.Entries)/2] {
			d.tables[e.Number][e.Kind][e.Index] = e.Page
		}
		for _, r := range s.Rows {
			for kind := range d.kinds {
				// Only if the page is its own by now: a device that fails has either made all
				// changes of page tables or run nothing.
				if row, err := d.row(r.Number, kind, r.Position); err == nil && len(s.Entries) == 0 {
					*row = 0xbad
				}
			}
		}
		return err
	}
	start := time.Now()
	for _, e := range s.Entries {
		d.tables[e.Number][e.Kind][e.Index] = e.Page
	}
	for i, r := range s.Rows {
		o := &s.Results[i]
		for n := 0; n < r.Tokens && !o.Stopped && !d.cancelled.Load(); n++ {
			h, err := d.compute(r.Number, r.Position+n)
			if err != nil {
				return d.breaks(err)
			}
			var id int32
			id, o.Stopped = choose(h, r.Settings.(settings))
			d.rings[r.Number][r.Position+n+1] = id
			o.Tokens = append(o.Tokens, id)
			o.Ranks = append(o.Ranks, byte(id))
		}
	}
	for i, c := range s.Chunks {
		o := &s.Results[len(s.Rows)+i]
		if o.Skipped = d.cancelled.Load(); o.Skipped {
			continue
		}
		d.mu.Lock()
		d.filled += c.Rows
		d.mu.Unlock()
		var h uint64
		var err error
		for p := c.At; p < c.At+c.Rows; p++ {
			if h, err = d.compute(c.Number, p); err != nil {
				return d.breaks(err)
			}
			if p >= c.At+c.Rows-c.Read {
				o.Values = binary.LittleEndian.AppendUint64(o.Values, h)
			}
		}
		if c.Last {
			var id int32
			id, o.Stopped = choose(h, c.Settings.(settings))
			d.rings[c.Number][c.At+c.Rows] = id
			o.Tokens, o.Ranks = []int32{id}, []byte{byte(id)}
		}
	}
	s.Took = max(1, time.Since(start))
	return nil
}

// breaks records an error that no test has asked for.
func (d *fake) breaks(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = errors.Join(errors.New("the engine's fault"), err)
	return err
}

func (d *fake) Cancel() { d.cancelled.Store(true) }

// alone returns the next n tokens of a context, or those up to a stop token, as a context that runs
// alone gets them.
func alone(kinds []pages.Kind, tokens []int32, n int, s settings) []int32 {
	tokens = slices.Clone(tokens)
	first := len(tokens)
	var hashes []uint64
	for {
		p := len(hashes)
		sum, _ := sees(kinds, p, func(_, q int) (uint64, error) { return hashes[q], nil })
		h := mix(mix(sum, uint64(tokens[p])), uint64(p))
		hashes = append(hashes, h)
		if len(hashes) < len(tokens) {
			continue
		}
		id, stop := choose(h, s)
		tokens = append(tokens, id)
		if stop || len(tokens) == first+n {
			return tokens[first:]
		}
	}
}
