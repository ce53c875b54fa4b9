// Package chip holds the limits and the tuning of devices as data, one JSON file per chip in
// data/.
//
// The package does not query the hardware and must not know kernels. If a device finds other limits
// than those in its chip's file, it changes its copy of the data, and the compiler reads that copy.
package chip

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"reflect"
	"slices"
	"strings"
)

// The values of Chip.Device.
const (
	CPU   = "cpu"
	Metal = "metal"
	CUDA  = "cuda"
)

// Chip holds everything that the compiler knows about a device.
type Chip struct {
	Name   string `json:"name"`   // such as "m4-pro"
	Title  string `json:"title"`  // such as "Apple M4 Pro (20-core GPU)"
	Device string `json:"device"` // CPU, Metal or CUDA
	// Comment lists the figures that are published and those that were measured. The other figures
	// are guesses.
	Comment string `json:"comment"`

	Family            int     `json:"family"`             // Apple GPU family: 9 is Apple9; 0 on other devices
	SIMDWidth         int     `json:"simd_width"`         // lanes of a SIMD group; 1 on the CPU, where a threadgroup is one worker
	MaxThreads        int     `json:"max_threads"`        // largest number of threads in a threadgroup
	ThreadgroupMemory uint64  `json:"threadgroup_memory"` // largest threadgroup memory in bytes
	WorkerMemory      bool    `json:"worker_memory"`      // ThreadgroupMemory bounds a CPU worker's scratch, not a GPU threadgroup's memory
	Cores             int     `json:"cores"`              // GPU cores or multiprocessors; 0 means the number of workers in the team
	BandwidthGBs      float64 `json:"bandwidth_gbs"`      // memory bandwidth in 10^9 bytes per second
	MaxBufferBytes    uint64  `json:"max_buffer_bytes"`   // largest size of one buffer

	// Variants are versions of the chip that are sold with fewer cores. Lookup finds them by the
	// chip's name and the number of cores, such as m4-max-32. A variant has no variants.
	Variants []Variant `json:"variants"`

	// ActQ8 makes kernels for integer weights quantise their activations to 8
	// bits in blocks of 32. ActQ8Rows reports whether they do so for every matrix;
	// if it is false, they do so only for matrices in the tiled layout.
	ActQ8     bool `json:"act_q8"`
	ActQ8Rows bool `json:"act_q8_rows"`
	// TileWeights makes the upload repack the matrices of such products to the layout
	// dtype.Tiled16 if their type and shape allow it.
	TileWeights bool `json:"tile_weights"`

	// The numbers of threads in a threadgroup: GEMVThreads for gemv, AttnThreads for attention,
	// SampleThreads for the kernel that filters tokens for sampling (at most MaxThreads), and
	// NormThreads for most other kernels.
	GEMVThreads   int `json:"gemv_threads"`
	NormThreads   int `json:"norm_threads"`
	AttnThreads   int `json:"attn_threads"`
	SampleThreads int `json:"sample_threads"`

	PrefillChunk int `json:"prefill_chunk"` // rows of the prefill program
	LogitsRows   int `json:"logits_rows"`   // rows of a block of the all-rows logits program

	// Products of a chunk (gemm). GEMMRows is the number of output rows of a
	// threadgroup. If GEMMUnit is not 0, it is the largest such number: threadgroups
	// take fewer rows, multiples of GEMMUnit, as long as there are fewer of them
	// than cores. GEMMUnit is the number of output rows of one SIMD group.
	GEMMRows int `json:"gemm_rows"`
	GEMMUnit int `json:"gemm_unit"`
	// GEMMTileRows is the number of rows of the chunk that a threadgroup of gemm multiplies; 0 means
	// all. On Metal, it is also the largest such number of gemm_halves. GEMMShare is the number of
	// SIMD groups that divide these rows where a threadgroup then has at most GEMMRows threads.
	GEMMTileRows int `json:"gemm_tile_rows"`
	GEMMShare    int `json:"gemm_share"`
	// GEMMNarrow is the largest number of rows of a float32 matrix for which a threadgroup of gemm
	// computes 8 of them with 8 rows of the chunk; 0 means that there is no such matrix.
	GEMMNarrow int `json:"gemm_narrow"`

	// Products of few rows (gemv). GEMVRows is the number of output rows of a
	// threadgroup. If GEMVWave is not 0, it is the smallest such number: output
	// rows are divided evenly among GEMVWave threadgroups for each core.
	GEMVRows int `json:"gemv_rows"`
	GEMVWave int `json:"gemv_wave"`
	// GEMVLimit is the largest number of output rows of a threadgroup. If it is not 0, the number
	// is chosen so that the cores, which run GEMVWave threadgroups each, request the fewest
	// bytes; it depends on the matrix.
	GEMVLimit int `json:"gemv_limit"`
	// MergeLimit is the largest number of bytes of attention splits that the threadgroups of
	// a product may request. If they would request more, merging the splits is a command of its
	// own. If it is 0, there is no limit.
	MergeLimit int `json:"merge_limit"`
	// GEMVStage is the divisor of ThreadgroupMemory that gives the bytes in which a
	// gemv threadgroup stages a float32 input. If it is 0, the input is not staged.
	GEMVStage int `json:"gemv_stage"`
	// GEMVAhead is the threadgroup memory in bytes that each SIMD group of gemv uses to prefetch
	// weights. If it is 0, weights are loaded directly to registers. Kernels use up to 10,240.
	GEMVAhead int `json:"gemv_ahead"`

	// GEMVSingle selects the form of gemv for a single row, which loads its input at once. It is the
	// least threadgroup memory in bytes of quantised products and of float products whose input is a
	// norm. More than half of a multiprocessor's keeps it from running two threadgroups of such a
	// product; a quantised one needs 13,056 for the weights of each SIMD group, and its input. A product
	// for which there is too little memory has the general form. If GEMVSingle is 0, all have it. It
	// needs GEMVAhead on a CUDA device. GEMVSingleThreads is the number of threads of a threadgroup in
	// this form, at most 512. With float matrices of fewer than GEMVSingleWide bytes it is GEMVThreads.
	GEMVSingle        int `json:"gemv_single"`
	GEMVSingleThreads int `json:"gemv_single_threads"`
	GEMVSingleWide    int `json:"gemv_single_wide"`
	// GEMVHalf is a limit in bytes. A product of a single row whose matrix is smaller uses half of the
	// cores, with threadgroups of GEMVSingleThreads, so that the next command begins on the other half
	// and copies its weights meanwhile. GEMVHalfMerge is the limit for products that merge attention
	// splits. It can be larger, because attention leaves cores idle on which the product begins.
	GEMVHalf      int `json:"gemv_half"`
	GEMVHalfMerge int `json:"gemv_half_merge"`

	// AttnHeads is the largest number of heads, all with the same K and V, that a
	// threadgroup of attention computes.
	AttnHeads int `json:"attn_heads"`
	// AttnAhead is the threadgroup memory in bytes that each SIMD group of decode attention uses to
	// prefetch K and V, which it then multiplies with matrix instructions; it gets less on a device
	// with little memory. If it is 0, K and V are loaded to registers.
	AttnAhead int `json:"attn_ahead"`
	// AttnTileDim is the largest head, in elements, for which prefill attention uses matrix
	// instructions (attn_tile). AttnTileRows is the number of rows of a SIMD group's matrix
	// instructions: 8 selects the kernel for Apple's SIMD-group matrices, other numbers the one for
	// NVIDIA's instructions. Both are 0 on a device without such a kernel.
	AttnTileRows int `json:"attn_tile_rows"`
	AttnTileDim  int `json:"attn_tile_dim"`

	// If the KV capacity exceeds SplitContext, attention splits the positions of a row evenly among
	// threadgroups, and then merges the splits. The number of threadgroups is the number that the
	// cores can run at once, but each takes at least SplitSpan positions. Both are 0 on a device
	// that never splits.
	SplitContext int `json:"split_context"`
	SplitSpan    int `json:"split_span"`

	// ArgmaxPart is the number of logits per threadgroup of argmax. If the vocabulary is larger,
	// the results of the parts are then compared. If ArgmaxPart is 0, one threadgroup takes all
	// logits.
	ArgmaxPart int `json:"argmax_part"`

	// GEMMHalves is the number of threads in a threadgroup of gemm_halves, or 0 on a device without the
	// kernel. If it is not 0, prefill converts the rows of a chunk to float16 with a separate command,
	// once for all threadgroups of the products that read them, and most products use gemm_halves.
	// With 384 threads the kernel uses the warpgroup matrix instructions of CUDA devices (compute
	// capability 9.0), and needs 199,680 bytes of threadgroup memory. With 64, 128 or 256 threads it
	// uses the SIMD-group matrices of Metal; a threadgroup computes one row of W for two threads, by at
	// most GEMMTileRows rows of the chunk.
	GEMMHalves int `json:"gemm_halves"`
	// PrefillFew is the number of rows of a second prefill program, for short prompts. It is at most
	// 32, and 0 on a device for which the program is not worth its memory. It needs GEMMHalves. On a
	// CUDA device, the program's products read W once (gemm_few).
	PrefillFew int `json:"prefill_few"`
	// BatchRows are the numbers of rows that batch programs are compiled for, in ascending order. On a
	// CPU one number is enough, because its kernels compute only the active rows.
	BatchRows []int `json:"batch_rows"`
	// BatchFew reports whether tables for batching use gemm_few in programs with few rows, and gemm_halves in
	// the same order of sums in others. It needs GEMMHalves on a CUDA device, whose matrix instructions must
	// give both kernels the same bits.
	BatchFew bool `json:"batch_few"`
	// BatchSlots is the largest number of slots of attn_tile in batch programs, 2 to 4, on a device that
	// divides threadgroup memory among the threadgroups of a core: with fewer slots, more of them run at
	// once. 0 means as many as fit.
	BatchSlots int `json:"batch_slots"`
	// RequestAhead is the number of bytes of weights that a threadgroup of gemm_few or gemm_halves of a
	// CUDA device requests before its input is ready, so that they are in the L2 cache later.
	RequestAhead int `json:"request_ahead"`

	Fuse    Fuse    `json:"fuse"`
	ChainMS float64 `json:"chain_ms"` // longest duration of a chain in milliseconds

	// Serial makes Metal run the commands of a chain one after another instead of using the
	// table's barriers.
	Serial bool `json:"serial"`
}

