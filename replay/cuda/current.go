package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/table"
)

// current is the memory to which the commands are bound for every session, so that the recording of a
// program serves all of them. It is a block with the fixed slots of one session, the one that ran last, and a
// record for each cache that a command binds. Before another session runs, the slots in the block are copied
// to its own block, and those of the other into this one. Caches are not copied: the records tell the kernels
// where those of the session are.
type current struct {
	base    driver.Ptr // address of the block
	size    uint64     // size of the block
	step    driver.Ptr // address of the step block
	records driver.Ptr
	caches  []cache // what each record describes

	// mu guards the fields below and the addresses of the fixed slots of all sessions. Who copies to or from
	// such a slot holds it, so that the slot stays where it is.
	mu      sync.Mutex
	session *session // the session whose slots are in the block, or nil
	known   *session // the session whose caches the records describe, or nil
}

// cache is a cache as commands bind it.
type cache struct {
	bind table.Binding
	cmd  int // one of the commands
}

// recordBytes is the size of the record of a cache: pianola_cache in shaders/cache.h.
const recordBytes = 16

// whole reports whether sessions have no caches that grow. All of their slots are in the block then. So a
// session has a block of its own only while another one runs, and the only session of a pooled table never.
func (d *Device) whole() bool { return len(d.caches.Cmds) == 0 }

