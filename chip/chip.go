// Package chip holds devices' limits and tuning as data, one JSON file each in
// data/. It probes nothing and knows no kernel: a device that finds other limits
// than its file has changes its copy, and the compiler reads the result.
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

// Chip is what the compiler knows about a device.
type Chip struct {
	Name   string `json:"name"`   // "m4-pro"
	Title  string `json:"title"`  // "Apple M4 Pro (20-core GPU)"
	Device string `json:"device"` // CPU, Metal or CUDA
	// Comment says which figures are published or measured, and that the rest
	// are guesses that wait for a measurement.
	Comment string `json:"comment"`

	Family            int     `json:"family"`             // of Apple's GPUs: 9 is Apple9; 0 on other devices
	SIMDWidth         int     `json:"simd_width"`         // lanes of a SIMD group; 1 on the CPU, where a threadgroup is one worker
	MaxThreads        int     `json:"max_threads"`        // a threadgroup's limit
	ThreadgroupMemory uint64  `json:"threadgroup_memory"` // a threadgroup's limit, bytes
	Cores             int     `json:"cores"`              // GPU cores or multiprocessors; 0: the team of workers decides
	BandwidthGBs      float64 `json:"bandwidth_gbs"`      // memory's, 10^9 bytes a second
	MaxBufferBytes    uint64  `json:"max_buffer_bytes"`   // of one buffer

	// Variants are what the chip is sold as too, with fewer cores. Lookup has them
	// by the chip's name and their cores, as m4-max-32; a variant has none.
	Variants []Variant `json:"variants"`

	// ActQ8 makes kernels for integer weights quantise their activations to 8
	// bits in blocks of 32.
	ActQ8 bool `json:"act_q8"`
	// TileWeights repacks matrices of such products to dtype.Tiled16 at load,
	// where their type and shape allow.
	TileWeights bool `json:"tile_weights"`

	GEMVRows     int `json:"gemv_rows"`     // output rows that a threadgroup computes for few columns
	GEMMRows     int `json:"gemm_rows"`     // output rows that a threadgroup computes for a chunk
	GEMVThreads  int `json:"gemv_threads"`  // a threadgroup's, as the next two
	NormThreads  int `json:"norm_threads"`  //
	AttnThreads  int `json:"attn_threads"`  //
	PrefillChunk int `json:"prefill_chunk"` // rows of the prefill program
	LogitsRows   int `json:"logits_rows"`   // rows of a block of the all-rows logits program

	// GEMVAhead is how many bytes of threadgroup memory each SIMD group of a
	// gemv threadgroup has for weights that are on their way there; 0 where they
	// are loaded to registers alone. Kernels use up to 10,240.
	GEMVAhead int `json:"gemv_ahead"`

	// Where the KV capacity is above SplitContext, the positions of a row are
	// divided evenly among as many threadgroups as the cores can use, SplitSpan
	// positions each at least, and what they make is combined afterwards. Both are
	// 0 on a device that never splits.
	SplitContext int `json:"split_context"`
	SplitSpan    int `json:"split_span"`

	// ArgmaxPart is how many logits a threadgroup of argmax takes, where the
	// vocabulary is larger; the parts' are then compared. 0: one takes all.
	ArgmaxPart int `json:"argmax_part"`

	// GEMMHalves makes float16 of the rows of a chunk by a command of its own, once
	// for all threadgroups of the products that read them, where weights are float16
	// or bfloat16. It pays where warpgroups multiply (compute capability 9.0), and
	// needs 197,632 bytes of threadgroup memory.
	GEMMHalves bool `json:"gemm_halves"`

	Fuse    Fuse    `json:"fuse"`
	ChainMS float64 `json:"chain_ms"` // a chain's length at most, milliseconds

	// Serial makes Metal run a chain's commands one after another, in place of
	// barriers where the table has them.
	Serial bool `json:"serial"`
}

// Variant is what differs in a chip with fewer cores.
type Variant struct {
	Cores        int     `json:"cores"`
	BandwidthGBs float64 `json:"bandwidth_gbs"`
}

// Fuse says which commands the compiler makes one of.
type Fuse struct {
	QKV          bool `json:"qkv"`           // the three projections of attention
	GateUp       bool `json:"gate_up"`       // the two projections that widen
	ResidualNorm bool `json:"residual_norm"` // adding to the residual stream and the norm after it
	RopeKV       bool `json:"rope_kv"`       // RoPE of Q and K and the KV cache's writes
	SiLUDown     bool `json:"silu_down"`     // the activation and the projection that narrows
	// In programs of one row:
	RopeAttn    bool `json:"rope_attn"`    // what rope_kv makes one, and attention
	ProductAdd  bool `json:"product_add"`  // a product and adding it to the residual stream
	NormProduct bool `json:"norm_product"` // a norm and each of the products that read it

	MergeProduct bool `json:"merge_product"` // merging the splits of attention and the product that reads it
}

