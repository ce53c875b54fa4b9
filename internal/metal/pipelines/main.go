// Pipelines lists what the GPU reports about the kernels of models: for each kernel with its
// constants, how many threads the compiler allows in a threadgroup, and the threadgroup memory.
// It needs a GPU with Metal, but no weights: a model is a file, or a shape and a type of
// "pianola synth --list".
//
//	go run ./internal/metal/pipelines testdata/gopher-q8_0.gguf llama-3.1-8b:Q4_0
//
// With -chip it needs no GPU: it lists the threads, the threadgroup memory and the registers of each
// kernel, and how many threads a core of the chip can hold.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/internal/metal/kernels"
	"github.com/pianola-engine/pianola/internal/synth"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: pipelines MODEL|SHAPE:TYPE ...")
		flag.PrintDefaults()
	}
	chipName := flag.String("chip", "", "list what the kernels use on this `chip`, without a GPU")
	entries := flag.Bool("instances", false, "with -chip, list the kernels' constants, for internal/shadergen")
	flag.Parse()
	if flag.NArg() == 0 || *entries && *chipName == "" {
		flag.Usage()
		os.Exit(2)
	}
	k, err := kernels.Embedded()
	switch {
	case err != nil:
	case *chipName != "":
		err = predict(os.Stdout, k, *chipName, *entries, flag.Args())
	default:
		err = list(os.Stdout, k, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pipelines:", err)
		os.Exit(1)
	}
}

