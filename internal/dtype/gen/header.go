package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// kind is a type of the header: a declared one, or a family of MLX's types, which have
// the quants of a number of bits.
type kind struct {
	name string
	form *dtype.Form // nil of a family
	bits int
}

// kinds are the types with integer quants in the order of their values.
func kinds() (list []kind) {
	for _, f := range dtype.Forms() {
		if f.Type.Quantized() {
			list = append(list, kind{name: f.Name, form: f})
		}
	}
	for _, t := range dtype.Families() {
		if bits, _, _, ok := t.MLX(); ok {
			list = append(list, kind{name: fmt.Sprintf("MLX%d", bits), bits: bits})
		}
	}
	return list
}

// tile returns the form of a kind's tiles. Blocks of a family have as many tiles as a
// group, which kernels know at run time.
func (k kind) tile() dtype.TileForm {
	if k.form != nil {
		return k.form.Tile()
	}
	t := dtype.TileForm{Tiles: 1, Quants: 64, QuantsStep: 64 * k.bits, M: 32}
	switch {
	case k.bits == 8:
		t.Parts = 8
	case k.bits >= 4:
		t.Parts = 4
	default:
		t.Parts = 2
	}
	if k.bits > t.Parts {
		t.High = 64 * t.Parts
	}
	return t
}

// further returns the bits of a quant that lie apart from its lowest.
func (k kind) further() int {
	switch {
	case k.form == nil:
		return k.bits - k.tile().Parts
	case len(k.form.Quants) > 1:
		return k.form.Quants[1].Bits
	}
	return 0
}

// property is a function of the header: a value of each kind.
type property struct {
	name, doc string
	typ       string
	of        func(k kind) string
	other     string // the value of types that are not listed
}

// is makes a property that types have or have not.
func is(name, doc string, has func(k kind) bool) property {
	return property{name, doc, "bool", func(k kind) string { return fmt.Sprint(has(k)) }, "false"}
}

// number makes a property that is a number.
func number(name, doc string, of func(k kind) int) property {
	return property{name, doc, "uint", func(k kind) string { return fmt.Sprint(of(k)) }, "0"}
}

// declared returns a function of kinds that is 0 of families.
func declared(of func(f *dtype.Form) int) func(k kind) int {
	return func(k kind) int {
		if k.form == nil {
			return 0
		}
		return of(k.form)
	}
}

