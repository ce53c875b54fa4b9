package view

import (
	"slices"
	"sort"

	"github.com/pianola-engine/pianola/table"
)

// pair places the commands of the programs of two tables side by side. Commands with the same label
// share a row, as far as both tables have them in the same order.
func pair(a, b *table.Table) map[string][][2]int {
	pairs := map[string][][2]int{}
	for _, t := range []*table.Table{a, b} {
		for i := range t.Programs {
			name := t.Programs[i].Name
			if _, ok := pairs[name]; !ok {
				pairs[name] = pairCommands(a, b, commands(a, name), commands(b, name))
			}
		}
	}
	return pairs
}

// commands returns the indices of a program's commands that the table has.
func commands(t *table.Table, program string) []int {
	p, _, ok := t.Program(program)
	if !ok {
		return nil
	}
	var list []int
	for i := uint64(p.First); i < min(uint64(p.First)+uint64(p.Count), uint64(len(t.Cmds))); i++ {
		list = append(list, int(i))
	}
	return list
}

// pairCommands returns the rows of one program. A command that the other table has at another place
// gets a row of its own.
func pairCommands(a, b *table.Table, inA, inB []int) [][2]int {
	byLabel := map[string][]int{} // positions in inB, ascending
	for j, cmd := range inB {
		byLabel[b.Label(cmd)] = append(byLabel[b.Label(cmd)], j)
	}
	partner := make([]int, len(inA)) // position in inB, or -1
	for i, cmd := range inA {
		label := a.Label(cmd)
		partner[i] = -1
		if same := byLabel[label]; len(same) > 0 {
			partner[i], byLabel[label] = same[0], same[1:]
		}
	}
	keepAscending(partner)
	var rows [][2]int
	next := 0
	for i, j := range partner {
		if j < 0 {
			rows = append(rows, [2]int{inA[i], -1})
			continue
		}
		for ; next < j; next++ {
			rows = append(rows, [2]int{-1, inB[next]})
		}
		rows = append(rows, [2]int{inA[i], inB[j]})
		next = j + 1
	}
	for ; next < len(inB); next++ {
		rows = append(rows, [2]int{-1, inB[next]})
	}
	return rows
}

// keepAscending sets entries to -1 so that the others ascend and as many as possible remain.
func keepAscending(list []int) {
	var ends []int                     // ends[n] is the index of the smallest value that ends n+1 ascending ones
	previous := make([]int, len(list)) // index of the value before, or -1
	for i, v := range list {
		if v < 0 {
			continue
		}
		n := sort.Search(len(ends), func(n int) bool { return list[ends[n]] >= v })
		previous[i] = -1
		if n > 0 {
			previous[i] = ends[n-1]
		}
		ends = append(ends[:n], append([]int{i}, ends[min(n+1, len(ends)):]...)...)
	}
	var keep []int
	if len(ends) > 0 {
		for i := ends[len(ends)-1]; i >= 0; i = previous[i] {
			keep = append(keep, i)
		}
	}
	slices.Reverse(keep)
	for i := range list {
		if len(keep) > 0 && keep[0] == i {
			keep = keep[1:]
			continue
		}
		list[i] = -1
	}
}
