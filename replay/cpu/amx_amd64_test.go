package cpu

import (
	"bytes"
	"debug/elf"
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"math"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/pianola-engine/pianola/internal/dtype"
)

func needAMX(tb testing.TB) {
	tb.Helper()
	if !offersAMX() {
		tb.Skip("the processor has no AMX for int8, or the system does not allow it")
	}
	if !hasAMX() {
		tb.Fatal("the AMX loops do not give the results of the VNNI loops, so the device does not use them")
	}
}

// randomTiles returns strips of random bytes with finite scales, followed by a guard page.
func randomTiles(tb testing.TB, r *rand.Rand, typ dtype.Type, strips, blocks int, small bool) []byte {
	tb.Helper()
	w := guarded(tb, uint64(strips*blocks*blockSize512(tb, typ)))
	for i := range w {
		w[i] = byte(r.Uint32())
	}
	finite512(tb, typ, w, small)
	return w
}

// TestAMX compares the AMX products with the portable ones, for numbers of rows around the sizes of
// groups and for numbers of columns around the sizes of chunks.
func TestAMX(t *testing.T) {
	needAMX(t)
	products := tiledAMX()
	for _, tt := range tiledTypes {
		typ := tt.t
		if products[typ] == nil {
			continue
		}
		t.Run(typ.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(44, uint64(typ)))
			elems, _ := typ.Block()
			for _, rows := range []int{15, 16, 17, 31, 33, 48, 64, 65, 150} {
				for _, columns := range []int{256, 1024, 1280, 2048 + 512} {
					strips := 1 + r.IntN(3)
					w := randomTiles(t, r, typ, strips, columns/elems, r.IntN(2) == 0)
					scale := extremes[r.IntN(len(extremes))]
					x := input512(t, typ, rows, columns, 8*r.IntN(9), func(int) []float32 { return random(r, columns, scale) })
					checkProduct(t, products[typ], typ, w, strips, x)
				}
			}
			// Numbers of tiles that are not a multiple of 8.
			for tiles := 1; tiles < 70 && elems < 256; tiles += 1 + r.IntN(5) {
				columns := (tiles*blockElems + elems - 1) / elems * elems
				x := input512(t, typ, 16+r.IntN(24), columns, 0, func(int) []float32 { return random(r, columns, 1) })
				checkProduct(t, products[typ], typ, randomTiles(t, r, typ, 2, columns/elems, true), 2, x)
			}
		})
	}
}

// TestAMXEveryByte gives every byte of a block every fifth value, with the largest activations.
func TestAMXEveryByte(t *testing.T) {
	needAMX(t)
	products := tiledAMX()
	for _, tt := range tiledTypes {
		typ := tt.t
		if products[typ] == nil {
			continue
		}
		t.Run(typ.String(), func(t *testing.T) {
			elems, _ := typ.Block()
			x := input512(t, typ, 16, elems, 0, func(j int) []float32 {
				x := make([]float32, elems)
				for i := range x {
					x[i] = 127
					if i&j != 0 {
						x[i] = -127
					}
				}
				return x
			})
			w := guarded(t, uint64(blockSize512(t, typ)))
			for v := 0; v < 256; v += 5 {
				for i := range w {
					w[i] = byte(v)
				}
				finite512(t, typ, w, false)
				checkProduct(t, products[typ], typ, w, 1, x)
			}
		})
	}
}

