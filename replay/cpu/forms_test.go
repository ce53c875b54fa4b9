package cpu

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// read returns the text of all files of a pattern.
func read(t *testing.T, pattern string) string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: no files, %v", pattern, err)
	}
	var text strings.Builder
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(b)
	}
	return text.String()
}

// shapeOf returns the size in bytes of a strip's block before its tiles, the number of tiles,
// and the size of a tile.
func shapeOf(f *dtype.Form) (head, tiles, size int) {
	t := f.Tile()
	tiles, size = f.Elems/32, t.QuantsStep
	if t.Tiles == 1 {
		return 0, tiles, t.Bytes
	}
	return t.Bytes - tiles*size, tiles, size
}

// TestAssemblyForms compares the tile offsets in the AVX2, AVX-512 and AMX loops with the
// declarations of the types.
func TestAssemblyForms(t *testing.T) {
	seen := map[string]int{}
	text := read(t, "avx*_tiled*_amd64.s")
	for _, part := range strings.Split(text, "\nTEXT ·")[1:] {
		name, body, _ := strings.Cut(part, "(SB)")
		m := regexp.MustCompile(`^tiled(?:Four)?(.+?)(?:x[1248])?(AVX2|AVX512|AMX)$`).FindStringSubmatch(name)
		if m == nil {
			continue // blocks of MLX types have no fixed size
		}
		typ, err := dtype.Parse(m[1])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		head, tiles, size := shapeOf(dtype.FormOf(typ))
		seen[m[2]]++
		for pattern, want := range map[string][]int{
			`\n\tTILED8?\((\d+), (\d+), (\d+),`:   {head, tiles, size},
			`\n\tAMX\(\w+, (\d+), (\d+), (\d+),`:  {head, tiles, size},
			`\n\tNEXT\((\d+)\)`:                   {size},
			`\n\tHEAD\(AHEAD\d, (?:\d+), (\d+)\)`: {head},
		} {
			for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(body, -1) {
				for i, w := range want {
					if found[i+1] != strconv.Itoa(w) {
						t.Errorf("%s has %s, want %v", name, strings.TrimSpace(found[0]), want)
						break
					}
				}
			}
		}
		if !regexp.MustCompile(`\n\t(TILED8?|NEXT|AMX)\(`).MatchString(body) {
			t.Errorf("%s: no size of a tile was found", name)
		}
	}
	if seen["AVX2"] < 28 || seen["AVX512"] < 52 || seen["AMX"] < 15 {
		t.Errorf("found %v functions", seen)
	}
}

// TestNEONForms compares the shapes in the C files of the NEON loops with the declarations.
func TestNEONForms(t *testing.T) {
	text := read(t, "neon/tiled*.c")
	list := regexp.MustCompile(`static const shape (\w+) = \{(.*?)\};`).FindAllStringSubmatch(text, -1)
	if len(list) < 14 {
		t.Fatalf("%d shapes", len(list))
	}
	for _, m := range list {
		typ, err := dtype.Parse(m[1])
		if err != nil {
			t.Error(err)
			continue
		}
		f := dtype.FormOf(typ)
		form := f.Tile()
		got := map[string]int{}
		for _, field := range regexp.MustCompile(`\.(\w+) = (\d+)`).FindAllStringSubmatch(m[2], -1) {
			got[field[1]], _ = strconv.Atoi(field[2])
		}
		want := map[string]int{"size": form.Bytes, "subs": form.Tiles, "d": form.D, "zero": f.Zero}
		if f.Minimum {
			want["m"] = form.M
		}
		if wholeSums(typ) {
			want["whole"] = 1
		}
		if form.Tiles > 1 {
			want["quants"], want["step"] = form.Quants, form.QuantsStep
		}
		if f.Parts() > 0 {
			want["scales"], want["next"] = form.Scales, form.ScalesStep
			if f.Sub == 16 {
				want["two"] = 1
			}
			if f.Minimum {
				want["mins"] = form.Scales
				if !f.PackedTile {
					want["mins"] += dtype.TileRows
				}
			}
		}
		maps.DeleteFunc(want, func(_ string, v int) bool { return v == 0 })
		maps.DeleteFunc(got, func(_ string, v int) bool { return v == 0 })
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the shape of %s is %v, want %v", typ, got, want)
		}
	}
}

// TestAssemblyLevels compares the tables of levels in the AVX2 loops with the declarations.
func TestAssemblyLevels(t *testing.T) {
	for name, typ := range map[string]dtype.Type{"levelsIQ4": dtype.IQ4_NL, "levelsMXFP4": dtype.MXFP4} {
		for file, more := range map[string]int{"avx2_tiled_levels_amd64.s": 0, "avx512_tiled_levels_amd64.s": map[dtype.Type]int{dtype.IQ4_NL: 128, dtype.MXFP4: 12}[typ]} {
			found := regexp.MustCompile(`DATA `+name+`<>\+([08])\(SB\)/8, \$0x([0-9a-f]+)`).FindAllStringSubmatch(read(t, file), -1)
			if len(found) != 2 {
				t.Errorf("%s: %d words of %s", file, len(found), name)
				continue
			}
			for i, m := range found {
				word, _ := strconv.ParseUint(m[2], 16, 64)
				for j := range 8 {
					if want := uint8(int(dtype.FormOf(typ).Levels[8*i+j]) + more); uint8(word>>(8*j)) != want {
						t.Errorf("%s: level %d of %s is %#x, want %#x", file, 8*i+j, name, uint8(word>>(8*j)), want)
					}
				}
			}
		}
	}
}
