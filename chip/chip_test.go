package chip

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestLookup(t *testing.T) {
	want := []string{
		"cpu", "cuda", "h200",
		"m1", "m1-7", "m1-max", "m1-max-24", "m1-pro", "m1-pro-14", "m1-ultra", "m1-ultra-48",
		"m2", "m2-8", "m2-max", "m2-max-30", "m2-pro", "m2-pro-16", "m2-ultra", "m2-ultra-60",
		"m3", "m3-8", "m3-max", "m3-max-30", "m3-pro", "m3-pro-14", "m3-ultra", "m3-ultra-60",
		"m4", "m4-8", "m4-max", "m4-max-32", "m4-pro", "m4-pro-16",
		"m5", "m5-8", "m5-max", "m5-max-32", "m5-pro", "m5-pro-16",
	}
	if got := Names(); !slices.Equal(got, want) {
		t.Fatalf("names %q, want %q", got, want)
	}
	seen := map[[32]byte]string{}
	for _, name := range want {
		c, err := Lookup(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
		if other, ok := seen[c.Fingerprint()]; ok {
			t.Errorf("%s and %s have one fingerprint", name, other)
		}
		seen[c.Fingerprint()] = name
		for _, word := range []string{"Guessed", "easured"} {
			if !strings.Contains(c.Comment, word) {
				t.Errorf("%s: the comment does not mention %q", name, word)
			}
		}
		device := Metal
		switch name {
		case "cpu":
			device = CPU
		case "h200", "cuda":
			device = CUDA
		}
		if !strings.Contains(c.Title, fmt.Sprintf("(%d-core GPU)", c.Cores)) && device == Metal {
			t.Errorf("%s: %q has %d cores", name, c.Title, c.Cores)
		}
		if c.Device != device || (c.Device == Metal) != (c.Family >= 7) || (c.Device == Metal) == c.ActQ8 || (c.Device == CPU) != (c.Cores == 0) {
			t.Errorf("%s: device %s, ActQ8 %v, %d cores", name, c.Device, c.ActQ8, c.Cores)
		}
	}
}

func TestLookupCopies(t *testing.T) {
	a, err := Lookup("m4-pro")
	if err != nil {
		t.Fatal(err)
	}
	a.Cores = 16
	if b, err := Lookup("m4-pro"); err != nil || b.Cores != 20 || b.BandwidthGBs != 273 {
		t.Errorf("got %+v, %v", b, err)
	}
}

func TestUnknown(t *testing.T) {
	for _, name := range []string{"", "m9", "../data/m1", "m1.json", strings.Repeat("x", 1000)} {
		_, err := Lookup(name)
		var unknown *UnknownError
		if !errors.As(err, &unknown) || unknown.Name != name || !slices.Equal(unknown.Known, Names()) {
			t.Errorf("%.20q: %v", name, err)
		}
		if len(err.Error()) > 450 || !strings.Contains(err.Error(), "m4-pro") {
			t.Errorf("message %q", err)
		}
	}
}

// TestFingerprintCovers checks that each field changes the fingerprint or is in the list of fields that do not affect a table.
func TestFingerprintCovers(t *testing.T) {
	idle := []string{"Title", "Comment", "BandwidthGBs", "ChainMS", "Serial", "Family", "Variants", "MaxBufferBytes"} // the last: below
	c, err := Lookup("m4-pro")
	if err != nil {
		t.Fatal(err)
	}
	base := c.Fingerprint()
	var walk func(v reflect.Value, path string)
	walk = func(v reflect.Value, path string) {
		old := reflect.ValueOf(v.Interface())
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i), v.Type().Field(i).Name)
			}
			return
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Int:
			v.SetInt(v.Int() + 1)
		case reflect.Uint64:
			v.SetUint(v.Uint() + 1)
		case reflect.Float64:
			v.SetFloat(v.Float() + 1)
		case reflect.Slice:
			v.Set(reflect.Zero(v.Type()))
		default:
			t.Fatalf("%s has kind %s", path, v.Kind())
		}
		if changed := c.Fingerprint() != base; changed == slices.Contains(idle, path) {
			t.Errorf("%s: the fingerprint changed: %v", path, changed)
		}
		v.Set(old)
	}
	walk(reflect.ValueOf(c).Elem(), "")
	if c.Fingerprint() != base {
		t.Error("the walk left a change")
	}
	// A buffer size above the largest slot does not change the table; a smaller one does.
	c.MaxBufferBytes = largestMetal
	if c.Fingerprint() != base || c.LargestSlot() >= largestMetal {
		t.Errorf("slots of %d bytes", c.LargestSlot())
	}
	c.MaxBufferBytes = 1 << 30
	if c.Fingerprint() == base || c.LargestSlot() >= 1<<30 {
		t.Errorf("slots of %d bytes in buffers of 1 GiB", c.LargestSlot())
	}
}