//go:embed data/*.json
var data embed.FS

// UnknownError says that there is no chip of a name.
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
		if c, err := load(name); err == nil { // tests load each
			for _, v := range c.Variants {
				names = append(names, c.variantName(v.Cores))
			}
		}
	}
	slices.Sort(names)
	return names
}

// files returns the names of the chips that have a file.
func files() []string {
	names, _ := fs.Glob(data, "data/*.json") // fails on a malformed pattern alone
	for i, file := range names {
		names[i] = strings.TrimSuffix(strings.TrimPrefix(file, "data/"), ".json")
	}
	return names
}

// Lookup returns a copy of the chip of a name, or of a variant of it. The error
// is an *UnknownError if there is none.
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

// load reads the file of a name.
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

// become makes c one of its variants.
func (c *Chip) become(v Variant) {
	c.Name, c.Title = c.variantName(v.Cores), strings.Replace(c.Title, fmt.Sprintf("%d-core", c.Cores), fmt.Sprintf("%d-core", v.Cores), 1)
	c.Cores, c.BandwidthGBs, c.Variants = v.Cores, v.BandwidthGBs, nil
}

// decode reads a file that has every field, no other, and sound values.
func decode(text []byte) (*Chip, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	c := new(Chip)
	if err := dec.Decode(c); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
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

// complete reports the first field of a struct type that an object lacks.
func complete(t reflect.Type, object map[string]json.RawMessage) error {
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("json")
		if _, ok := object[name]; !ok {
			return fmt.Errorf("%s: missing", name)
		}
	}
	return nil
}

// Validate verifies that the limits are possible and the tuning keeps to them.
// An error names the chip and the field by its name in the data files.
func (c *Chip) Validate() error {
	if err := c.check(); err != nil {
		return fmt.Errorf("chip: %s: %w", c.Name, err)
	}
	return nil
}

const (
	maxRows   = 1 << 16
	maxAhead  = 1 << 16
	maxCores  = 1 << 16
	maxMemory = 1 << 50
	maxFamily = 99

	// What gemm_halves needs at least.
	halvesThreads = 256
	halvesMemory  = 197632
)

