package main

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// cmdStruct is the layout of table.Cmd and its parts in C. TestLayout compares it with the layout in
// Go, by means of a C compiler. Names must not be keywords of Metal.
const cmdStruct = `
typedef struct pianola_binding {
    uint32_t slot;
    uint32_t reserved;
    uint64_t offset;
} pianola_binding;

typedef struct pianola_cmd {
    uint16_t kernel_id;
    uint16_t spec;
    uint8_t bindings;
    uint8_t param_size;
    uint8_t second_size;
    uint8_t patch;
    uint8_t patch_offset[2];
    uint8_t barrier;
    uint8_t reserved0;
    uint32_t threadgroup_memory;
    uint32_t grid[3];
    uint32_t threads[3];
    pianola_binding binding[8];
    uint8_t param[64];
    uint8_t second[16];
    uint8_t reserved1[8];
} pianola_cmd;

// The secondary bytes as kernels read them. index is the token index, the
// position or the first row, depending on the kernel.
typedef struct pianola_second {
    uint32_t index;
    uint32_t kv_len;
    uint32_t behind;
    uint32_t rows;
} pianola_second;

typedef struct pianola_step {
    uint64_t rng;
    uint32_t position;
    uint32_t kv_row;
    uint32_t kv_len;
    uint32_t token_index;
    uint32_t row;
    uint32_t rows;
    uint32_t stop;
    uint32_t count;
    uint32_t cancel;
    uint32_t drafted;
    uint32_t accepted;
    uint32_t trust; // trust in the next drafts, a speculate.Trust
    uint32_t until; // token index at which verification ends, or 0
    uint32_t sequence; // of a pooled table: the sequence that the rows belong to
} pianola_step;

// A row record. sequence.Row documents the fields.
typedef struct pianola_row {
    uint32_t sequence;
    uint32_t position;
    uint32_t kv_len;
    uint32_t token_index;
    uint32_t until;
    uint32_t count;
    uint32_t stop;
    uint32_t joined;
    uint32_t reserved[8];
} pianola_row;

// The beginning of a sampler slot. sampler.Settings documents the fields.
typedef struct pianola_sampler {
    uint32_t seed[2];
    float inv_temperature;
    uint32_t top_k;
    uint32_t top_p;
    float top_p_scale;
    float min_p_drop;
    float repetition;
    float presence;
    float frequency;
    uint32_t window;
    uint32_t biases;
    uint32_t ranked;
    uint32_t reserved[3];
} pianola_sampler;
`

func header(kernels []decl.Kernel) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "// %s\n", notice)
	b.WriteString(`
// Parameter structs, kernel ids and the layout of a command, for C and Metal.
#ifndef PIANOLA_PARAMS_H
#define PIANOLA_PARAMS_H

#ifdef __METAL_VERSION__
#include <metal_stdlib>
#define PIANOLA_ASSERT_SIZE(type, size)
#else
#include <stdint.h>
#define PIANOLA_ASSERT_SIZE(type, size) \
    typedef char type##_size[sizeof(type) == (size) ? 1 : -1]
#endif

`)
	for i, k := range kernels {
		fmt.Fprintf(&b, "#define PIANOLA_KERNEL_%s %d\n", strings.ToUpper(k.Name), i)
	}
	b.WriteString("\n// Numbers of function constants, and their named values.\n")
	for i, c := range decl.Constants {
		fmt.Fprintf(&b, "#define PIANOLA_FC_%s %d\n", strings.ToUpper(c.Name), i)
	}
	for _, c := range decl.Constants {
		for i, v := range c.Values {
			fmt.Fprintf(&b, "#define PIANOLA_%s_%s %d\n", strings.ToUpper(c.Name), strings.ToUpper(v), i)
		}
	}
	for _, t := range dtype.All() {
		fmt.Fprintf(&b, "#define PIANOLA_WTYPE_%s %d\n", strings.ToUpper(t.String()), t)
	}
	b.WriteString("\n// Families of types with the same quants, and the bits of a type that select its family.\n")
	for _, t := range dtype.Families() {
		name, _, _ := strings.Cut(t.String(), "_")
		fmt.Fprintf(&b, "#define PIANOLA_WTYPE_%s %d\n", name, t)
	}
	fmt.Fprintf(&b, "#define PIANOLA_FAMILIES %d\n#define PIANOLA_FAMILY_MASK %d\n", dtype.Families()[0], dtype.FamilyMask)
	for _, k := range kernels {
		fmt.Fprintf(&b, "\n// %s\ntypedef struct pianola_%s_params {\n", k.Doc, k.Name)
		for _, f := range k.Params {
			fmt.Fprintf(&b, "    %s %s; // %s\n", cType(f.Type), member(f.Name), f.Doc)
		}
		fmt.Fprintf(&b, "} pianola_%s_params;\nPIANOLA_ASSERT_SIZE(pianola_%s_params, %d);\n", k.Name, k.Name, 4*len(k.Params))
	}
	b.WriteString("\n// Bytes of threadgroup memory of kernels for which it depends on constants only.\n")
	for i := range kernels {
		b.WriteString(threadgroupMacro(&kernels[i]))
	}
	b.WriteString("\n// Kinds of patches.\n")
	for i, name := range decl.PatchKinds {
		fmt.Fprintf(&b, "#define PIANOLA_PATCH_%s %d\n", strings.ToUpper(name), i)
	}
	b.WriteString(cmdStruct)
	b.WriteString("PIANOLA_ASSERT_SIZE(pianola_cmd, 256);\nPIANOLA_ASSERT_SIZE(pianola_second, 16);\nPIANOLA_ASSERT_SIZE(pianola_step, 64);\nPIANOLA_ASSERT_SIZE(pianola_row, 64);\nPIANOLA_ASSERT_SIZE(pianola_sampler, 64);\n\n#endif\n")
	return b.Bytes(), nil
}