// Variant holds the fields that differ in a version of the chip with fewer cores.
type Variant struct {
	Cores        int     `json:"cores"`
	BandwidthGBs float64 `json:"bandwidth_gbs"`
}

// Fuse selects the commands that the compiler fuses.
type Fuse struct {
	QKV           bool `json:"qkv"`             // the Q, K and V projections
	GateUp        bool `json:"gate_up"`         // the gate and up projections
	ResidualNorm  bool `json:"residual_norm"`   // a residual addition and the norm after it
	RopeKV        bool `json:"rope_kv"`         // RoPE of Q and K and the KV cache's writes
	SiLUDown      bool `json:"silu_down"`       // the activation and the down projection
	SiLUDownChunk bool `json:"silu_down_chunk"` // SiLUDown in programs for chunks, too
	// In programs for few rows:
	RopeAttn     bool `json:"rope_attn"`     // the command that RopeKV produces, and attention
	ProductAdd   bool `json:"product_add"`   // a product and the residual addition after it
	NormProduct  bool `json:"norm_product"`  // a norm and each product that reads it
	MergeProduct bool `json:"merge_product"` // merging attention splits and the product after it
	Gated        bool `json:"gated"`         // the gate and up product that GateUp produces, and the activation
	Scaled       bool `json:"scaled"`        // a norm, in parts with the product before it and those after it
}

