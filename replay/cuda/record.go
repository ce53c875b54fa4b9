package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// record is the mode in which CUDA graphs replay tokens. The graphs of a program are recorded
// once, for all sessions. The first node of a token patches the secondary bytes of the other
// nodes from the step block and advances the step block. So a further launch of the graph replays
// the next tokens.
type record struct{ encode }

func (record) name() string { return "record" }

// graphTokens returns the numbers of tokens of a program's graphs, in descending order. A chain
// of any length needs few launches.
func graphTokens() []int { return []int{64, 8, 1} }

// graph is a graph of some tokens of a program.
type graph struct {
	tokens int
	exec   driver.GraphExec
}

// overlaps returns true: the kernels themselves wait for the preceding one.
func (record) overlaps() bool { return true }

// early reports whether a program is prepared with the first session. This is so for all
// programs of a pooled table, whose only session has all requests, and else for the programs of
// greedy decoding. Programs that sample, verify a draft, or return log-probabilities or the
// results of all rows are prepared when a session first uses them, because few models' sessions
// do.
func (d *Device) early(program int) bool {
	if d.pooled {
		return true
	}
	f := d.table.Programs[program].Flags
	if f&(table.FlagSamples|table.FlagRanks|table.FlagAdvances) != 0 {
		return false
	}
	return f.Has(table.FlagChooses) || !f.Has(table.FlagReadsRow)
}

// recordings are the graphs of all programs. They serve all sessions, because commands are bound to the memory
// of current.
type recordings struct {
	mu   sync.Mutex
	made owned
	of   [][]graph // graphs of each program, the longest first
}

// arrays implements mode: there are none.
func (record) arrays(*Device) (uint64, error) { return 0, nil }

// ready records the graphs of a program. A program for several rows gets only a graph of one token, and so do
// all programs if brief.
func (record) ready(d *Device, program int, brief bool) error {
	r := &d.recordings
	r.mu.Lock()
	defer r.mu.Unlock()
	wanted := d.graphTokens
	if brief || d.table.Programs[program].MaxRows > 1 {
		wanted = wanted[len(wanted)-1:]
	}
	have := r.of[program]
	if len(have) >= len(wanted) {
		return nil
	}
	made := owned{drv: d.drv}
	var graphs []graph
	for _, tokens := range wanted[:len(wanted)-len(have)] {
		exec, err := d.recordTokens(&made, program, tokens)
		if err != nil {
			return errors.Join(fmt.Errorf("graphs of program %s: %w", d.table.Programs[program].Name, err), made.free())
		}
		graphs = append(graphs, graph{tokens, exec})
	}
	r.of[program] = append(graphs, have...)
	r.made.frees = append(r.made.frees, made.frees...)
	return nil
}

// graphs returns the graphs of a program.
func (r *recordings) graphs(program uint32) []graph {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[program]
}

// recordTokens creates the graph of some tokens. Commands between two barriers depend on the
// commands before the first, not on each other; a token depends on the whole token before. A
// command that depends on one other command may begin before that has ended, if GPU and driver
// support it.
func (d *Device) recordTokens(o *owned, program, tokens int) (exec driver.GraphExec, err error) {
	g, err := d.drv.GraphCreate()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.drv.GraphDestroy(g)) }()
	p, first := &d.table.Programs[program], d.patchLaunch(program)
	var before, phase []driver.Node
	for range tokens {
		before, phase = phase, nil
		patch, err := d.addNode(g, before, first)
		if err != nil {
			return 0, err
		}
		before = []driver.Node{patch}
		for i := range d.table.ProgramCmds(p) {
			c := int(p.First) + i
			if d.table.Cmds[c].Barrier != 0 && len(phase) > 0 {
				before, phase = phase, nil
			}
			n, err := d.addNode(g, before, &d.launches[c])
			if err != nil {
				return 0, device.NewCommandError(name, d.table, c, err)
			}
			phase = append(phase, n)
		}
	}
	if exec, err = d.drv.GraphInstantiate(g); err != nil {
		return 0, err
	}
	made := exec
	o.add(func() error { return d.drv.GraphExecDestroy(made) })
	if err := d.drv.GraphUpload(exec, d.transfer); err != nil {
		return 0, err
	}
	return exec, d.drv.StreamSynchronize(d.transfer)
}

// addNode adds a launch to a graph, after some nodes.
func (d *Device) addNode(g driver.Graph, after []driver.Node, l *driver.Launch) (driver.Node, error) {
	if !d.overlap || len(after) != 1 {
		return d.drv.GraphAddKernel(g, after, l)
	}
	n, err := d.drv.GraphAddKernel(g, nil, l)
	if err != nil {
		return 0, err
	}
	return n, d.drv.GraphOverlap(g, after[0], n)
}

// patchArguments returns the arguments of the kernel patch for a program.
func (d *Device) patchArguments(program int) *arguments {
	p := &d.programs[program]
	a := &arguments{step: d.current.step, second: d.secondary}
	a.bindings[0], a.bindings[1] = p.patches, d.secondary
	binary.LittleEndian.PutUint32(a.params[0:], uint32(len(p.patched)))
	binary.LittleEndian.PutUint32(a.params[4:], uint32(len(d.table.Cmds)))
	return a
}

// patchLaunch returns the launch of the kernel patch for a program.
func (d *Device) patchLaunch(program int) *driver.Launch {
	l := new(driver.Launch)
	l.Init(d.patch.f, d.patch.grid, d.patch.block, d.patch.shared, 0, d.patchArguments(program).bytes())
	return l
}

// run launches the program's graphs, always the largest that fits. If the run is not the first,
// it first sets the step block, except for the stop flag and the count. It keeps few of the
// longest graphs in flight, because after a cancellation or a stop the GPU still processes the
// launched graphs: their kernels do no work but take 1.2 us each.
func (record) run(e *executor, j *job, r *replay.Run, first bool) error {
	if !first {
		if err := e.sendStep(&r.Step); err != nil {
			return err
		}
	}
	left := int(r.Count)
	batch := e.d.table.Programs[r.Program].Flags.Has(table.FlagBatch)
	for i, g := range e.d.recordings.graphs(r.Program) {
		for ; left >= g.tokens; left -= g.tokens {
			if j.Cancelled() {
				return nil
			}
			if i == 0 {
				if stop, err := e.flight.next(); err != nil || slices.Max(stop) != 0 {
					return err
				}
			}
			if err := e.d.drv.GraphLaunch(g.exec, e.stream); err != nil {
				return err
			}
			if i == 0 {
				at := int(r.Count) - left + g.tokens
				if err := e.launched(batch && left > g.tokens && at%flagEvery == 0); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// flagEvery is the number of tokens of a batch after which the stop flag is read. The copy keeps the next graph
// waiting.
const flagEvery = 4

// launched records that one of the longest graphs of a program has been launched. If asked to, it reads the
// stop flag behind the graph, so that a chain whose rows have all stopped ends soon.
func (e *executor) launched(flag bool) error {
	if flag {
		stop := e.flight.slots[e.flight.at].mem
		if err := e.d.drv.MemcpyDtoHAsync(stop, e.d.current.step+device.StepStop, e.stream); err != nil {
			return err
		}
	}
	return e.flight.mark(e.stream)
}

// sendStep sets the position of the next token in the step block. It keeps the stop flag and the
// count.
func (e *executor) sendStep(step *table.Step) error {
	b, err := e.ring.next()
	if err != nil {
		return err
	}
	device.PutStep(b, step)
	return e.ring.send(e.d.current.step, b[:device.StepPlace], e.stream)
}
