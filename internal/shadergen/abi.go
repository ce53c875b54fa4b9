package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
)

// Buffer indexes after the bindings.
const (
	bufferParams = 8
	bufferSecond = 9
	bufferStep   = 10
)

// checkABI compares the kernels of a file with their declarations.
func (s *source) checkABI() {
	s.lintConstants()
	for i := range s.kernels {
		k := &s.kernels[i]
		if k.maxThreads == 0 {
			s.fail(k.at, "kernel "+k.name+" has no max_total_threads_per_threadgroup")
		}
		s.checkBegin(k)
		bindings, err := bindingsOf(k)
		if err != nil {
			s.fail(k.at, err.Error())
			continue
		}
		s.checkBuffers(k, bindings)
		s.checkTGMem(k)
	}
}

// bindingsOf returns the bindings that a kernel must have: its declaration's,
// or those of a helper.
func bindingsOf(k *kernel) ([]decl.Binding, error) {
	if id, ok := decl.ByName(k.name); ok {
		d, _ := decl.Lookup(id)
		return d.Bindings, nil
	}
	if i := slices.IndexFunc(helpers, func(h helper) bool { return h.name == k.name }); i >= 0 {
		return helpers[i].bindings, nil
	}
	return nil, fmt.Errorf("kernel %s is not declared in internal/decl, nor is it a helper of internal/shadergen", k.name)
}

// checkBegin checks that a kernel waits for what it reads, and does nothing once
// the step's stop flag is set, before anything else. One that reads weights first
// says so, and calls begins where it has.
func (s *source) checkBegin(k *kernel) {
	if len(k.ahead) > 0 {
		return
	}
	want := []string{"if", "(", "!", "begins", "(", "step", ")", ")", "{", "return", ";", "}"}
	for i, w := range want {
		if i >= len(k.body) || k.body[i].s != w {
			s.fail(k.at, "kernel "+k.name+" must begin with: if (!begins(step)) { return; }, or a comment `reads ahead: BINDINGS` must say which it reads before")
			return
		}
	}
}

func (s *source) checkBuffers(k *kernel, bindings []decl.Binding) {
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
			s.fail(p.at, fmt.Sprintf("kernel %s: %s is declared %s: a binding that is only read is device const, others are not", k.name, p.name, b.Role))
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

// checkTGMem checks the threadgroup memory: one buffer of bytes, and a rule
// of how many that names what a command has.
func (s *source) checkTGMem(k *kernel) {
	i := slices.IndexFunc(k.params, func(p parameter) bool { return p.attr == "threadgroup" })
	if i < 0 {
		if k.tgmem != "" {
			s.fail(k.at, "kernel "+k.name+" has no threadgroup memory, but a rule for it")
		}
		return
	}
	if p := &k.params[i]; p.index != 0 || p.typ != "threadgroup uchar *" {
		s.fail(p.at, "kernel "+k.name+": threadgroup memory must be threadgroup uchar *, [[threadgroup(0)]]")
	}
	e, err := decl.ParseExpr(k.tgmem)
	if err != nil || k.tgmem == "" {
		s.fail(k.at, fmt.Sprintf("kernel %s: a comment `threadgroup memory: EXPRESSION bytes` must say how much it needs (%v)", k.name, err))
		return
	}
	id, ok := decl.ByName(k.name)
	if !ok {
		return
	}
	d, _ := decl.Lookup(id)
	for _, name := range e.Names() {
		_, _, param := d.Param(name)
		_, spec := d.Spec(name)
		if !param && !spec && name != "threads" {
			s.fail(k.at, fmt.Sprintf("kernel %s: threadgroup memory: %s is no parameter, no constant and not threads", k.name, name))
		}
	}
}
