package cost

import (
	"strings"

	"github.com/pianola-engine/pianola/chip"
)

// Rates are the rates of a chip that a prediction needs, all of them sustained: what a good kernel
// reaches, not the peak. Bytes and operations are per second of the whole chip, times in seconds.
type Rates struct {
	Memory float64 // bytes read from memory
	Cache  float64 // bytes read from the last cache that all cores share

	Matrix  float64 // float16 multiply-adds of the matrix units, in products
	Attn    float64 // the same in attention
	Float32 float64 // float32 multiply-adds of the vector units
	Float16 float64 // float16 multiply-adds of the vector units
	Int8    float64 // int8 multiply-adds of the vector units (dot products of four)
	Other   float64 // other lane operations of the vector units

	Exposed float64 // share of the arithmetic that does not overlap with the memory's stream

	Dispatch float64 // starting a command
	Barrier  float64 // waiting for earlier commands before it
	Phase    float64 // a command's chain of dependent accesses after a barrier, before and after the stream of its weights
	Pass     float64 // submitting a program

	Cores     int     // threadgroups beyond a multiple of these take another round
	CacheSize float64 // bytes of activations that stay in the cache between commands

	device string
}

// lane counts of a core or multiprocessor, by which rates follow from the clock: all chips here
// execute 128 float32 multiply-adds per core and cycle.
const lanes = 128

// apple are the figures of a generation of Apple GPUs that differ between generations. Apple
// publishes neither clocks nor rates, except the float32 rate of M1 (2.6 TFLOP/s) and M2 (3.6).
type apple struct {
	clock  float64 // Hz
	matrix float64 // multiply-adds of simdgroup_matrix per core and cycle
}

// The clocks of M1 follow from the published rates. Those of M3, M4 and M5 are guesses from clocks
// that third parties report (1.38 to 1.4, 1.47 to 1.68 and 1.6 GHz). The rate of simdgroup_matrix is
// three quarters of the vector rate on all of them: llama.cpp's prefill of a 7B model in F16 reaches
// 0.7 to 0.78 of it on M1 Pro, M1 Max, M3 Max, M4 and M4 Pro (its discussion 4167). The neural
// accelerators of M5, which simdgroup_matrix does not reach, are not counted.
var generations = []struct {
	prefix string
	family int
	apple
}{
	{"m1", 7, apple{1.29e9, 96}},
	{"m2", 8, apple{1.398e9, 96}},
	{"m3", 9, apple{1.39e9, 96}},
	{"m4", 9, apple{1.578e9, 96}},
	{"m5", 10, apple{1.6e9, 96}},
}

// RatesOf returns the rates of a chip. Chips without data of their own get those of the most
// similar chip, scaled by cores and bandwidth.
func RatesOf(c *chip.Chip) Rates {
	var r Rates
	switch c.Device {
	case chip.Metal:
		r = appleRates(c)
	case chip.CUDA:
		r = cudaRates(c)
	default:
		r = cpuRates(c)
	}
	r.device = c.Device
	return r
}

// appleRates returns the rates of an Apple GPU.
func appleRates(c *chip.Chip) Rates {
	g := generations[len(generations)-1].apple
	for i := range generations {
		if generations[i].family == c.Family {
			g = generations[i].apple // of a family's chips the last one, unless the name says which
		}
	}
	for i := range generations {
		if strings.HasPrefix(c.Name, generations[i].prefix) {
			g = generations[i].apple
		}
	}
	cycles := float64(c.Cores) * g.clock
	return Rates{
		// 85 % of the published bandwidth: BaseRT's published 27.9 tok/s of Qwen3-8B Q8_0 on an M4
		// Pro read 224 of 273 GB/s (../shared/peer), which includes the time between commands.
		Memory: 0.85 * c.BandwidthGBs * 1e9,
		// A core takes 32 bytes per cycle from the caches outside of it, according to third parties
		// (philipturner/metal-benchmarks).
		Cache:  32 * cycles,
		Matrix: g.matrix * cycles, Attn: 0.6 * g.matrix * cycles, // the share is a guess
		// 128 lanes, of which instruction scheduling leaves about four fifths (a guess). float16 has
		// the rate of float32. There is no dot product of int8.
		Float32: 0.8 * lanes * cycles, Float16: 0.8 * lanes * cycles, Int8: 0.8 * lanes * cycles / 4, Other: 0.8 * lanes * cycles,
		// Guesses. BaseRT's published rates of Qwen3-0.6B Q4_0 and Llama-3.2-1B Q8_0 on an M4 Pro
		// leave 0.5 and 0.6 ms a token beside the weights, for commands of which it does not
		// publish the number; with 5 in a layer these are 3 and 6 us for each.
		Dispatch: 0.7e-6, Barrier: 0.8e-6, Phase: 1.5e-6, Pass: 20e-6,
		Cores: c.Cores, CacheSize: 16 << 20,
	}
}