//go:embed data/*.json
var data embed.FS

// UnknownError reports that no chip has the given name.
type UnknownError struct {
	Name  string
	Known []string // sorted
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("chip: %.40q is not known (known: %s)", e.Name, strings.Join(e.Known, ", "))
}

// Names returns the names of the chips and of their variants, sorted.
func Names() []string {
	names := files()
	for _, name := range names {
		if c, err := load(name); err == nil { // tests load each file
			for _, v := range c.Variants {
				names = append(names, c.variantName(v.Cores))
			}
		}
	}
	slices.Sort(names)
	return names
}

// files returns the names of the chips that have a file of their own.
func files() []string {
	names, _ := fs.Glob(data, "data/*.json") // fails only on a malformed pattern
	for i, file := range names {
		names[i] = strings.TrimSuffix(strings.TrimPrefix(file, "data/"), ".json")
	}
	return names
}

// Lookup returns a copy of the chip or variant with the given name. If there is none, the error
// is an *UnknownError.
func Lookup(name string) (*Chip, error) {
	known := files()
	if slices.Contains(known, name) {
		return load(name)
	}
	for _, of := range known {
		if !strings.HasPrefix(name, of+"-") {
			continue
		}
		c, err := load(of)
		if err != nil {
			return nil, err
		}
		for _, v := range c.Variants {
			if c.variantName(v.Cores) == name {
				c.become(v)
				return c, nil
			}
		}
	}
	return nil, &UnknownError{Name: name, Known: Names()}
}

