package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/shaders"
)

// constantsHeader returns the content that replaces constants.h. The specialisation constants
// become members of each kernel's last parameter, and the entries set their values. After
// inlining, the compiler folds the values that an entry fixes.
func constantsHeader() string {
	var b strings.Builder
	b.WriteString("#pragma once\n#include \"params.h\"\nstruct pianola_constants {\n")
	for _, c := range decl.Constants {
		fmt.Fprintf(&b, "    uint %s;\n", c.Name)
	}
	b.WriteString("    uint " + family + ";\n};\n")
	fmt.Fprintf(&b, "#define %s (uint(pianola_fc.%s))\n", strings.ToUpper(family), family)
	for _, c := range decl.Constants {
		fmt.Fprintf(&b, "#define %s (uint(pianola_fc.%s))\n", strings.ToUpper(c.Name), c.Name)
	}
	return b.String()
}

// The constant family is derived from the constant wtype: it is the family of the weight type,
// if the type has one. An entry may fix the family and leave the rest of wtype to run time.
const (
	family = "wtype_family"
	wtype  = "wtype"
)

// familyOf returns a C expression for the family of the type t.
func familyOf(t string) string {
	return fmt.Sprintf("(%s < PIANOLA_FAMILIES ? %s : %s & PIANOLA_FAMILY_MASK)", t, t, t)
}

// constantsStruct declares fc, the constants of an entry. Fixed constants are constant
// expressions, so branches that they exclude are never compiled.
func constantsStruct(kernel string, fixed []shaders.Fixed) string {
	var b strings.Builder
	var values []string
	b.WriteString("    struct constants {\n")
	for _, c := range decl.Constants {
		i := slices.IndexFunc(fixed, func(f shaders.Fixed) bool { return f.Name == c.Name })
		if c.Name == wtype && i >= 0 {
			fmt.Fprintf(&b, "        enum : uint { %s = %s };\n", family, familyOf(fmt.Sprintf("%du", fixed[i].Value)))
		}
		if i >= 0 && fixed[i].Mask == 0 {
			fmt.Fprintf(&b, "        enum : uint { %s = %du };\n", c.Name, fixed[i].Value)
			continue
		}
		fmt.Fprintf(&b, "        uint %s;\n", c.Name)
		v := "0u"
		if i := slices.IndexFunc(constantsOf(kernel), func(o decl.Constant) bool { return o.Name == c.Name }); i >= 0 {
			v = fmt.Sprintf("specs.values[%d]", i)
		}
		values = append(values, v)
	}
	if !slices.ContainsFunc(fixed, func(f shaders.Fixed) bool { return f.Name == wtype }) {
		fmt.Fprintf(&b, "        uint %s;\n", family)
		v := "0u"
		if i := slices.IndexFunc(constantsOf(kernel), func(o decl.Constant) bool { return o.Name == wtype }); i >= 0 {
			v = familyOf(fmt.Sprintf("specs.values[%d]", i))
		}
		values = append(values, v)
	}
	fmt.Fprintf(&b, "    };\n    const constants fc = {%s};\n", strings.Join(values, ", "))
	return b.String()
}

// constantValues returns the initializer of a pianola_constants: the fixed values, elements of
// the array specs, and 0 for constants that the kernel does not have.
func constantValues(kernel, specs string, fixed []shaders.Fixed) string {
	own := constantsOf(kernel)
	var values []string
	for _, c := range decl.Constants {
		v := "0u"
		if i := slices.IndexFunc(own, func(o decl.Constant) bool { return o.Name == c.Name }); i >= 0 {
			v = fmt.Sprintf("%s[%d]", specs, i)
		}
		if i := slices.IndexFunc(fixed, func(f shaders.Fixed) bool { return f.Name == c.Name }); i >= 0 {
			v = fmt.Sprintf("%du", fixed[i].Value)
		}
		values = append(values, v)
	}
	v := "0u"
	if i := slices.IndexFunc(own, func(o decl.Constant) bool { return o.Name == wtype }); i >= 0 {
		v = familyOf(fmt.Sprintf("%s[%d]", specs, i))
	}
	values = append(values, v)
	return "{" + strings.Join(values, ", ") + "}"
}

// positionArgument converts a position to the type of a parameter.
func positionArgument(p *parameter, value string, scalar bool) string {
	m := vectorPosition.FindStringSubmatch(p.typ)
	switch {
	case scalar || m == nil:
		return fmt.Sprintf("(%s)%s", p.typ, value)
	case m[2] == "":
		return fmt.Sprintf("(%s)%s.x", p.typ, value)
	case m[2] == "2":
		return fmt.Sprintf("%s(%s.xy)", p.typ, value)
	}
	return fmt.Sprintf("%s(%s)", p.typ, value)
}

// arguments returns the arguments of a call. what returns the target's expression for each
// parameter that is not a position.
func arguments(k *kernel, positionOn func(*position) string, what func(*parameter) string) string {
	var args []string
	for i := range k.params {
		p := &k.params[i]
		if at, ok := positionOf(p.attr); ok {
			args = append(args, positionArgument(p, positionOn(at), at.scalar))
			continue
		}
		args = append(args, what(p))
	}
	return strings.Join(append(args, "fc"), ", ")
}

