package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
)

// Indexes of the buffers that follow a kernel's bindings.
const (
	bufferParams = 8
	bufferSecond = 9
	bufferStep   = 10
)

// checkABI compares the kernels of a file with their declarations in internal/decl.
func (s *source) checkABI() {
	s.lintConstants()
	for i := range s.kernels {
		k := &s.kernels[i]
		if k.maxThreads == 0 {
			s.fail(k.at, "kernel "+k.name+" has no max_total_threads_per_threadgroup")
		}
		s.checkBegin(k)
		d, ok := decl.Declared(k.name)
		if !ok {
			s.fail(k.at, fmt.Sprintf("kernel %s is not declared in internal/decl", k.name))
			continue
		}
		if !slices.Equal(k.settled, d.Settled) {
			s.fail(k.at, fmt.Sprintf("kernel %s reads %q early if they are settled, but is declared to read %q: the comment is `settled: BINDINGS`", k.name, k.settled, d.Settled))
		}
		s.checkBuffers(k, d)
		s.checkTGMem(k, d)
	}
}

// checkBegin checks that a kernel begins by waiting for its inputs and returns if the step's
// stop flag is set. Where that flag is kept as begun, other loads may stand before the return. A
// kernel that reads weights, settled bindings or the records of caches before, or requests weights for the L2 cache, must
// declare that in its comment and call begins or wait_inputs after those reads.
func (s *source) checkBegin(k *kernel) {
	if len(k.ahead) > 0 || k.requests != "" || len(k.settled) > 0 {
		return
	}
	body := make([]string, len(k.body))
	for i, token := range k.body {
		body[i] = token.s
	}
	text := strings.Join(body, " ") + " "
	if strings.HasPrefix(text, "if ( ! begins ( step ) ) { return ; } ") {
		return
	}
	// The scanner has a token for each character of an operator.
	if rest, ok := strings.CutPrefix(text, "const bool begun = begins ( step ) ; "); ok && (strings.Contains(rest, "! begun ") || strings.Contains(rest, "begun & & ")) {
		return
	}
	s.fail(k.at, "kernel "+k.name+" must begin with: if (!begins(step)) { return; } or: const bool begun = begins(step); and use begun, or have a comment `reads ahead: BINDINGS`, `settled: BINDINGS`, `requests ahead: BINDINGS` or `finds ahead: BINDINGS` that lists the bindings it reads or requests, or whose caches it finds, before")
}

func (s *source) checkBuffers(k *kernel, d *decl.Kernel) {
	bindings := d.Bindings
	if len(d.Matrices) > 0 {
		bindings = append(slices.Clip(bindings), decl.Binding{Name: "maps"}) // the descriptors
	}
	buffer := func(n int) *parameter {
		i := slices.IndexFunc(k.params, func(p parameter) bool { return p.attr == "buffer" && p.index == n })
		if i < 0 {
			return nil
		}
		return &k.params[i]
	}
	for i, b := range bindings {
		p := buffer(i)
		switch {
		case p == nil:
			s.fail(k.at, fmt.Sprintf("kernel %s: binding %d (%s) is missing", k.name, i, b.Name))
		case p.name != b.Name:
			s.fail(p.at, fmt.Sprintf("kernel %s: binding %d is %s, not %s", k.name, i, b.Name, p.name))
		case !strings.HasPrefix(p.typ, "device ") || !strings.HasSuffix(p.typ, "*"):
			s.fail(p.at, fmt.Sprintf("kernel %s: %s must be a device pointer", k.name, p.name))
		case p.writable() != b.Role.Writes():
			s.fail(p.at, fmt.Sprintf("kernel %s: %s is declared %s: a binding that is only read must be device const, a written one must not", k.name, p.name, b.Role))
		}
	}
	for _, f := range []struct {
		index int
		typ   string
	}{
		{bufferParams, "constant pianola_" + k.name + "_params &"},
		{bufferSecond, "constant pianola_second &"},
		{bufferStep, "device pianola_step *"},
	} {
		if p := buffer(f.index); p == nil || p.typ != f.typ {
			s.fail(k.at, fmt.Sprintf("kernel %s: buffer %d must be %s", k.name, f.index, f.typ))
		}
	}
	for i := range k.params {
		p := &k.params[i]
		if p.attr == "buffer" && p.index >= len(bindings) && (p.index < bufferParams || p.index > bufferStep) {
			s.fail(p.at, fmt.Sprintf("kernel %s: buffer %d is not declared", k.name, p.index))
		}
	}
}

// checkTGMem checks that a kernel has exactly one buffer of threadgroup memory if its
// declaration gives a size for it, and none otherwise.
func (s *source) checkTGMem(k *kernel, d *decl.Kernel) {
	i := slices.IndexFunc(k.params, func(p parameter) bool { return p.attr == "threadgroup" })
	switch {
	case i < 0 && d.TGMem != "":
		s.fail(k.at, fmt.Sprintf("kernel %s has no threadgroup memory, its declaration has %s bytes of it", k.name, d.TGMem))
	case i >= 0 && d.TGMem == "":
		s.fail(k.params[i].at, "kernel "+k.name+": its declaration has no threadgroup memory")
	case i >= 0 && (k.params[i].index != 0 || k.params[i].typ != "threadgroup uchar *"):
		s.fail(k.params[i].at, "kernel "+k.name+": threadgroup memory must be threadgroup uchar *, [[threadgroup(0)]]")
	}
}