// load reads the file of the chip with the given name.
func load(name string) (*Chip, error) {
	text, err := data.ReadFile("data/" + name + ".json")
	if err != nil {
		return nil, fmt.Errorf("chip: %w", err)
	}
	c, err := decode(text)
	if err == nil && c.Name != name {
		err = fmt.Errorf("name: %q is not the file's", c.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("chip: %s.json: %w", name, err)
	}
	return c, nil
}

func (c *Chip) variantName(cores int) string { return fmt.Sprintf("%s-%d", c.Name, cores) }

// become turns c into one of its variants.
func (c *Chip) become(v Variant) {
	c.Name, c.Title = c.variantName(v.Cores), strings.Replace(c.Title, fmt.Sprintf("%d-core", c.Cores), fmt.Sprintf("%d-core", v.Cores), 1)
	c.Cores, c.BandwidthGBs, c.Variants = v.Cores, v.BandwidthGBs, nil
}

// Decode decodes a chip in the form of the files in chip/data. Every field must be present, no other
// field may be, and the values must be valid.
func Decode(text []byte) (*Chip, error) {
	c, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("chip: %w", err)
	}
	return c, nil
}

// decode decodes a file. Every field must be present, no other field may be, and the values must
// be valid.
func decode(text []byte) (*Chip, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	c := new(Chip)
	if err := dec.Decode(c); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("data after the JSON object")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	if err := complete(reflect.TypeFor[Chip](), fields); err != nil {
		return nil, err
	}
	var fuse map[string]json.RawMessage
	if err := json.Unmarshal(fields["fuse"], &fuse); err != nil {
		return nil, err
	}
	if err := complete(reflect.TypeFor[Fuse](), fuse); err != nil {
		return nil, fmt.Errorf("fuse: %w", err)
	}
	return c, c.check()
}

// complete returns an error that names the first field of a struct type that the object lacks.
func complete(t reflect.Type, object map[string]json.RawMessage) error {
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("json")
		if _, ok := object[name]; !ok {
			return fmt.Errorf("%s: missing", name)
		}
	}
	return nil
}

// Validate checks that the limits are possible and that the tuning respects them. Errors name the
// chip and the field, as it is called in the data files.
func (c *Chip) Validate() error {
	if err := c.check(); err != nil {
		return fmt.Errorf("chip: %s: %w", c.Name, err)
	}
	return nil
}

const (
	maxThreads    = 1024 // per threadgroup; table.Validate has the same limit
	attnThreads   = 256  // largest threadgroup of rope_attn
	singleThreads = 512  // largest threadgroup of gemv's form for one row

	maxRows   = 1 << 16
	maxHeads  = 1 << 16
	maxWave   = 1 << 10
	maxStage  = 1 << 10
	maxMerge  = 1 << 30
	maxShare  = 32
	maxFew    = 32 // rows of gemm_few
	maxAhead  = 1 << 16
	maxCores  = 1 << 16
	maxMemory = 1 << 50
	maxFamily = 99

	// Minimum requirements of gemm_halves on CUDA devices, and on Metal.
	halvesThreads = 384
	halvesMemory  = 199680
	maxRequest    = 1 << 20
	tileMemory    = 32768
)