// predict writes what the kernels of models use on a chip, or their instances.
func predict(w io.Writer, k *metal.Kernels, chipName string, entries bool, models []string) error {
	c, err := chip.Lookup(chipName)
	if err != nil {
		return err
	}
	for _, name := range models {
		if entries {
			err = instances(w, chipName, name)
		} else {
			fmt.Fprintf(w, "%s on %s\n", name, chipName)
			err = occupy(w, k, c, name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// list writes the GPU's properties and a table of each model's pipelines.
func list(w io.Writer, k *metal.Kernels, models []string) error {
	drv, err := driver.Open()
	if err != nil {
		return err
	}
	defer drv.Close()
	p := drv.Properties()
	c, note, err := chip.ForGPU(chip.GPU{Name: p.Name, Family: p.Family, Cores: p.Cores})
	if err != nil {
		return err
	}
	from, library, err := open(drv, k)
	if err != nil {
		return err
	}
	defer drv.Release(library)
	fmt.Fprintf(w, "%s, %s, %d cores, %s\nchip data: %s %s\nthreadgroups: %d threads, %d bytes; largest buffer %d MiB; working set %d MiB; kernels from %s\n",
		p.Name, metal.Detail(p), p.Cores, p.OS, c.Name, note, p.MaxThreads, p.ThreadgroupMemory, p.MaxBuffer>>20, p.WorkingSet>>20, from)
	for _, name := range models {
		t, err := compile(name, c.Name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(w, "\n%s\n", name)
		if err := write(w, measure(drv, library, k, t)); err != nil {
			return err
		}
	}
	return nil
}

// open returns the kernels' library and where it is from.
func open(drv driver.Device, k *metal.Kernels) (from string, l driver.Library, err error) {
	if k.Data != nil {
		if l, err = drv.LibraryData(k.Data); err == nil {
			return "the compiled library", l, nil
		}
	}
	text, err2 := k.Source()
	if err2 != nil {
		return "", 0, err2
	}
	from = "source"
	if err != nil {
		from = fmt.Sprintf("source, because the compiled library does not load: %v", err)
	}
	l, err = drv.LibrarySource(text)
	return from, l, err
}

// compile returns the table of a model file, or of a shape and a type such as llama-3.1-8b:Q4_0.
func compile(name, chipName string) (*table.Table, error) {
	shapeName, quant, _ := strings.Cut(name, ":")
	shape, ok := synth.FindShape(shapeName)
	if !ok {
		h, err := pianola.OpenHeader(name, nil)
		if err != nil {
			return nil, err
		}
		return h.Compile(chipName, pianola.TableOptions{})
	}
	dir, err := synth.NewDirectory(shape, quant)
	if err != nil {
		return nil, err
	}
	cfg, err := arch.Builtin().Read(dir)
	if err != nil {
		return nil, err
	}
	c, err := chip.Lookup(chipName)
	if err != nil {
		return nil, err
	}
	return compiler.Compile(compiler.Input{Config: cfg, Tensors: dir, Chip: c})
}

// statistic describes a pipeline.
type statistic struct {
	kernel   string
	commands int    // commands of the table that use it
	launched int    // threads of a threadgroup
	dynamic  uint64 // bytes of threadgroup memory that are set at launch, at most
	made     driver.Pipeline
	free     int // threads that the registers allow if the pipeline is not made for a number of threads
	err      error
}

// measure makes a pipeline for each kernel, specialisation and number of threads of a table. A pipeline that cannot
// be made has an error and does not stop the others.
func measure(drv driver.Device, library driver.Library, k *metal.Kernels, t *table.Table) []statistic {
	var all []statistic
	at := map[string]int{}
	for i := range t.Programs {
		p := &t.Programs[i]
		for j := range t.ProgramCmds(p) {
			c := &t.Cmds[int(p.First)+j]
			declared, ok := decl.Lookup(c.Kernel)
			if !ok {
				continue
			}
			values := t.Specs[c.Spec].Values[:len(declared.Specs)]
			s := statistic{kernel: declared.Name + constants(declared, values), launched: launched(c)}
			key := fmt.Sprint(s.kernel, s.launched)
			n, seen := at[key]
			if !seen {
				n = len(all)
				at[key] = n
				s.made, s.free, s.err = pipeline(drv, library, k, declared.Name, values, s.launched)
				all = append(all, s)
			}
			s = all[n]
			s.commands++
			memory, err := dynamic(t, p, c, k)
			s.dynamic, s.err = max(s.dynamic, memory), errors.Join(s.err, err)
			all[n] = s
		}
	}
	slices.SortStableFunc(all, func(a, b statistic) int { return strings.Compare(a.kernel, b.kernel) })
	return all
}

// pipeline makes a pipeline as the device does, and one for any number of threads.
func pipeline(drv driver.Device, library driver.Library, k *metal.Kernels, name string, values []uint32, threads int) (made driver.Pipeline, free int, err error) {
	i := slices.IndexFunc(k.List, func(k metal.Kernel) bool { return k.Name == name })
	if i < 0 {
		return made, 0, fmt.Errorf("the library has no kernel %s", name)
	}
	var specialised []driver.Constant
	for j, index := range k.List[i].Constants {
		specialised = append(specialised, driver.Constant{Index: index, Value: values[j]})
	}
	if made, err = drv.Pipeline(library, 0, name, specialised, threads, false); err != nil {
		return made, 0, err
	}
	drv.Release(made.Handle)
	other, err := drv.Pipeline(library, 0, name, specialised, 0, false)
	if err != nil {
		return made, 0, err
	}
	drv.Release(other.Handle)
	return made, other.MaxThreads, nil
}

// dynamic returns the threadgroup memory in bytes that a command sets.
func dynamic(t *table.Table, p *table.Program, c *table.Cmd, k *metal.Kernels) (uint64, error) {
	declared, _ := decl.Lookup(c.Kernel)
	i := slices.IndexFunc(k.List, func(k metal.Kernel) bool { return k.Name == declared.Name })
	if i < 0 || k.List[i].TGMem == nil {
		return uint64(c.TGMem), nil
	}
	env, err := t.NewEnv(c, p)
	if err != nil {
		return 0, err
	}
	n, err := k.List[i].TGMem(env, launched(c))
	return max(uint64(c.TGMem), n), err
}

// constants returns the constants of a kernel as dumps show them.
func constants(k *decl.Kernel, values []uint32) string {
	var parts []string
	for i, c := range k.Specs {
		v := fmt.Sprint(values[i])
		switch {
		case c.Name == "wtype":
			v = dtype.Type(values[i]).String()
		case int(values[i]) < len(c.Values):
			v = c.Values[values[i]]
		}
		parts = append(parts, c.Name+"="+v)
	}
	if parts == nil {
		return ""
	}
	return "{" + strings.Join(parts, " ") + "}"
}

func write(w io.Writer, all []statistic) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "commands\tlaunched\tlimit\tfree limit\twidth\tstatic\tdynamic\t  kernel")
	for _, s := range all {
		if s.err != nil {
			fmt.Fprintf(tw, "%d\t%d\t-\t-\t-\t-\t%d\t  %s: %s\n", s.commands, s.launched, s.dynamic, s.kernel, strings.ReplaceAll(s.err.Error(), "\n", " "))
			continue
		}
		fmt.Fprintf(tw, "%d\t%d\t%d\t%d\t%d\t%d\t%d\t  %s\n", s.commands, s.launched, s.made.MaxThreads, s.free, s.made.SIMDWidth, s.made.ThreadgroupMemory, s.dynamic, s.kernel)
	}
	return tw.Flush()
}
