package cpu

import "sync/atomic"

// phase is a group of consecutive commands of a program that no barrier separates. A phase does
// not change once it exists, so that a late worker may look at it at any time.
type phase struct {
	items []item
}

// item is a command whose work the team divides, or a chain of commands that one worker executes
// in their order.
type item struct {
	cmds []command
}

// phasesOf divides a program's commands into phases. If each is true, every command is a phase of
// its own.
func phasesOf(cmds []command, each bool) []phase {
	var phases []phase
	for first := 0; first < len(cmds); {
		end := first + 1
		for end < len(cmds) && !each && !cmds[end].barrier {
			end++
		}
		phases = append(phases, phaseOf(cmds[first:end]))
		first = end
	}
	return phases
}

// phaseOf returns the phase of commands that no barrier separates. Commands of a single worker at
// its start may depend on each other and become a chain; all others are independent (see bind).
func phaseOf(cmds []command) phase {
	var p phase
	n := 0
	for n < len(cmds) && cmds[n].tiles == 1 {
		n++
	}
	if n > 0 {
		p.items = append(p.items, item{cmds[:n]})
	}
	for i := n; i < len(cmds); i++ {
		p.items = append(p.items, item{cmds[i : i+1]})
	}
	return p
}

// mode tells how a phase is executed.
type mode uint64

const (
	modePrepare  mode = 1 << iota // the workers prepare the input of the first command
	modePrepared                  // the input of the first command has been prepared
	modeDry                       // nothing is executed
	modeIdle                      // there is no job
	modeEnd                       // there will be no more jobs

	modeBits = 8 // bits that a mode takes
)

// A division is the layout of an item's work. Units below fixed are divided among homes, one for
// each worker; a home has several pieces. The other units are divided into the pieces of the pool,
// which all workers claim.
type division struct {
	units, fixed int
	homes        int // number of homes that have pieces
	each         int // pieces of a home
	pool         int // pieces of the pool
}

// pieces returns the number of pieces of the item.
func (d *division) pieces() int { return d.homes*d.each + d.pool }

// home returns the units [lo, hi) of piece i of a home.
func (d *division) home(home, i int) (lo, hi int) {
	from, to := d.fixed*home/d.homes, d.fixed*(home+1)/d.homes
	return from + (to-from)*i/d.each, from + (to-from)*(i+1)/d.each
}

// pooled returns the units [lo, hi) of piece i of the pool.
func (d *division) pooled(i int) (lo, hi int) {
	n := d.units - d.fixed
	return d.fixed + n*i/d.pool, d.fixed + n*(i+1)/d.pool
}

const (
	poolPieces = 8 // pieces of a pool per worker
	homePieces = 4 // pieces of a home, if the item has a pool
)

// claims is a counter of claimed pieces, of a home or of the pool. Its word holds the generation
// of the phase that it counts for, and the number of pieces claimed. Words only increase.
//
// A claim for a phase that has ended fails: the phase ended when all of its pieces had been
// executed, so the counter shows that they are claimed, or a later generation. A claim that
// succeeds keeps its phase from ending until the piece has been counted as done. Therefore a worker
// uses the memory of a session only while it holds a claim, and a worker that the system sets aside
// without a claim delays nobody and does no harm when it returns.
type claims struct {
	word atomic.Uint64
	_    pad
}

const claimBits = 16 // bits of the number of claimed pieces

// claim claims the next piece before end in a phase. It returns the piece's index.
func (c *claims) claim(gen uint64, end int) (piece int, ok bool) {
	for {
		word := c.word.Load()
		piece = 0
		switch of := word >> claimBits; {
		case of > gen:
			return 0, false
		case of == gen:
			piece = int(word & (1<<claimBits - 1))
		}
		if piece >= end {
			return 0, false
		}
		if c.word.CompareAndSwap(word, gen<<claimBits|uint64(piece+1)) {
			return piece, true
		}
	}
}

// enter prepares the worker for pieces of item i and returns the item's division.
func (w *worker) enter(p *phase, m mode, i int) division {
	w.item, w.alone = i, len(p.items) == 1 && len(p.items[i].cmds) == 1
	c := &p.items[i].cmds[0]
	w.at = c.index
	w.patch(c.cmd)
	w.shared = nil
	if i == 0 && m&(modePrepare|modePrepared) != 0 {
		w.shared = w.team.shared
	}
	w.division = w.divide(c, m)
	return w.division
}