// check returns an error for the first invalid value of the chip.
func (c *Chip) check() error {
	for _, check := range []func(*Chip) error{
		(*Chip).checkDevice, (*Chip).checkNumbers, (*Chip).checkProducts, (*Chip).checkAttention, (*Chip).checkMemory, (*Chip).checkRates,
	} {
		if err := check(c); err != nil {
			return err
		}
	}
	return nil
}

// checkDevice checks the names and the fields that depend on the kind of device.
func (c *Chip) checkDevice() error {
	switch {
	case c.Name == "" || c.Title == "":
		return errors.New("name or title: missing")
	case !slices.Contains([]string{CPU, Metal, CUDA}, c.Device):
		return fmt.Errorf("device: %q is not %s, %s or %s", c.Device, CPU, Metal, CUDA)
	case c.Device == CPU && (c.SIMDWidth != 1 || c.MaxThreads != 1):
		return errors.New("simd_width and max_threads: a worker of the CPU is one thread")
	case c.WorkerMemory != (c.Device == CPU):
		return fmt.Errorf("worker_memory: %t on a %s device; only workers of the CPU have memory of their own", c.WorkerMemory, c.Device)
	case c.Family < 0 || c.Family > maxFamily || c.Device != Metal && c.Family != 0:
		return fmt.Errorf("family: %d is not an Apple GPU family", c.Family)
	case c.Serial && c.Device != Metal:
		return fmt.Errorf("serial: only metal devices have this mode, not %s", c.Device)
	}
	return nil
}

// bound is the valid range of a number in the data files. If zero is set, 0 is valid too. Unless
// any is set, the number must be a power of two.
type bound struct {
	name      string
	v, lo, hi int
	zero, any bool
}

// check returns an error if the number is out of range.
func (b *bound) check() error {
	if b.zero && b.v == 0 {
		return nil
	}
	if b.v < b.lo || b.v > b.hi {
		or := ""
		if b.zero {
			or = "0 or "
		}
		return fmt.Errorf("%s: %d is not %sin %d..%d", b.name, b.v, or, b.lo, b.hi)
	}
	// Reductions and tilings halve rows and threads.
	if !b.any && b.v&(b.v-1) != 0 {
		return fmt.Errorf("%s: %d is not a power of two", b.name, b.v)
	}
	return nil
}

// checkNumbers checks the range of each number.
func (c *Chip) checkNumbers() error {
	minCores := 1
	if c.Device == CPU {
		minCores = 0
	}
	for _, b := range []bound{
		{name: "simd_width", v: c.SIMDWidth, lo: 1, hi: 128},
		{name: "max_threads", v: c.MaxThreads, lo: c.SIMDWidth, hi: maxThreads},
		{name: "cores", v: c.Cores, lo: minCores, hi: maxCores, any: true},
		{name: "gemv_rows", v: c.GEMVRows, lo: 1, hi: maxRows},
		{name: "gemv_wave", v: c.GEMVWave, lo: 1, hi: maxWave, zero: true, any: true},
		{name: "gemv_limit", v: c.GEMVLimit, lo: c.GEMVRows, hi: maxRows, zero: true, any: true},
		{name: "merge_limit", v: c.MergeLimit, lo: 1, hi: maxMerge, zero: true, any: true},
		{name: "gemv_stage", v: c.GEMVStage, lo: 1, hi: maxStage, zero: true},
		{name: "gemm_rows", v: c.GEMMRows, lo: 1, hi: maxRows},
		{name: "gemm_unit", v: c.GEMMUnit, lo: 1, hi: c.GEMMRows, zero: true},
		{name: "gemm_tile_rows", v: c.GEMMTileRows, lo: 1, hi: maxRows, zero: true},
		{name: "gemm_share", v: c.GEMMShare, lo: 1, hi: maxShare},
		{name: "gemm_narrow", v: c.GEMMNarrow, lo: 1, hi: maxRows, zero: true},
		{name: "prefill_few", v: c.PrefillFew, lo: 1, hi: maxFew, zero: true},
		{name: "gemv_threads", v: c.GEMVThreads, lo: c.SIMDWidth, hi: c.MaxThreads},
		{name: "norm_threads", v: c.NormThreads, lo: c.SIMDWidth, hi: c.MaxThreads},
		{name: "attn_threads", v: c.AttnThreads, lo: c.SIMDWidth, hi: min(c.MaxThreads, attnThreads)},
		{name: "sample_threads", v: c.SampleThreads, lo: c.SIMDWidth, hi: maxThreads},
		{name: "attn_heads", v: c.AttnHeads, lo: 1, hi: maxHeads},
		{name: "attn_tile_rows", v: c.AttnTileRows, lo: 1, hi: maxRows, zero: true},
		{name: "attn_tile_dim", v: c.AttnTileDim, lo: 1, hi: maxRows, zero: true},
		{name: "prefill_chunk", v: c.PrefillChunk, lo: 1, hi: maxRows},
		{name: "logits_rows", v: c.LogitsRows, lo: 1, hi: maxRows},
		{name: "split_span", v: c.SplitSpan, lo: 1, hi: maxRows, zero: c.SplitContext == 0},
		{name: "argmax_part", v: c.ArgmaxPart, lo: 4, hi: maxRows, zero: true},
	} {
		if err := b.check(); err != nil {
			return err
		}
	}
	return nil
}