// member returns a parameter's name in C and Metal. A keyword of Metal gets an underscore.
func member(name string) string {
	switch name {
	case "half", "kernel", "device", "constant", "threadgroup", "thread", "vertex", "fragment":
		return name + "_"
	}
	return name
}

// constants writes the header that declares the function constants to Metal.
func constants([]decl.Kernel) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "// %s\n\n// The specialisation constants as function constants. Kernels use them\n// directly; functions that kernels call receive them as arguments.\n", notice)
	b.WriteString("#ifndef PIANOLA_CONSTANTS_H\n#define PIANOLA_CONSTANTS_H\n\n#include \"params.h\"\n\n")
	for _, c := range decl.Constants {
		name := strings.ToUpper(c.Name)
		fmt.Fprintf(&b, "constant uint %s [[function_constant(PIANOLA_FC_%s)]]; // %s\n", name, name, c.Doc)
	}
	b.WriteString("\n// The weight type, or its family if it has one.\nconstant uint WTYPE_FAMILY = WTYPE < PIANOLA_FAMILIES ? WTYPE : WTYPE & PIANOLA_FAMILY_MASK;\n")
	b.WriteString("\n#endif\n")
	return b.Bytes(), nil
}

func cType(t decl.Elem) string {
	if t == decl.F32 {
		return "float"
	}
	return "uint32_t"
}

var (
	comparison = regexp.MustCompile(`(\w+) ([!=]=) (\w+)`)
	lowercase  = regexp.MustCompile(`\b[a-z_][a-z0-9_]*\b`)
)

// threadgroupMacro returns the definition of a macro that computes a kernel's threadgroup memory from
// its specialisation constants, or "" if the memory depends on parameters, too.
func threadgroupMacro(k *decl.Kernel) string {
	if k.TGMem == "" {
		return ""
	}
	text := comparison.ReplaceAllStringFunc(k.TGMem, func(s string) string {
		m := comparison.FindStringSubmatch(s)
		i, ok := k.Spec(m[1])
		if !ok || len(k.Specs[i].Values) == 0 {
			return s
		}
		return fmt.Sprintf("%s %s PIANOLA_%s_%s", m[1], m[2], strings.ToUpper(m[1]), strings.ToUpper(m[3]))
	})
	var names []string
	for _, name := range lowercase.FindAllString(text, -1) {
		if _, ok := k.Spec(name); !ok {
			return ""
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	text = lowercase.ReplaceAllString(text, "($0)")
	return fmt.Sprintf("#define PIANOLA_TGMEM_%s(%s) (%s)\n", strings.ToUpper(k.Name), strings.Join(names, ", "), text)
}