// cudaRates returns the rates of an NVIDIA GPU: the H200's, which were measured, scaled by
// multiprocessors and bandwidth.
func cudaRates(c *chip.Chip) Rates {
	const (
		cores     = 132
		clock     = 1.755e9 // 67 TFLOP/s of float32 are published
		bandwidth = 4382e9  // measured, ../shared/h200
	)
	cycles := float64(c.Cores) * clock
	scale := float64(c.Cores) / cores
	return Rates{
		Memory: c.BandwidthGBs * 1e9,
		// Products of llama-3.1-8b F16 take 32 bytes per multiprocessor and cycle from L2 without being
		// limited by it, and gemm_few takes 29 to 31 with 50 rows of Q4_0 on an H100. This fits prompts of
		// 8 to 8,192 tokens on the H200 (TestCalibration).
		Cache: 36 * cycles,
		// Measured (docs/BENCHMARKS.md): products of llama-3.1-8b F16 reach 525 to 690 of the
		// published 989 TFLOP/s, the last round of threadgroups included.
		// Attention of 8,192 tokens has a third of the peak.
		Matrix: 350e12 * scale, Attn: 160e12 * scale,
		// Published: one instruction per lane and cycle, four int8 multiply-adds with dp4a.
		Float32: 0.8 * lanes * cycles, Float16: 0.8 * lanes * cycles, Int8: 0.8 * 4 * lanes * cycles, Other: 0.8 * lanes * cycles,
		// Measured: a grid barrier takes 0.93 us and an empty kernel of a graph 0.72; a command of
		// qwen3-0.6b takes 3.4 to 4.1 us whatever it reads (docs/BENCHMARKS.md).
		Dispatch: 0.35e-6, Barrier: 0.4e-6, Phase: 2.4e-6, Pass: 10e-6,
		Cores: c.Cores, CacheSize: 40 << 20,
	}
}

// cpuRates returns the rates of a CPU with AVX-512 VNNI of which Cores is the number of threads; 0
// stands for 2. They are measured (docs/BENCHMARKS.md): prefill of 512 tokens on two cores of an AMD
// Zen 4, and of 256 tokens with 1 to 16 threads of an Intel Xeon (Sapphire Rapids), on which a thread
// becomes slower the more there are. AMX is not counted.
func cpuRates(c *chip.Chip) Rates {
	threads := float64(c.Cores)
	if c.Cores == 0 {
		threads = 2
	}
	all := threads / (1 + 0.04*max(0, threads-2))
	return Rates{
		Memory: c.BandwidthGBs * 1e9,
		Cache:  60e9 * all, // a guess
		Matrix: 46e9 * all, Attn: 46e9 * all,
		Float32: 46e9 * all, Float16: 46e9 * all, Int8: 119e9 * all, Other: 200e9 * all,
		Exposed:  0.25,                                             // fitted to decode with one and two threads
		Dispatch: 0.5e-6, Barrier: 0.5e-6, Phase: 1e-6, Pass: 5e-6, // guesses
		Cores: int(threads), CacheSize: 1 << 20 * threads,
	}
}