// checkProducts checks the relations between the parameters of products.
func (c *Chip) checkProducts() error {
	switch {
	case (c.GEMMUnit == 0) != (c.GEMMTileRows == 0):
		return fmt.Errorf("gemm_unit and gemm_tile_rows: %d and %d, want both 0 or neither", c.GEMMUnit, c.GEMMTileRows)
	case c.GEMMUnit != 0 && (c.GEMMUnit%c.SIMDWidth != 0 || c.GEMMRows > c.MaxThreads):
		return fmt.Errorf("gemm_unit: %d rows of %d are not whole SIMD groups of %d threads within %d", c.GEMMUnit, c.GEMMRows, c.SIMDWidth, c.MaxThreads)
	case c.GEMVLimit > 0 && c.GEMVWave == 0:
		return errors.New("gemv_limit: needs gemv_wave")
	case c.GEMVSingle < 0 || uint64(c.GEMVSingle) > c.ThreadgroupMemory:
		return fmt.Errorf("gemv_single: %d is not in 0..%d, the bytes of threadgroup memory", c.GEMVSingle, c.ThreadgroupMemory)
	case c.GEMVSingle > 0 && (c.Device != CUDA || c.GEMVAhead == 0):
		return errors.New("gemv_single: needs gemv_ahead on a CUDA device")
	case c.GEMVSingle > 0 && (c.GEMVSingleThreads < c.SIMDWidth || c.GEMVSingleThreads > singleThreads || c.GEMVSingleThreads%c.SIMDWidth != 0):
		return fmt.Errorf("gemv_single_threads: %d is not a multiple of %d up to %d", c.GEMVSingleThreads, c.SIMDWidth, singleThreads)
	case c.GEMVSingle == 0 && c.GEMVSingleThreads != 0, c.GEMVSingle == 0 && c.GEMVSingleWide != 0:
		return errors.New("gemv_single_threads and gemv_single_wide: need gemv_single")
	case c.GEMVSingleWide < 0:
		return fmt.Errorf("gemv_single_wide: %d is negative", c.GEMVSingleWide)
	case c.GEMVHalf < 0 || c.GEMVHalfMerge < 0:
		return fmt.Errorf("gemv_half and gemv_half_merge: %d and %d, want no negative number", c.GEMVHalf, c.GEMVHalfMerge)
	case c.GEMVSingle == 0 && (c.GEMVHalf != 0 || c.GEMVHalfMerge != 0):
		return errors.New("gemv_half and gemv_half_merge: need gemv_single")
	case c.ActQ8Rows && !c.ActQ8:
		return errors.New("act_q8_rows: needs act_q8")
	case c.Fuse.SiLUDownChunk && !c.Fuse.SiLUDown:
		return errors.New("fuse: silu_down_chunk: needs silu_down")
	}
	for i, n := range c.BatchRows {
		if n < 1 || n > maxRows || i > 0 && n <= c.BatchRows[i-1] {
			return fmt.Errorf("batch_rows: %v are not ascending numbers from 1 to %d", c.BatchRows, maxRows)
		}
	}
	if len(c.BatchRows) == 0 {
		return errors.New("batch_rows: is empty")
	}
	if n := c.BatchSlots; n != 0 && (n < 2 || n > 4 || c.AttnTileRows == 0 || c.Device != CUDA) {
		return fmt.Errorf("batch_slots: %d is not 0, or 2 to 4 on a CUDA device with attn_tile", n)
	}
	if err := c.checkHalves(); err != nil {
		return err
	}
	return checkAhead("gemv_ahead", c.GEMVAhead)
}

