package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// What a core of an Apple 7 or Apple 8 GPU holds, by third-party measurements
// (github.com/philipturner/metal-benchmarks): bytes of registers and of threadgroup memory, and
// threads. Cores of later families take registers and threadgroup memory from one larger memory,
// which they share with the caches; the same figures are then a lower bound.
const (
	coreRegisters = 208 << 10
	coreMemory    = 60 << 10
	coreThreads   = 3072
)

// registersText has a line for each specialised kernel: its name as symbol returns it, the registers
// of a thread, and the bytes that it spills. NVIDIA's assembler reports them for the PTX of Apple's
// configuration. docs/METAL.md has the commands.
//
//go:embed registers.txt
var registersText []byte

// use is what a thread of a kernel uses.
type use struct{ registers, spilled int }

// uses returns the uses of registers.txt by symbol.
func uses(text []byte) (map[string]use, error) {
	all := map[string]use{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var symbol string
		var u use
		if n, err := fmt.Sscan(lines.Text(), &symbol, &u.registers, &u.spilled); n != 3 || u.registers < 1 || u.spilled < 0 {
			return nil, fmt.Errorf("registers.txt: %q: %w", lines.Text(), err)
		}
		all[symbol] = u
	}
	return all, nil
}

// symbol returns the name of a specialised kernel in PTX.
func symbol(k *decl.Kernel, values []uint32) string {
	if len(k.Specs) == 0 {
		return k.Name
	}
	var parts []string
	for i, c := range k.Specs {
		if values[i] != 0 || !slices.Contains([]string{"sequences", "segments", "division", "single", "halves"}, c.Name) { // those are 0 in ordinary tables
			parts = append(parts, fmt.Sprint(c.Name, values[i]))
		}
	}
	if len(parts) == 0 {
		return k.Name
	}
	return k.Name + "__" + strings.Join(parts, "_")
}

// resident returns how many threads of a kernel fit into a core at once, in whole threadgroups of
// the given threads and bytes, and what limits them. registers is the number of 4-byte registers of
// a thread, or 0 if it is unknown.
func resident(threads int, memory uint64, registers int) (n int, limit string) {
	groups, limit := coreThreads/threads, "threads"
	if memory > 0 && int(coreMemory/memory) < groups {
		groups, limit = int(coreMemory/memory), "threadgroup memory"
	}
	if registers > 0 && coreRegisters/(4*registers*threads) < groups {
		groups, limit = coreRegisters/(4*registers*threads), "registers"
	}
	return groups * threads, limit
}

// kernelUse is a specialised kernel of a table with the threads and the threadgroup memory of its
// launches.
type kernelUse struct {
	kernel, symbol string
	commands       int
	threads        int
	memory         uint64
}

// kernelUses returns the specialised kernels of a table in alphabetical order.
func kernelUses(t *table.Table, k *metal.Kernels) ([]kernelUse, error) {
	var all []kernelUse
	for i := range t.Programs {
		p := &t.Programs[i]
		for j := range t.ProgramCmds(p) {
			c := &t.Cmds[int(p.First)+j]
			declared, ok := decl.Lookup(c.Kernel)
			if !ok {
				return nil, fmt.Errorf("kernel %d is unknown", c.Kernel)
			}
			memory, err := dynamic(t, p, c, k)
			if err != nil {
				return nil, err
			}
			values := t.Specs[c.Spec].Values[:len(declared.Specs)]
			u := kernelUse{declared.Name + constants(declared, values), symbol(declared, values), 0, launched(c), memory}
			n := slices.IndexFunc(all, func(o kernelUse) bool { return o.symbol == u.symbol && o.threads == u.threads })
			if n < 0 {
				n = len(all)
				all = append(all, u)
			}
			all[n].commands++
			all[n].memory = max(all[n].memory, memory)
		}
	}
	slices.SortStableFunc(all, func(a, b kernelUse) int { return strings.Compare(a.kernel, b.kernel) })
	return all, nil
}

// launched returns the number of threads of a command's threadgroups.
func launched(c *table.Cmd) int { return int(c.Threadgroup[0] * c.Threadgroup[1] * c.Threadgroup[2]) }

// occupy writes what each kernel of a model's table uses on a chip, and how many of its threads a core
// holds. It needs no GPU.
func occupy(w io.Writer, k *metal.Kernels, c *chip.Chip, name string) error {
	t, err := compile(name, c.Name)
	if err != nil {
		return err
	}
	all, err := kernelUses(t, k)
	if err != nil {
		return err
	}
	known, err := uses(registersText)
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "commands\tthreads\tmemory\tregisters\tspilled\tresident\tof a core\tlimit\t  kernel")
	for _, u := range all {
		of := known[u.symbol]
		n, limit := resident(u.threads, u.memory, of.registers)
		registers := "-"
		if of.registers > 0 {
			registers = fmt.Sprint(of.registers)
		}
		fmt.Fprintf(tw, "%d\t%d\t%d\t%s\t%d\t%d\t%.0f %%\t%s\t  %s\n", u.commands, u.threads, u.memory, registers, of.spilled, n, 100*float64(n)/coreThreads, limit, u.kernel)
	}
	return tw.Flush()
}

// instances writes the symbols of a model's specialised kernels, with their constants, in the form
// that the option -instances of internal/shadergen reads.
func instances(w io.Writer, chipName, name string) error {
	t, err := compile(name, chipName)
	if err != nil {
		return err
	}
	for i := range t.Specs {
		k, ok := decl.Lookup(t.Specs[i].Kernel)
		if !ok {
			return fmt.Errorf("kernel %d is unknown", t.Specs[i].Kernel)
		}
		fmt.Fprint(w, k.Name)
		for j, c := range k.Specs {
			fmt.Fprintf(w, " %s=%d", c.Name, t.Specs[i].Values[j])
		}
		fmt.Fprintln(w)
	}
	return nil
}