func (c *Chip) check() error {
	if c.Name == "" || c.Title == "" {
		return errors.New("name or title: missing")
	}
	if !slices.Contains([]string{CPU, Metal, CUDA}, c.Device) {
		return fmt.Errorf("device: %q is not %s, %s or %s", c.Device, CPU, Metal, CUDA)
	}
	minCores := 1
	if c.Device == CPU {
		minCores = 0
		if c.SIMDWidth != 1 || c.MaxThreads != 1 {
			return errors.New("simd_width and max_threads: a worker of the CPU is one thread")
		}
	}
	for _, f := range []struct {
		name      string
		v, lo, hi int
	}{
		{"simd_width", c.SIMDWidth, 1, 128},
		{"max_threads", c.MaxThreads, c.SIMDWidth, 1024},
		{"cores", c.Cores, minCores, maxCores},
		{"gemv_rows", c.GEMVRows, 1, maxRows},
		{"gemm_rows", c.GEMMRows, 1, maxRows},
		{"gemv_threads", c.GEMVThreads, c.SIMDWidth, c.MaxThreads},
		{"norm_threads", c.NormThreads, c.SIMDWidth, c.MaxThreads},
		{"attn_threads", c.AttnThreads, c.SIMDWidth, c.MaxThreads},
		{"prefill_chunk", c.PrefillChunk, 1, maxRows},
		{"logits_rows", c.LogitsRows, 1, maxRows},
	} {
		if f.v < f.lo || f.v > f.hi {
			return fmt.Errorf("%s: %d is not in %d..%d", f.name, f.v, f.lo, f.hi)
		}
		// Rows and threads are halved in reductions and tilings; cores are not.
		if f.name != "cores" && f.v&(f.v-1) != 0 {
			return fmt.Errorf("%s: %d is not a power of two", f.name, f.v)
		}
	}
	if c.SplitContext != 0 || c.SplitSpan != 0 {
		if c.SplitSpan < 1 || c.SplitSpan > maxRows || c.SplitSpan&(c.SplitSpan-1) != 0 {
			return fmt.Errorf("split_span: %d is not a power of two up to %d", c.SplitSpan, maxRows)
		}
		if c.SplitContext < c.SplitSpan {
			return fmt.Errorf("split_context: %d is less than split_span %d", c.SplitContext, c.SplitSpan)
		}
	}
	if n := c.GEMVAhead; n < 0 || n > maxAhead || n%16 != 0 {
		return fmt.Errorf("gemv_ahead: %d is not a multiple of 16 up to %d", n, maxAhead)
	}
	if n := c.ArgmaxPart; n != 0 && (n < 4 || n > maxRows || n&(n-1) != 0) {
		return fmt.Errorf("argmax_part: %d is not a power of two from 4 to %d", n, maxRows)
	}
	if c.GEMMHalves && (c.Device != CUDA || c.ThreadgroupMemory < halvesMemory || c.MaxThreads < halvesThreads) {
		return fmt.Errorf("gemm_halves: not a %s device that has %d threads and %d bytes of threadgroup memory", CUDA, halvesThreads, halvesMemory)
	}
	if c.ThreadgroupMemory == 0 || c.ThreadgroupMemory > maxMemory {
		return fmt.Errorf("threadgroup_memory: %d is not in 1..%d", c.ThreadgroupMemory, uint64(maxMemory))
	}
	if c.MaxBufferBytes == 0 || c.MaxBufferBytes > maxMemory {
		return fmt.Errorf("max_buffer_bytes: %d is not in 1..%d", c.MaxBufferBytes, uint64(maxMemory))
	}
	if !(c.BandwidthGBs > 0) || math.IsInf(c.BandwidthGBs, 0) {
		return fmt.Errorf("bandwidth_gbs: %v is not positive", c.BandwidthGBs)
	}
	if c.Family < 0 || c.Family > maxFamily || c.Device != Metal && c.Family != 0 {
		return fmt.Errorf("family: %d is none of Apple's GPUs", c.Family)
	}
	for i, v := range c.Variants {
		if v.Cores < 1 || v.Cores >= c.Cores || i > 0 && v.Cores <= c.Variants[i-1].Cores || !(v.BandwidthGBs > 0) || v.BandwidthGBs > c.BandwidthGBs {
			return fmt.Errorf("variants: %d cores with %v GB/s are not between the one before and the whole chip", v.Cores, v.BandwidthGBs)
		}
	}
	if !(c.ChainMS > 0) || math.IsInf(c.ChainMS, 0) {
		return fmt.Errorf("chain_ms: %v is not positive", c.ChainMS)
	}
	if c.Serial && c.Device != Metal {
		return fmt.Errorf("serial: %s devices have no such mode", c.Device)
	}
	return nil
}

// What bounds a slot beside the longest buffer: no offset on an Apple GPU passes
// 4 GiB, and a tensor that stays where a file has it begins and ends anywhere in
// a page, of 16 KiB at most.
const (
	largestMetal = 4 << 30
	pages        = 2 * 16 << 10
)

// LargestSlot returns how many bytes a slot has at most: on an Apple GPU what is
// within one buffer and below 4 GiB of it wherever it begins, elsewhere the
// longest buffer.
func (c *Chip) LargestSlot() uint64 {
	if c.Device != Metal {
		return c.MaxBufferBytes
	}
	n := min(c.MaxBufferBytes, largestMetal)
	return n - min(pages, n/2)
}

// Fingerprint returns the SHA-256 of what a table depends on: all but the title,
// the comment, the bandwidth, the family, the variants, the chain's length and
// whether it is serial, which others look at, and the longest buffer only as
// LargestSlot has it, so that a table serves Macs with more and less memory.
func (c *Chip) Fingerprint() [32]byte {
	b := []byte("pianola chip 1\x00")
	for _, s := range []string{c.Name, c.Device} {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, n := range []uint64{
		uint64(c.SIMDWidth), uint64(c.MaxThreads), c.ThreadgroupMemory, uint64(c.Cores), c.LargestSlot(),
		uint64(c.GEMVRows), uint64(c.GEMMRows), uint64(c.GEMVThreads), uint64(c.NormThreads), uint64(c.AttnThreads),
		uint64(c.PrefillChunk), uint64(c.LogitsRows), uint64(c.SplitContext), uint64(c.SplitSpan), uint64(c.ArgmaxPart), uint64(c.GEMVAhead),
	} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	for _, flag := range []bool{
		c.ActQ8, c.TileWeights, c.Fuse.QKV, c.Fuse.GateUp, c.Fuse.ResidualNorm, c.Fuse.RopeKV, c.Fuse.SiLUDown, c.Fuse.RopeAttn,
		c.Fuse.ProductAdd, c.Fuse.NormProduct, c.Fuse.MergeProduct, c.GEMMHalves,
	} {
		bit := byte(0)
		if flag {
			bit = 1
		}
		b = append(b, bit)
	}
	return sha256.Sum256(b)
}