// checkHalves checks that the device can run gemm_halves.
func (c *Chip) checkHalves() error {
	switch n := c.GEMMHalves; {
	case c.BatchFew && (n == 0 || c.Device != CUDA):
		return errors.New("batch_few: needs gemm_halves on a CUDA device")
	case c.RequestAhead != 0 && (n == 0 || c.Device != CUDA):
		return errors.New("request_ahead: needs gemm_halves on a CUDA device")
	case c.RequestAhead < 0 || c.RequestAhead > maxRequest:
		return fmt.Errorf("request_ahead: %d is not in 0..%d", c.RequestAhead, maxRequest)
	case n == 0 && c.PrefillFew > 0:
		return errors.New("prefill_few: needs gemm_halves")
	case n == 0:
		return nil
	case c.Device == CUDA && (n != halvesThreads || c.ThreadgroupMemory < halvesMemory || c.MaxThreads < halvesThreads):
		return fmt.Errorf("gemm_halves: %d, want %d threads and %d bytes of threadgroup memory", n, halvesThreads, halvesMemory)
	case c.Device == Metal && (n != 64 && n != 128 && n != 256 || n > c.MaxThreads || c.ThreadgroupMemory < tileMemory || c.GEMMTileRows < 8):
		return fmt.Errorf("gemm_halves: %d, want 64, 128 or 256 threads, %d bytes of threadgroup memory, and at least 8 gemm_tile_rows", n, tileMemory)
	case c.Device == CPU:
		return fmt.Errorf("gemm_halves: a %s device has no such kernel", CPU)
	}
	return nil
}

// checkAttention checks the relations between the parameters of attention.
func (c *Chip) checkAttention() error {
	if (c.AttnTileRows == 0) != (c.AttnTileDim == 0) {
		return fmt.Errorf("attn_tile_rows and attn_tile_dim: %d and %d, want both 0 or neither", c.AttnTileRows, c.AttnTileDim)
	}
	if c.SplitContext < c.SplitSpan || c.SplitContext < 0 {
		return fmt.Errorf("split_context: %d is less than split_span %d", c.SplitContext, c.SplitSpan)
	}
	return checkAhead("attn_ahead", c.AttnAhead)
}

// checkAhead checks the bytes into which a SIMD group prefetches.
func checkAhead(field string, n int) error {
	if n < 0 || n > maxAhead || n%16 != 0 {
		return fmt.Errorf("%s: %d is not a multiple of 16 up to %d", field, n, maxAhead)
	}
	return nil
}

// checkMemory checks the sizes in bytes.
func (c *Chip) checkMemory() error {
	if c.ThreadgroupMemory == 0 || c.ThreadgroupMemory > maxMemory {
		return fmt.Errorf("threadgroup_memory: %d is not in 1..%d", c.ThreadgroupMemory, uint64(maxMemory))
	}
	if c.MaxBufferBytes == 0 || c.MaxBufferBytes > maxMemory {
		return fmt.Errorf("max_buffer_bytes: %d is not in 1..%d", c.MaxBufferBytes, uint64(maxMemory))
	}
	return nil
}

// checkRates checks the bandwidth, the variants and the length of a chain.
func (c *Chip) checkRates() error {
	if !(c.BandwidthGBs > 0) || math.IsInf(c.BandwidthGBs, 0) {
		return fmt.Errorf("bandwidth_gbs: %v is not positive", c.BandwidthGBs)
	}
	for i, v := range c.Variants {
		if v.Cores < 1 || v.Cores >= c.Cores || i > 0 && v.Cores <= c.Variants[i-1].Cores || !(v.BandwidthGBs > 0) || v.BandwidthGBs > c.BandwidthGBs {
			return fmt.Errorf("variants: %d cores with %v GB/s are not between the one before and the whole chip", v.Cores, v.BandwidthGBs)
		}
	}
	if !(c.ChainMS > 0) || math.IsInf(c.ChainMS, 0) {
		return fmt.Errorf("chain_ms: %v is not positive", c.ChainMS)
	}
	return nil
}