var properties = []property{
	is("has_levels", "reports whether quants are indices of a code book", func(k kind) bool { return k.form != nil && k.form.Levels != nil }),
	is("has_fives", "reports whether quants are nibbles and one more bit", func(k kind) bool { return k.tile().Parts == 4 && k.further() == 1 }),
	is("has_sixes", "reports whether quants are nibbles and two more bits", func(k kind) bool { return k.tile().Parts == 4 && k.further() == 2 }),
	is("has_threes", "reports whether quants are two bits and one more", func(k kind) bool { return k.tile().Parts == 2 && k.further() == 1 }),
	is("has_minimum", "reports whether blocks have a minimum", func(k kind) bool { return k.form == nil || k.form.Minimum }),
	is("has_e8m0", "reports whether the scale of a block is a power of two", func(k kind) bool { return k.form != nil && k.form.D == dtype.HalfE8M0 }),
	is("has_ue4m3", "reports whether each part of a block has a scale of UE4M3, and the block none", func(k kind) bool {
		return k.form != nil && k.form.ScaleType == dtype.HalfUE4M3
	}),
	is("has_scales", "reports whether parts of a block have scales", func(k kind) bool { return k.form != nil && k.form.Parts() > 0 }),
	is("has_halves", "reports whether columns 0 to 15 and 16 to 31 of a tile have scales of their own", func(k kind) bool {
		return k.form != nil && k.form.Sub == 16
	}),
	is("has_packed", "reports whether a byte of a tile is a scale and a minimum", func(k kind) bool { return k.form != nil && k.form.PackedTile }),
	number("scale_words", "returns the bytes of scales and minimums that a tile has for each row", declared(func(f *dtype.Form) int {
		if f.Parts() == 0 {
			return 0
		}
		if f.Sub == 16 || f.Minimum {
			return 2
		}
		return 1
	})),
	{"zero_of", "returns what is subtracted from quants. Bytes of MLX become signed first", "int", func(k kind) string {
		if k.form == nil {
			return map[bool]string{true: "-128", false: "0"}[k.bits == 8]
		}
		return fmt.Sprint(k.form.Zero)
	}, "0"},
	number("block_bytes", "returns the size of a block of a file", declared(func(f *dtype.Form) int { return f.Bytes })),
	number("block_elems", "returns the elements of a block of a file", declared(func(f *dtype.Form) int { return f.Elems })),
	number("quants_at", "returns where a block of a file has its quants, without further bits", declared(func(f *dtype.Form) int { return f.Quants[0].At })),
	number("high_at", "returns where it has their further bits", declared(func(f *dtype.Form) int {
		if len(f.Quants) == 1 {
			return 0
		}
		return f.Quants[1].At
	})),
	number("scale_at_of", "returns where it has its scale", declared(func(f *dtype.Form) int { return f.DAt })),
	number("minimum_at_of", "returns where it has its minimum", declared(func(f *dtype.Form) int { return f.MAt })),
	{"levels_of", "returns a code book of int8", "uint4", func(k kind) string {
		if k.form == nil || k.form.Levels == nil {
			return "uint4(0)"
		}
		var words [4]uint32
		for i, v := range k.form.Levels {
			words[i/4] |= uint32(uint8(v)) << (i % 4 * 8)
		}
		return fmt.Sprintf("uint4(0x%08x, 0x%08x, 0x%08x, 0x%08x)", words[0], words[1], words[2], words[3])
	}, "uint4(0)"},
	{"tile_form_of", "returns the form of a type's tiles", "tile_form", func(k kind) string {
		t := k.tile()
		return fmt.Sprintf("{%d, %d, %d, %d, %d, %d, %d, %d, %d, %d}", t.Parts, t.Tiles, t.Bytes, t.Quants, t.QuantsStep, t.High, t.Scales, t.ScalesStep, t.D, t.M)
	}, "{}"},
}

// header returns shaders/types.h.
func header() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "// %s\n", notice)
	b.WriteString(`
// What kernels know of the types of weights. Package dtype declares the types.
#ifndef PIANOLA_TYPES_H
#define PIANOLA_TYPES_H

#include "params.h"

// PIANOLA_QUANTISED is X of each type whose blocks have a scale, and of families of
// such types. What is a template of a family gets the type beside it.
`)
	var names []string
	for _, k := range kinds() {
		names = append(names, "X("+k.name+")")
	}
	fmt.Fprintf(&b, "#define PIANOLA_QUANTISED(X) \\\n    %s\n", strings.Join(names, " \\\n    "))
	b.WriteString(`
// tile_form is where a type's blocks of 16 rows have what. Offsets are from
// the block, in bytes. A block of a family is as many tiles as a group has.
struct tile_form {
    uint parts;       // runs of 64 bytes that a tile's quants are, without further bits
    uint tiles;       // of a block
    uint bytes;       // of a block
    uint quants;      // the first tile's
    uint quants_step; // from one tile to the next
    uint high;        // from a tile's quants to their further bits
    uint scales;      // the first tile's integer scales
    uint scales_step; // from one tile to the next
    uint d, m;        // float16, or E8M0
};
`)
	for _, p := range properties {
		writeProperty(&b, p)
	}
	b.WriteString("\n#endif\n")
	return b.Bytes()
}

// writeProperty writes a property's function: a case for each value that is not that of
// other types.
func writeProperty(b *bytes.Buffer, p property) {
	fmt.Fprintf(b, "\n// %s %s.\nstatic inline %s %s(uint type) {\n", p.name, p.doc, p.typ, p.name)
	var values []string
	cases := map[string][]string{}
	for _, k := range kinds() {
		v := p.of(k)
		if v == p.other {
			continue
		}
		if cases[v] == nil {
			values = append(values, v)
		}
		cases[v] = append(cases[v], "    case PIANOLA_WTYPE_"+k.name+":")
	}
	b.WriteString("    switch (type) {\n")
	for _, v := range values {
		fmt.Fprintf(b, "%s return %s;\n", strings.Join(cases[v], "\n"), v)
	}
	fmt.Fprintf(b, "    }\n    return %s;\n}\n", p.other)
}