// include returns the lines that include a source.
func (s *source) include() string {
	return fmt.Sprintf("#include \"constants.h\"\n#include %q\n", s.base())
}

// ptxSource returns the text that is compiled to PTX: the file, followed by an entry for each
// instance of each kernel. All entries have the same parameters: 8 pointers, 64 bytes of
// parameters, the secondary parameters, the step block and 8 specialisation values. Only
// bindings that may be read ahead are __restrict, because the compiler may move loads through
// such pointers to the start of the kernel.
func (s *source) ptxSource() (string, error) { return s.ptxEntries(s.include(), "", entries) }

// ptxEntries returns a text with the entries of the source's kernels. include are the lines that
// include the kernels, and begin is the first statement of each entry.
func (s *source) ptxEntries(include, begin string, entries func(kernel string) ([]shaders.Entry, error)) (string, error) {
	var b strings.Builder
	b.WriteString(include + "#include <metal/entry.h>\n")
	for i := range s.kernels {
		k := &s.kernels[i]
		list, err := entries(k.name)
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(k.params, func(p parameter) bool { return p.attr == "buffer" && p.index == bufferParams }) {
			fmt.Fprintf(&b, "static_assert(sizeof(pianola_%s_params) <= sizeof(pianola_param_bytes), \"%s: parameters of more than %d bytes\");\n", k.name, k.name, decl.ParamBytes)
		}
		var params []string
		for n := range decl.MaxBindings {
			typ := "device uchar *"
			if j := slices.IndexFunc(k.params, func(p parameter) bool { return p.attr == "buffer" && p.index == n }); j >= 0 {
				typ = k.params[j].typ
				if !k.params[j].writable() && slices.Contains(k.ahead, k.params[j].name) {
					typ += "__restrict "
				}
			}
			params = append(params, fmt.Sprintf("%sb%d", typ, n))
		}
		params = append(params, "const pianola_param_bytes params", "device const pianola_second *second", "device pianola_step *step", "const pianola_spec_values specs")
		call := arguments(k, func(at *position) string { return at.ptx }, func(p *parameter) string {
			switch {
			case p.attr == "threadgroup":
				return fmt.Sprintf("(%s)pianola_tg", p.typ)
			case p.index == bufferParams:
				return fmt.Sprintf("(%s)params", p.typ)
			case p.index == bufferSecond:
				return fmt.Sprintf("(%s)*second", p.typ)
			case p.index == bufferStep:
				return "step"
			}
			return fmt.Sprintf("b%d", p.index)
		})
		for _, e := range list {
			signature := fmt.Sprintf("entry_%s(%s)", e.Name, strings.Join(params, ", "))
			fmt.Fprintf(&b, "extern \"C\" __attribute__((nvptx_kernel)) void %s __asm__(%q);\nvoid %s {\n", signature, e.Name, signature)
			b.WriteString(begin + constantsStruct(k.name, e.Fixed))
			fmt.Fprintf(&b, "    ::%s(%s);\n}\n", k.name, call)
		}
	}
	return b.String(), nil
}

// hostSource returns the text that is compiled for the emulator. include are the lines that include
// the kernels.
func (s *source) hostSource(include string) string {
	var b strings.Builder
	b.WriteString(include)
	for i := range s.kernels {
		k := &s.kernels[i]
		call := arguments(k, func(at *position) string { return at.host }, func(p *parameter) string {
			value := fmt.Sprintf("a->buffers[%d]", p.index)
			switch {
			case p.attr == "threadgroup":
				value = "a->tg"
			case p.index == bufferParams:
				value = "a->params"
			case p.index == bufferSecond:
				value = "a->second"
			case p.index == bufferStep:
				value = "a->step"
			}
			if typ, ok := strings.CutSuffix(p.typ, "&"); ok {
				return fmt.Sprintf("*(%s*)%s", typ, value)
			}
			return fmt.Sprintf("(%s)%s", p.typ, value)
		})
		fmt.Fprintf(&b, "extern \"C\" void pianola_run_%s(const pianola_arguments *a, const pianola_position *at) {\n", k.name)
		fmt.Fprintf(&b, "    const pianola_constants fc = %s;\n    ::%s(%s);\n}\n", constantValues(k.name, "a->specs", nil), k.name, call)
	}
	return b.String()
}

// hostList returns the emulator's list of all kernels.
func hostList(files []*source) (string, error) {
	var b strings.Builder
	b.WriteString("#include \"emulator.h\"\nextern \"C\" {\n")
	for _, s := range files {
		for _, k := range s.kernels {
			fmt.Fprintf(&b, "void pianola_run_%s(const pianola_arguments *, const pianola_position *);\n", k.name)
		}
	}
	b.WriteString("extern const pianola_kernel pianola_kernels[] = {\n")
	for _, s := range files {
		for _, k := range s.kernels {
			most := cmp.Or(k.maxThreads, 1024)
			list, err := entries(k.name)
			if err != nil {
				return "", err
			}
			for _, e := range list {
				most = max(most, threadsOf(e.Name, most))
			}
			fmt.Fprintf(&b, "    {%q, %d, pianola_run_%s},\n", k.name, most, k.name)
		}
	}
	b.WriteString("    {nullptr, 0, nullptr},\n};\n}\n")
	return b.String(), nil
}