// Limits of a slot besides the longest buffer. On an Apple GPU offsets are below 4 GiB, and a
// tensor that is used in place may begin and end anywhere in a page, which has at most 16 KiB.
const (
	largestMetal = 4 << 30
	pages        = 2 * 16 << 10
)

// LargestSlot returns the largest size of a slot in bytes. On an Apple GPU a slot must fit in one
// buffer and end below 4 GiB wherever it begins; on other devices it is the longest buffer.
func (c *Chip) LargestSlot() uint64 {
	if c.Device != Metal {
		return c.MaxBufferBytes
	}
	n := min(c.MaxBufferBytes, largestMetal)
	return n - min(pages, n/2)
}

// Fingerprint returns the SHA-256 of the fields that a table depends on. It excludes the title,
// the comment, the bandwidth, the family, the variants, the length of a chain and Serial, and
// includes LargestSlot instead of the longest buffer, so that the same table serves Macs with
// different amounts of memory.
func (c *Chip) Fingerprint() [32]byte {
	b := []byte("pianola chip 2\x00")
	for _, s := range []string{c.Name, c.Device} {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, n := range []uint64{
		uint64(c.SIMDWidth), uint64(c.MaxThreads), c.ThreadgroupMemory, uint64(c.Cores), c.LargestSlot(),
		uint64(c.GEMVRows), uint64(c.GEMVWave), uint64(c.GEMVStage), uint64(c.GEMVAhead),
		uint64(c.GEMMRows), uint64(c.GEMMUnit), uint64(c.GEMMTileRows), uint64(c.GEMMShare),
		uint64(c.GEMVThreads), uint64(c.NormThreads), uint64(c.AttnThreads), uint64(c.SampleThreads),
		uint64(c.AttnHeads), uint64(c.AttnAhead), uint64(c.AttnTileRows), uint64(c.AttnTileDim),
		uint64(c.PrefillChunk), uint64(c.GEMMHalves), uint64(c.PrefillFew), uint64(c.LogitsRows), uint64(c.SplitContext), uint64(c.SplitSpan), uint64(c.ArgmaxPart),
	} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	for _, n := range c.BatchRows {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	f := &c.Fuse
	for _, flag := range []bool{
		c.WorkerMemory, c.ActQ8, c.ActQ8Rows, c.TileWeights,
		f.QKV, f.GateUp, f.ResidualNorm, f.RopeKV, f.SiLUDown, f.SiLUDownChunk, f.RopeAttn, f.ProductAdd, f.NormProduct, f.MergeProduct,
	} {
		bit := byte(0)
		if flag {
			bit = 1
		}
		b = append(b, bit)
	}
	if c.BatchFew {
		b = append(b, "batch few"...)
	}
	if c.BatchSlots > 0 {
		b = fmt.Appendf(b, "slots %d", c.BatchSlots)
	}
	if c.RequestAhead > 0 {
		b = fmt.Appendf(b, "request %d", c.RequestAhead)
	}
	if c.GEMMNarrow > 0 {
		b = fmt.Appendf(b, "gemm narrow %d", c.GEMMNarrow)
	}
	if c.GEMVSingle > 0 || c.GEMVSingleThreads > 0 || c.GEMVSingleWide > 0 {
		b = fmt.Appendf(b, "gemv single %d %d %d", c.GEMVSingle, c.GEMVSingleThreads, c.GEMVSingleWide)
	}
	if c.GEMVHalf > 0 || c.GEMVHalfMerge > 0 {
		b = fmt.Appendf(b, "gemv half %d %d", c.GEMVHalf, c.GEMVHalfMerge)
	}
	if c.GEMVLimit > 0 || c.MergeLimit > 0 || f.Gated || f.Scaled {
		// Chips without these fields keep the fingerprints of their rolls.
		b = fmt.Appendf(b, "%d %d %t %t", c.GEMVLimit, c.MergeLimit, f.Gated, f.Scaled)
	}
	return sha256.Sum256(b)
}
