package compiler

import (
	"slices"

	"github.com/pianola-engine/pianola/table"
)

// arenaAlign is the alignment of activations in bytes. It is a multiple of a cache line and of the
// alignment that GPUs require of buffer offsets.
const arenaAlign = 256

// interval is the lifetime of a value: the indices, within a group of programs, of the first and the
// last node that reads or writes it.
type interval struct {
	v           *value
	first, last int
}

// groups returns the groups of programs that share activations. Each program that decodes is a group
// of its own. Prefill and the programs that read the chunk it computed form one group. Groups
// overlap in the arena, because a group needs no activations of another.
func (s *state) groups() [][]*program {
	var alone [][]*program
	var chunked []*program
	for _, p := range s.programs {
		if p.flags.Has(table.FlagChooses) && !p.flags.Has(table.FlagReadsRow) {
			alone = append(alone, []*program{p})
		} else {
			chunked = append(chunked, p)
		}
	}
	return append(alone, chunked)
}

// lifetimes returns the intervals of a group's values in the arena, ordered by first node.
func lifetimes(group []*program) []interval {
	var list []interval
	at := map[*value]int{}
	i := 0
	for _, p := range group {
		for _, n := range p.nodes {
			for _, o := range slices.Concat(n.in, n.out) {
				if o.v.place != inArena {
					continue
				}
				j, ok := at[o.v]
				if !ok {
					j = len(list)
					at[o.v] = j
					list = append(list, interval{v: o.v, first: i})
				}
				list[j].last = i
			}
			i++
		}
	}
	return list
}

// planArena gives each value the lowest offset at which it overlaps no value that is alive at the
// same time. A value counts as alive for one node after its last, so that the next command does not
// overwrite an input of the previous one, which would require a barrier between them.
func (s *state) planArena() error {
	size := uint64(0)
	for _, g := range s.groups() {
		var live []interval
		for _, iv := range lifetimes(g) {
			live = slices.DeleteFunc(live, func(l interval) bool { return l.last+1 < iv.first })
			slices.SortFunc(live, func(a, b interval) int {
				switch {
				case a.v.offset < b.v.offset:
					return -1
				case a.v.offset > b.v.offset:
					return 1
				}
				return 0
			})
			at := uint64(0)
			for _, l := range live {
				if at+iv.v.bytes() <= l.v.offset {
					break
				}
				at = max(at, align(l.v.offset+l.v.bytes()))
			}
			iv.v.offset = at
			live = append(live, iv)
			size = max(size, align(at+iv.v.bytes()))
		}
	}
	scratch := s.slot("scratch", table.SlotScratch, table.ScopeExecutor, size)
	for _, p := range s.programs {
		for _, n := range p.nodes {
			for _, o := range slices.Concat(n.in, n.out) {
				if o.v.place == inArena {
					o.v.slot = scratch.slot
				}
			}
		}
	}
	return nil
}

func align(n uint64) uint64 { return (n + arenaAlign - 1) / arenaAlign * arenaAlign }

// regions records the values in the arena during each program, with their names, for dumps.
func (s *state) regions() {
	base := 0
	for pi, p := range s.programs {
		for _, iv := range lifetimes([]*program{p}) {
			s.t.Regions = append(s.t.Regions, table.Region{
				Name: iv.v.name, Slot: iv.v.slot, Offset: iv.v.offset, Size: iv.v.bytes(),
				Program: uint32(pi), First: uint32(base + iv.first), Last: uint32(base + iv.last),
			})
		}
		base += len(p.nodes)
	}
}