// bindAll allocates the block and the records and binds all commands to them. It returns the size of what is
// part of no session's memory.
func (d *Device) bindAll(t *table.Table) (size uint64, err error) {
	c := &d.current
	if c.base, c.size, err = d.slots(&d.own, t, table.ScopeSession, d.mem); err != nil {
		return 0, err
	}
	if !d.whole() {
		size = c.size
	}
	_, step, _ := t.Slot(table.SlotStep) // CheckTable has found it
	c.step = d.mem[step]
	var at map[binding]int
	c.caches, at = cachesOf(t)
	if c.records, err = d.own.memory(uint64(recordBytes * len(c.caches))); err != nil {
		return 0, fmt.Errorf("cuda: records of caches: %w", err)
	}
	d.args = make([]arguments, len(t.Cmds))
	d.launches = make([]driver.Launch, len(t.Cmds))
	err = device.EachCmd(name, t, func(i int, _ *table.Program, cmd *table.Cmd) error {
		k, a := &d.kernels[i], &d.args[i]
		for b, bind := range cmd.Bind[:cmd.Bindings] {
			if r, ok := at[binding{i, b}]; ok {
				a.bindings[b] = c.records + driver.Ptr(recordBytes*r)
			} else if bind.Slot != table.NoSlot {
				a.bindings[b] = d.mem[bind.Slot] + driver.Ptr(bind.Offset)
			}
		}
		a.params, a.specs, a.step = cmd.Param, k.specs, c.step
		a.second = d.secondary + driver.Ptr(decl.SecondBytes*i)
		d.launches[i].Init(k.f, k.grid, k.block, k.shared, d.exec.stream, a.bytes())
		if k.cluster > 1 {
			d.launches[i].Cluster(k.cluster)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	maps, err := d.mapMatrices(t)
	return size + uint64(recordBytes*len(c.caches)) + maps, err
}

// binding is a binding of a command.
type binding struct{ cmd, at int }

// cachesOf returns the caches of a table that have records, and the index of each binding's. The commands of a
// pooled table bind the caches themselves, which have pages.
func cachesOf(t *table.Table) (caches []cache, at map[binding]int) {
	if _, pooled := sequence.Of(t.Header.Options, int(t.Header.Context)); pooled {
		return nil, nil
	}
	type key struct {
		bind table.Binding
		rows uint32
	}
	at = map[binding]int{}
	known := map[key]int{}
	for i := range t.Cmds {
		cmd := &t.Cmds[i]
		k, ok := decl.Lookup(cmd.Kernel)
		rows, has := cmd.CapacityParam()
		if !ok || !has {
			continue
		}
		for b := range cmd.Bind[:cmd.Bindings] {
			if !isCache(k, b) || cmd.Bind[b].Slot == table.NoSlot {
				continue
			}
			of := key{cmd.Bind[b], binary.LittleEndian.Uint32(cmd.Param[rows:])}
			r, ok := known[of]
			if !ok {
				r = len(caches)
				known[of], caches = r, append(caches, cache{cmd.Bind[b], i})
			}
			at[binding{i, b}] = r
		}
	}
	return caches, at
}

// isCache reports whether a kernel finds a cache by its binding's record, with cache_of.
func isCache(k *decl.Kernel, binding int) bool {
	n := k.Bindings[binding].Name
	return n == "k_cache" || n == "v_cache"
}

// enter makes a session the current one and describes its caches.
func (e *executor) enter(s *session) error {
	d, c := e.d, &e.d.current
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := e.exchange(s); err != nil || c.known == s || len(c.caches) == 0 {
		return err
	}
	b, err := e.ring.next()
	if err != nil {
		return err
	}
	b = b[:recordBytes*len(c.caches)]
	for i := range c.caches {
		of := &c.caches[i]
		rows, _ := d.table.Cmds[of.cmd].CapacityParam()
		params := d.caches.Params(of.cmd, s.room)
		r := b[recordBytes*i:]
		binary.LittleEndian.PutUint64(r, uint64(s.mem[of.bind.Slot]+driver.Ptr(of.bind.Offset)))
		binary.LittleEndian.PutUint32(r[8:], binary.LittleEndian.Uint32(params[rows:]))
		binary.LittleEndian.PutUint32(r[12:], 0)
	}
	if err := e.ring.send(c.records, b, e.stream); err != nil {
		return err
	}
	c.known = s
	return nil
}

// exchange copies the slots of a session into the block, after those in the block to their own session's.
// c.mu must be held.
func (e *executor) exchange(s *session) error {
	d, c := e.d, &e.d.current
	if c.session == s {
		return nil
	}
	if old := c.session; old != nil {
		if err := d.ownBlock(old); err != nil {
			return err
		}
		if err := old.stage.follow(e.stream); err != nil {
			return err
		}
		if err := d.drv.MemcpyDtoDAsync(old.block, c.base, c.size, e.stream); err != nil {
			return err
		}
	}
	err := d.drv.MemcpyDtoDAsync(c.base, s.block, c.size, e.stream)
	// The slots may be read or freed as soon as c.mu is unlocked.
	if sync := d.drv.StreamSynchronize(e.stream); sync != nil {
		d.queue.Lose(sync)
		err = errors.Join(err, sync)
	}
	if err != nil {
		return err
	}
	if old := c.session; old != nil {
		d.locate(old, old.block)
	}
	d.locate(s, c.base)
	c.session = s
	return nil
}

// ownBlock allocates a session's own block, unless it has one. c.mu must be held.
func (d *Device) ownBlock(s *session) (err error) {
	if s.block == 0 {
		if s.block, err = d.zeroed(&s.own, d.current.size); err != nil {
			return fmt.Errorf("cuda: slots of the %v: %w", table.ScopeSession, err)
		}
	}
	return nil
}

// locate sets the addresses of a session's fixed slots: in the block at base. c.mu must be held.
func (d *Device) locate(s *session, base driver.Ptr) {
	for i := range d.table.Slots {
		if d.fixed(d.table, i, table.ScopeSession) {
			s.mem[i] = base + (d.mem[i] - d.current.base)
		}
	}
}

// begin gives a new session its slots, zeroed: in the block if no other session's are there.
func (d *Device) begin(s *session) error {
	c := &d.current
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil || !d.whole() {
		if err := d.ownBlock(s); err != nil {
			return err
		}
	}
	if c.session != nil {
		d.locate(s, s.block)
		return nil
	}
	if err := d.clear(c.base, c.size); err != nil {
		return fmt.Errorf("cuda: slots of the %v: %w", table.ScopeSession, err)
	}
	d.locate(s, c.base)
	c.session = s
	return nil
}

// forget is called when a session's caches have moved, and when the session has ended.
func (d *Device) forget(s *session, ended bool) {
	c := &d.current
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == s {
		c.known = nil
	}
	if ended && c.session == s {
		c.session = nil
	}
}

// copyFixed copies the fixed slots of a session to another and waits.
func (d *Device) copyFixed(to, from *session) error {
	c := &d.current
	c.mu.Lock()
	defer c.mu.Unlock()
	at := func(s *session) driver.Ptr {
		if c.session == s {
			return c.base
		}
		return s.block
	}
	err := d.drv.MemcpyDtoDAsync(at(to), at(from), c.size, d.transfer)
	if sync := d.drv.StreamSynchronize(d.transfer); err == nil {
		err = sync
	}
	if err != nil {
		return fmt.Errorf("cuda: slots of the %v: %w", table.ScopeSession, err)
	}
	return nil
}
