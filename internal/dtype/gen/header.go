package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// kind is one of the header's types: a declared type, or a family of MLX's types with the
// same number of bits.
type kind struct {
	name string
	form *dtype.Form // nil for a family
	bits int
}

// kinds returns the quantised types in the order of their values, and then the families.
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

// xMacro writes a macro that expands X for each kind that is in the list. The comment begins with its name.
func xMacro(b *bytes.Buffer, comment string, in func(kind) bool) {
	name, _, _ := strings.Cut(comment, " ")
	fmt.Fprintf(b, "// %s\n#define %s(X)", comment, name)
	for _, k := range kinds() {
		if in(k) {
			fmt.Fprintf(b, " \\\n    X(%s)", k.name)
		}
	}
	b.WriteString("\n\n")
}

// tile returns the layout of a kind's tiles. For a family it describes one tile; kernels get
// the number of tiles of a group at run time.
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

// further returns the number of a quant's high bits, which are stored apart.
func (k kind) further() int {
	switch {
	case k.form == nil:
		return k.bits - k.tile().Parts
	case len(k.form.Quants) > 1:
		return k.form.Quants[1].Bits
	}
	return 0
}

// property is a function of the header that returns a value for each kind.
type property struct {
	name, doc string
	typ       string
	of        func(k kind) string
	other     string // the value of types that are not listed
}

// is returns a boolean property.
func is(name, doc string, has func(k kind) bool) property {
	return property{name, doc, "bool", func(k kind) string { return fmt.Sprint(has(k)) }, "false"}
}

// number returns an integer property.
func number(name, doc string, of func(k kind) int) property {
	return property{name, doc, "uint", func(k kind) string { return fmt.Sprint(of(k)) }, "0"}
}

// declared returns a function that is 0 for families.
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
	number("scale_words", "returns the bytes of integer scales and minimums of one row of a tile", declared(func(f *dtype.Form) int {
		if f.Parts() == 0 {
			return 0
		}
		if f.Sub == 16 || f.Minimum {
			return 2
		}
		return 1
	})),
	{"zero_of", "returns the number to subtract from quants. MLX's bytes are made signed first", "int", func(k kind) string {
		if k.form == nil {
			return map[bool]string{true: "-128", false: "0"}[k.bits == 8]
		}
		return fmt.Sprint(k.form.Zero)
	}, "0"},
	number("block_bytes", "returns the size of a block of a file", declared(func(f *dtype.Form) int { return f.Bytes })),
	number("block_elems", "returns the elements of a block of a file", declared(func(f *dtype.Form) int { return f.Elems })),
	number("quants_at", "returns the offset of the quants in a block of a file, without their high bits", declared(func(f *dtype.Form) int { return f.Quants[0].At })),
	{"piece_run", "returns the distance in columns between the two halves of a piece", "uint", func(k kind) string {
		if k.form == nil {
			return "8"
		}
		return fmt.Sprint(k.form.PieceRun())
	}, "8"},
	number("high_at", "returns the offset of the quants' high bits in a block of a file", declared(func(f *dtype.Form) int {
		if len(f.Quants) == 1 {
			return 0
		}
		return f.Quants[1].At
	})),
	number("scale_at_of", "returns the offset of the scale in a block of a file", declared(func(f *dtype.Form) int { return f.DAt })),
	number("minimum_at_of", "returns the offset of the minimum in a block of a file", declared(func(f *dtype.Form) int { return f.MAt })),
	{"levels_of", "returns the code book, 16 values of int8", "uint4", func(k kind) string {
		if k.form == nil || k.form.Levels == nil {
			return "uint4(0)"
		}
		var words [4]uint32
		for i, v := range k.form.Levels {
			words[i/4] |= uint32(uint8(v)) << (i % 4 * 8)
		}
		return fmt.Sprintf("uint4(0x%08x, 0x%08x, 0x%08x, 0x%08x)", words[0], words[1], words[2], words[3])
	}, "uint4(0)"},
	{"tile_form_of", "returns the layout of a type's tiles", "tile_form", func(k kind) string {
		t := k.tile()
		return fmt.Sprintf("{%d, %d, %d, %d, %d, %d, %d, %d, %d, %d}", t.Parts, t.Tiles, t.Bytes, t.Quants, t.QuantsStep, t.High, t.Scales, t.ScalesStep, t.D, t.M)
	}, "{}"},
}

// header returns shaders/types.h.
func header() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "// %s\n", notice)
	b.WriteString(`
// Properties of the weight types for kernels. Package dtype declares the types.
#ifndef PIANOLA_TYPES_H
#define PIANOLA_TYPES_H

#include "params.h"

`)
	xMacro(&b, "PIANOLA_QUANTISED expands X for each quantised type, and for each family of types that\n// share a template and differ in a run-time argument.", func(kind) bool { return true })
	xMacro(&b, "PIANOLA_EXPANDED expands X for each quantised type whose weights are within the range of float16.", func(k kind) bool { return k.form != nil && k.form.HalfRange() })
	xMacro(&b, "PIANOLA_FREQUENT expands X for each quantised type that has kernels of its own for a few rows.", func(k kind) bool { return k.form != nil && k.form.Frequent })
	b.WriteString(`// tile_form describes 16 rows of one block in layout Tiled16. Offsets are in bytes and count
// from the start of the 16 rows. For a family of types, it describes one tile.
struct tile_form {
    uint parts;       // number of 64-byte runs of a tile's quants, without their high bits
    uint tiles;       // tiles in the block
    uint bytes;       // size of the block
    uint quants;      // offset of the first tile's quants
    uint quants_step; // distance from one tile's quants to the next tile's
    uint high;        // distance from a tile's quants to their high bits
    uint scales;      // offset of the first tile's integer scales
    uint scales_step; // distance from one tile's integer scales to the next tile's
    uint d, m;        // offsets of the 16 rows' scales and minimums, float16 or E8M0
};
`)
	for _, p := range properties {
		writeProperty(&b, p)
	}
	b.WriteString("\n#endif\n")
	return b.Bytes()
}

// writeProperty writes the function of a property, with a case for each value except the
// default one.
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