// divide returns the division of the work of a command, or of a chain that begins with it.
func (w *worker) divide(c *command, m mode) division {
	n := w.use
	if m&modePrepare != 0 {
		units := c.kernel.(prepared).pieces(w, c.tiles)
		return division{units: units, fixed: units, homes: n, each: 1}
	}
	d := division{units: c.kernel.units(w), homes: min(n, c.tiles), each: 1}
	if k, ok := c.kernel.(sharable); ok && k.shared(w) {
		d.homes = min(n, d.units)
	}
	if k, ok := c.kernel.(divisible); ok && d.homes > 1 && d.homes == n {
		if pool := k.pool(w); pool > 0 {
			d.pool = min(poolPieces*n, pool)
			d.fixed = d.units - pool
			if d.fixed >= homePieces*n {
				d.each = homePieces
			}
			return d
		}
	}
	d.fixed = d.units
	return d
}

// pieces returns the number of pieces of a phase.
func (w *worker) pieces(p *phase, m mode) int {
	n := 0
	for i := range p.items {
		d := w.enter(p, m, i)
		n += d.pieces()
	}
	return n
}

// execute executes units [lo, hi) of an item.
func (w *worker) execute(it *item, d *division, m mode, lo, hi int) {
	if m&modeDry != 0 {
		return
	}
	k := it.cmds[0].kernel
	switch {
	case lo == hi:
	case m&modePrepare != 0:
		k.(prepared).prepare(w, lo, hi)
	case d.pool > 0 && w.begun == (begun{w.gen, w.item}):
		k.(divisible).more(w, lo, hi)
	default:
		k.run(w, lo, hi)
		w.begun = begun{w.gen, w.item}
	}
	for i := range it.cmds[1:] {
		c := &it.cmds[1+i]
		w.at = c.index
		w.patch(c.cmd)
		if units := c.kernel.units(w); units > 0 {
			c.kernel.run(w, 0, units)
		}
	}
}

// begun identifies an item of a phase for which a worker has executed the prologue of its kernel.
type begun struct {
	gen  uint64
	item int
}

// own executes pieces of the worker's home and of the pool, until none is left. It returns the
// number of pieces, and whether it stopped before the end because the worker is about to yield its
// processor.
func (w *worker) own(p *phase, m mode) (done int, stopped bool) {
	t := w.team
	home, pool := 0, 0 // ends of the item's pieces
	for i := range p.items {
		d := w.enter(p, m, i)
		if w.id < d.homes {
			first := home
			home += d.each
			for {
				if w.pace.due() {
					return done, true
				}
				piece, ok := t.homes[w.id].claim(w.gen, home)
				if !ok {
					break
				}
				lo, hi := d.home(w.id, piece-first)
				w.execute(&p.items[i], &d, m, lo, hi)
				done++
			}
		}
		if d.pool == 0 {
			continue
		}
		first := pool
		pool += d.pool
		for {
			if w.pace.due() {
				return done, true
			}
			piece, ok := t.pool.claim(w.gen, pool)
			if !ok {
				break
			}
			lo, hi := d.pooled(piece - first)
			w.execute(&p.items[i], &d, m, lo, hi)
			done++
		}
	}
	return done, false
}

// steal executes pieces of another worker's home, until none is left. It returns their number.
func (w *worker) steal(p *phase, m mode, id int) (done int) {
	t, home := w.team, 0
	for i := range p.items {
		var d division
		if len(p.items) == 1 && w.item == 0 {
			d = w.division
		} else {
			d = w.enter(p, m, i)
		}
		if id >= d.homes {
			continue
		}
		first := home
		home += d.each
		for {
			piece, ok := t.homes[id].claim(w.gen, home)
			if !ok {
				break
			}
			if piece == 0 {
				t.late(id)
			}
			lo, hi := d.home(id, piece-first)
			w.execute(&p.items[i], &d, m, lo, hi)
			done++
		}
	}
	return done
}