func TestDecodeErrors(t *testing.T) {
	text, err := os.ReadFile("data/m4-pro.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ old, replacement, want string }{
		{`"cores"`, `"core"`, `unknown field "core"`},
		{`"cores": 20,`, ``, "cores: missing"},
		{`"qkv": true,`, ``, "fuse: qkv: missing"},
		{`"cores": 20`, `"cores": 0`, "cores: 0 is not in 1..65536"},
		{`"cores": 20`, `"cores": 1.5`, "cores"},
		{`"metal"`, `"vulkan"`, `device: "vulkan" is not cpu, metal or cuda`},
		{`"metal"`, `"cpu"`, "simd_width and max_threads: a worker of the CPU is one thread"},
		{`"m4-pro"`, `""`, "name or title: missing"},
		{`"family": 9`, `"family": -1`, "family: -1 is not an Apple GPU family"},
		{`"cores": 16`, `"cores": 20`, "variants: 20 cores with 273 GB/s are not between"},
		{`"bandwidth_gbs": 273}`, `"bandwidth_gbs": 274}`, "variants: 16 cores with 274 GB/s are not between"},
		{`"variants": [{"cores": 16, "bandwidth_gbs": 273}],`, ``, "variants: missing"},
		{`"simd_width": 32`, `"simd_width": 24`, "simd_width: 24 is not a power of two"},
		{`"max_threads": 1024`, `"max_threads": 2048`, "max_threads: 2048 is not in 32..1024"},
		{`"gemv_threads": 256`, `"gemv_threads": 16`, "gemv_threads: 16 is not in 32..1024"},
		{`"gemv_rows": 8`, `"gemv_rows": -8`, "gemv_rows: -8 is not in 1..65536"},
		{`"prefill_chunk": 512`, `"prefill_chunk": 500`, "prefill_chunk: 500 is not a power of two"},
		{`"split_span": 256`, `"split_span": 0`, "split_span: 0 is not in 1..65536"},
		{`"split_span": 256`, `"split_span": 100`, "split_span: 100 is not a power of two"},
		{`"split_context": 1024`, `"split_context": 0`, "split_context: 0 is less than split_span 256"},
		{`"split_context": 1024`, `"split_context": -1`, "split_context: -1 is less than split_span 256"},
		{`"act_q8_rows": false`, `"act_q8_rows": true`, "act_q8_rows: needs act_q8"},
		{`"worker_memory": false`, `"worker_memory": true`, "worker_memory: true on a metal device"},
		{`"sample_threads": 1024`, `"sample_threads": 16`, "sample_threads: 16 is not in 32..1024"},
		{`"gemv_wave": 2`, `"gemv_wave": -1`, "gemv_wave: -1 is not 0 or in 1..1024"},
		{`"gemv_wave": 2`, `"gemv_wave": 0`, "gemv_limit: needs gemv_wave"},
		{`"gemv_limit": 256`, `"gemv_limit": 4`, "gemv_limit: 4 is not 0 or in 8..65536"},
		{`"merge_limit": 6553600`, `"merge_limit": -1`, "merge_limit: -1 is not 0 or in 1..1073741824"},
		{`"gemv_stage": 2`, `"gemv_stage": 3`, "gemv_stage: 3 is not a power of two"},
		{`"gemm_unit": 32`, `"gemm_unit": 0`, "gemm_unit and gemm_tile_rows: 0 and 64, want both 0 or neither"},
		{`"gemm_unit": 32`, `"gemm_unit": 512`, "gemm_unit: 512 is not 0 or in 1..256"},
		{`"gemm_unit": 32`, `"gemm_unit": 16`, "gemm_unit: 16 rows of 256 are not whole SIMD groups of 32 threads within 1024"},
		{`"gemm_rows": 256`, `"gemm_rows": 2048`, "gemm_unit: 32 rows of 2048 are not whole SIMD groups of 32 threads within 1024"},
		{`"gemm_tile_rows": 64`, `"gemm_tile_rows": 65`, "gemm_tile_rows: 65 is not a power of two"},
		{`"gemm_share": 1`, `"gemm_share": 0`, "gemm_share: 0 is not in 1..32"},
		{`"attn_heads": 4`, `"attn_heads": 0`, "attn_heads: 0 is not in 1..65536"},
		{`"attn_tile_rows": 8`, `"attn_tile_rows": 0`, "attn_tile_rows and attn_tile_dim: 0 and 256, want both 0 or neither"},
		{`"silu_down": true`, `"silu_down": false`, ""},
		{`"silu_down_chunk": false`, `"silu_down_chunk": true`, ""},
		{`"split_context": 1024`, `"split_context": 128`, "split_context: 128 is less than split_span 256"},
		{`"gemm_halves": 256`, `"gemm_halves": 384`, "gemm_halves: 384, want 64, 128 or 256 threads, 32768 bytes of threadgroup memory, and at least 8 gemm_tile_rows"},
		{`"batch_few": false`, `"batch_few": true`, "batch_few: needs gemm_halves on a CUDA device"},
		{`"batch_slots": 0`, `"batch_slots": 2`, "batch_slots: 2 is not 0, or 2 to 4 on a CUDA device with attn_tile"},
		{`"request_ahead": 0`, `"request_ahead": 1024`, "request_ahead: needs gemm_halves on a CUDA device"},
		{`"gemv_half": 0`, `"gemv_half": 1`, "gemv_half and gemv_half_merge: need gemv_single"},
		{`"gemv_half_merge": 0`, `"gemv_half_merge": -1`, "gemv_half and gemv_half_merge: 0 and -1, want no negative number"},
		{`"gemm_halves": 256`, `"gemm_halves": 0`, "prefill_few: needs gemm_halves"},
		{`"argmax_part": 2048`, `"argmax_part": 2`, "argmax_part: 2 is not 0 or in 4..65536"},
		{`"threadgroup_memory": 32768`, `"threadgroup_memory": 0`, "gemm_halves: 256, want"},
		{`"max_buffer_bytes": 34359738368`, `"max_buffer_bytes": 18446744073709551615`, "max_buffer_bytes: 18446744073709551615 is not in 1"},
		{`"bandwidth_gbs": 273`, `"bandwidth_gbs": 0`, "bandwidth_gbs: 0 is not positive"},
		{`"chain_ms": 50`, `"chain_ms": -1`, "chain_ms: -1 is not positive"},
		{"\n}\n", "\n}\n{}", "data after the JSON object"},
	} {
		edited := bytes.Replace(text, []byte(test.old), []byte(test.replacement), 1)
		if bytes.Equal(edited, text) {
			t.Errorf("%s is not in the file", test.old)
			continue
		}
		switch _, err := decode(edited); {
		case test.want == "":
			if err != nil {
				t.Errorf("%s: %v", test.replacement, err)
			}
		case err == nil || !strings.Contains(err.Error(), test.want):
			t.Errorf("%s: got %v, want %s", test.replacement, err, test.want)
		}
	}
	c, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	c.Fuse.SiLUDownChunk, c.Fuse.SiLUDown = true, false
	if err := c.Validate(); err == nil || err.Error() != "chip: m4-pro: fuse: silu_down_chunk: needs silu_down" {
		t.Errorf("silu_down_chunk: %v", err)
	}
	c.Fuse = Fuse{}
	c.BandwidthGBs = math.NaN()
	if err := c.Validate(); err == nil || err.Error() != "chip: m4-pro: bandwidth_gbs: NaN is not positive" {
		t.Errorf("NaN: %v", err)
	}
	if c, err = Lookup("cpu"); err != nil {
		t.Fatal(err)
	}
	c.Serial = true
	if err := c.Validate(); err == nil || err.Error() != "chip: cpu: serial: only metal devices have this mode, not cpu" {
		t.Errorf("serial: %v", err)
	}
}

// TestDecode decodes a file, and gets an error for one that lacks a field.
func TestDecode(t *testing.T) {
	text, err := os.ReadFile("data/h200.json")
	if err != nil {
		t.Fatal(err)
	}
	want, err := Lookup("h200")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(text)
	if err != nil || got.Fingerprint() != want.Fingerprint() {
		t.Errorf("%v", err)
	}
	if _, err := Decode(bytes.Replace(text, []byte(`"gemv_rows"`), []byte(`"rows"`), 1)); err == nil || !strings.HasPrefix(err.Error(), "chip: ") {
		t.Errorf("%v", err)
	}
}

func ExampleLookup() {
	c, err := Lookup("m4-pro")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Title, c.BandwidthGBs, "GB/s")
	// Output: Apple M4 Pro (20-core GPU) 273 GB/s
}