// TestAMXInterrupted multiplies on more goroutines than there are processors, while the runtime
// preempts them, moves them between threads, collects garbage and profiles. Tiles that were lost
// or mixed up would change results.
func TestAMXInterrupted(t *testing.T) {
	needAMX(t)
	const columns, strips, rows = 1024, 8, 48
	r := rand.New(rand.NewPCG(45, 1))
	run := tiledAMX()[dtype.Q4_0]
	stop := time.Now().Add(3 * time.Second)
	var done sync.WaitGroup
	for range 3 * runtime.GOMAXPROCS(0) {
		w := randomTiles(t, r, dtype.Q4_0, strips, columns/blockElems, true)
		x := input512(t, dtype.Q4_0, rows, columns, 0, func(int) []float32 { return random(r, columns, 1) })
		want := run.multiply(t, w, strips, 0, x)
		done.Go(func() {
			y := make([]float32, len(want))
			for n := 0; time.Now().Before(stop); n++ {
				run(y, dtype.TileRows*strips, w, strips, x)
				for i, v := range want {
					if y[i] != v {
						t.Errorf("product %d: element %d is %v, want %v", n, i, y[i], v)
						return
					}
				}
				runtime.Gosched()
			}
		})
	}
	for time.Now().Before(stop) {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	done.Wait()
}

// TestAMXRefused gives the check of the AMX loops one that computes what the VNNI loop does, and one
// that differs in a single element.
func TestAMXRefused(t *testing.T) {
	needAVX512(t)
	for typ, loops := range loops512() {
		wrong := -1
		fake := loops
		fake.amx = func(y *float32, yStride int, w *byte, strips, blocks int, x *byte, xStride, in, rows int, shape *tileShape) {
			if *shape != tileShapeOf(typ) || rows%tileRows != 0 || rows > amxRows {
				t.Errorf("%v: %d rows, shape %v", typ, rows, *shape)
			}
			for j := 0; j < rows; j += 4 {
				row := (*float32)(unsafe.Add(unsafe.Pointer(y), j*yStride))
				loops.four(row, yStride, w, strips, blocks, (*byte)(unsafe.Add(unsafe.Pointer(x), j*xStride)), xStride, in)
			}
			if wrong >= 0 {
				v := (*float32)(unsafe.Add(unsafe.Pointer(y), wrong*yStride))
				*v = math.Nextafter32(*v, 1000)
			}
		}
		if !sameProducts(map[dtype.Type]tiledLoops{typ: fake}) {
			t.Errorf("%v: the same products are refused", typ)
		}
		for _, wrong = range []int{0, 17, 31} {
			if sameProducts(map[dtype.Type]tiledLoops{typ: fake}) {
				t.Errorf("%v: a wrong element of row %d is accepted", typ, wrong)
			}
		}
	}
}

// TestAMXEncodings compares the instructions that amx_amd64.h encodes with clang's encoding of the
// comments before them.
func TestAMXEncodings(t *testing.T) {
	const clang = "clang-19"
	if _, err := exec.LookPath(clang); err != nil {
		t.Skip(err)
	}
	macros := regexp.MustCompile(`(?m)^// (.*)\n#define \w+(?:\(([a-z, ]+)\))? (BYTE .*)$`).FindAllStringSubmatch(read(t, "amx_amd64.h"), -1)
	if len(macros) != 8 {
		t.Fatalf("found %d macros of instructions, want 8", len(macros))
	}
	var text strings.Builder
	var got []byte
	text.WriteString(".intel_syntax noprefix\n")
	for _, m := range macros {
		names := strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' })
		for i := range 512 {
			if i >= 1<<(3*len(names)) {
				break
			}
			comment, code, same := m[1], m[3], false
			for k, name := range names {
				v := i >> (3 * k) & 7
				same = same || len(names) == 3 && v == i>>(3*((k+1)%3))&7
				if name == "d" {
					v = []int{0, 16, 64, 256, 1024, 2048, 3072, 1 << 20}[v]
				}
				comment = strings.ReplaceAll(comment, "{"+name+"}", strconv.Itoa(v))
				code = regexp.MustCompile(`\b`+name+`\b`).ReplaceAllString(code, strconv.Itoa(v))
			}
			if same {
				continue // the processor needs three tiles
			}
			fmt.Fprintln(&text, comment)
			got = append(got, assembledBytes(t, code)...)
		}
	}
	object := filepath.Join(t.TempDir(), "amx.o")
	cmd := exec.Command(clang, "--target=x86_64-linux-gnu", "-mamx-tile", "-mamx-int8", "-x", "assembler", "-c", "-", "-o", object)
	cmd.Stdin = strings.NewReader(text.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := elf.Open(object)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want, err := f.Section(".text").Data()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got) {
		t.Errorf("the macros give\n%x\nclang gives\n%x\nof\n%s", got, want, text.String())
	}
}

// assembledBytes returns the bytes of directives BYTE $e and LONG $e.
func assembledBytes(t *testing.T, code string) (b []byte) {
	t.Helper()
	for directive := range strings.SplitSeq(code, ";") {
		op, expr, _ := strings.Cut(strings.TrimSpace(directive), " $")
		v, err := types.Eval(token.NewFileSet(), nil, token.NoPos, expr)
		if err != nil {
			t.Fatalf("%s: %v", directive, err)
		}
		n, _ := constant.Uint64Val(v.Value)
		for range map[string]int{"BYTE": 1, "LONG": 4}[op] {
			b = append(b, byte(n))
			n >>= 8
		}
	}
	return b
}

// BenchmarkAMX multiplies a matrix that fits in the second-level cache on one core, with VNNI, with
// AMX, and with AMX one strip at a time.
func BenchmarkAMX(b *testing.B) {
	needAMX(b)
	const columns, strips = 1024, 64
	r := rand.New(rand.NewPCG(46, 1))
	vnni, amx := tiledAVX512(), tiledAMX()
	for _, tt := range tiledTypes {
		typ := tt.t
		if amx[typ] == nil {
			continue
		}
		elems, _ := typ.Block()
		w := randomTiles(b, r, typ, strips, columns/elems, true)
		for _, rows := range []int{16, 64} {
			x := input512(b, typ, rows, columns, 64, func(int) []float32 { return random(r, columns, 1) })
			y := make([]float32, rows*strips*dtype.TileRows)
			for _, set := range []struct {
				name string
				run  tiledFunc
				at   int // strips at a time
			}{{"vnni", vnni[typ], strips}, {"amx", amx[typ], strips}, {"strip", amx[typ], 1}} {
				b.Run(fmt.Sprintf("%v/%d/%s", typ, rows, set.name), func(b *testing.B) {
					for b.Loop() {
						for s := 0; s < strips; s += set.at {
							set.run(y[dtype.TileRows*s:], strips*dtype.TileRows, w[len(w)/strips*s:], set.at, x)
						}
					}
					reportMACs(b, strips*dtype.TileRows*columns*rows)
				})
			}
		}
	}
}
