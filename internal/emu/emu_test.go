package emu

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"
)

const bad = "internal/emu/testdata/bad"

func floats(n int) []byte {
	b := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(float32(i)))
	}
	return b
}

func float(b []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
}

// dispatch returns a dispatch of one threadgroup that reads x and writes y, width float32
// per thread.
func dispatch(kernel string, threads, width int, o Order, seed uint64) *Dispatch {
	d := &Dispatch{Kernel: kernel, Grid: [3]uint32{1, 1, 1}, Threads: uint32(threads), TGMem: uint32(4 * threads), Order: o, Seed: seed}
	d.Buffers[0], d.Buffers[1] = floats(threads), make([]byte, 4*threads*width)
	return d
}

// TestBarriers checks that a missing barrier causes a wrong result in some order, and that with
// the barrier all orders give the same result.
func TestBarriers(t *testing.T) {
	p := Build(t, Options{Sources: bad})
	for _, tt := range []struct {
		kernel string
		wrong  bool
	}{{"no_barrier", true}, {"with_barrier", false}, {"small_barrier", true}} {
		wrong := 0
		for seed, o := range []Order{Forward, Reverse, Random, Random} {
			d := dispatch(tt.kernel, 96, 1, o, uint64(seed))
			if err := p.Run(d); err != nil {
				t.Fatal(err)
			}
			for i := range 96 {
				if float(d.Buffers[1], i) != float32(95-i) {
					wrong++
				}
			}
		}
		if (wrong > 0) != tt.wrong {
			t.Errorf("%s: %d wrong results", tt.kernel, wrong)
		}
	}
}

// TestFaults checks that it is an error if lanes wait at different barriers, and that the
// process keeps working.
func TestFaults(t *testing.T) {
	p := Build(t, Options{Sources: bad})
	for _, tt := range []struct{ kernel, want string }{
		{"divergent", "others of its SIMD group at"},
		{"early_return", "returned while others of its SIMD group wait at SIMD reduction"},
		{"early_group", "returned while others wait at threadgroup_barrier"},
		{"nothing", "no such kernel"},
	} {
		for _, o := range []Order{Forward, Reverse, Random} {
			err := p.Run(dispatch(tt.kernel, 64, 1, o, 1))
			var refused *RefusedError
			if !errors.As(err, &refused) || !strings.Contains(refused.Text, tt.want) {
				t.Errorf("%s: got %v, want %q", tt.kernel, err, tt.want)
			}
		}
	}
	for _, threads := range []int{0, 16, 33, 2048} {
		if err := p.Run(dispatch("with_barrier", threads, 1, Forward, 0)); err == nil {
			t.Errorf("%d threads are accepted", threads)
		}
	}
	if err := p.Run(dispatch("with_barrier", 1024, 1, Forward, 0)); err != nil {
		t.Error(err)
	}
}

// TestSanitizers checks that invalid accesses, which no device reports, are errors that name
// the line of the source.
func TestSanitizers(t *testing.T) {
	p := Build(t, Options{Sanitize: true, Sources: bad})
	for _, tt := range []struct{ kernel, want string }{
		{"past_the_end", "heap-buffer-overflow"},
		{"past_threadgroup_memory", "heap-buffer-overflow"},
		{"misaligned", "misaligned address"},
		{"past_an_array", "out of bounds"},
	} {
		err := p.Run(dispatch(tt.kernel, 64, 1, Forward, 0))
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "bad.metal:") {
			t.Errorf("%s: got %v, want %q and a line of bad.metal", tt.kernel, err, tt.want)
		}
		// A fault of lanes abandons stack frames, which the sanitizer must not report later.
		for range 3 {
			if err := p.Run(dispatch("early_return", 64, 1, Forward, 0)); err == nil || strings.Contains(err.Error(), "ended") {
				t.Fatal(err)
			}
			if err := p.Run(dispatch("with_barrier", 1024, 1, Random, 3)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestPositions(t *testing.T) {
	p := Build(t, Options{Sources: bad})
	for _, o := range []Order{Forward, Reverse, Random} {
		d := &Dispatch{Kernel: "positions", Grid: [3]uint32{3, 2, 4}, Threads: 96, Order: o, Seed: 5}
		d.Buffers[1] = make([]byte, 4*24*96)
		if err := p.Run(d); err != nil {
			t.Fatal(err)
		}
		for i := range 24 * 96 {
			g, simd, lane := i/96, i%96/32, i%32
			if got, want := binary.LittleEndian.Uint32(d.Buffers[1][4*i:]), uint32(((g*16+simd)*32+lane)*4+3); got != want {
				t.Fatalf("thread %d: %d, want %d", i, got, want)
			}
		}
	}
}

func TestSIMDFunctions(t *testing.T) {
	p := Build(t, Options{Sources: bad})
	for _, o := range []Order{Forward, Reverse, Random} {
		d := dispatch("simd_functions", 64, 14, o, 9)
		if err := p.Run(d); err != nil {
			t.Fatal(err)
		}
		for i := range 64 {
			lane, first := i%32, i/32*32
			truth := map[bool]float32{false: 0, true: 1}
			sum := 0
			for j := first; j <= i; j++ {
				sum += j
			}
			want := []float32{
				float32(32*first + 496), float32(first + 31), float32(first), float32(first + lane ^ 5), float32(first + 31 - lane), float32(first + 7),
				float32(first + min(lane+3, 31)), float32(first + max(lane-3, 0)), float32(sum), truth[first == 0], 1, float32(first + 2),
				float32(2 * (first + lane ^ 1)), float32(first),
			}
			if lane+3 > 31 {
				want[6] = float32(i)
			}
			if lane < 3 {
				want[7] = float32(i)
			}
			for j, w := range want {
				if got := float(d.Buffers[1], 14*i+j); got != w {
					t.Fatalf("thread %d, value %d: %v, want %v", i, j, got, w)
				}
			}
		}
	}
}
