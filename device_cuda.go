//go:build !nocuda

package pianola

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/cuda/kernels"
	"github.com/pianola-engine/pianola/replay/cuda"
)

// cudaDevice returns the CUDA device.
func cudaDevice() *backend {
	return &backend{
		device: DeviceCUDA, chosen: 2,
		open: func(o *Options) (*target, error) {
			return newCUDA(o.Mode, cuda.Options{Modules: cudaModules(), Cache: o.CUDA.cache(), Capability: o.CUDA.Capability})
		},
		status: func() DeviceStatus { return cudaStatus(cuda.Options{Modules: cudaModules()}) },
	}
}

// cache returns the cache directory, or "" for none.
func (o *CUDAOptions) cache() string {
	switch {
	case o.NoCache:
		return ""
	case o.CacheDir != "":
		return o.CacheDir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "pianola", "cuda")
}

// newCUDA opens the NVIDIA GPU in a mode, which replaces o.Mode.
func newCUDA(mode Mode, o cuda.Options) (*target, error) {
	o.Mode = string(mode)
	d, err := cuda.New(o)
	if err != nil {
		return nil, unavailable(DeviceCUDA, err)
	}
	c, err := cudaChip(d.GPU())
	return &target{dev: d, device: DeviceCUDA, chip: c, mode: Mode(d.Mode()), free: d.FreeMemory}, err
}

// cudaChip returns the chip data of a GPU: its own file if there is one, else the generic CUDA file
// with the values that the driver reports.
func cudaChip(g cuda.GPU) (*chip.Chip, error) {
	h200, err := chip.Lookup("h200")
	if err != nil || isH200(g, h200) {
		return h200, err
	}
	c, err := chip.Lookup("cuda")
	if err != nil {
		return nil, err
	}
	c.Title = g.Name
	c.Cores, c.MaxBufferBytes = max(1, g.Multiprocessors), max(1, g.Memory)
	c.MaxThreads, c.ThreadgroupMemory = min(c.MaxThreads, g.MaxThreads), max(1, g.SharedMemory)
	if g.BandwidthGBs > 0 {
		c.BandwidthGBs = g.BandwidthGBs
	}
	if g.Major < 8 { // no matrix instructions of the shape that attn_tile uses
		c.AttnTileRows, c.AttnTileDim = 0, 0
	}
	// The exact kernels for sm_90a, which the H200 uses, run on this GPU too. GEMVSingle stays 0: on an H100 it
	// made decoding of small models 3 to 5 % faster and of an 8B model in Q4_0 4 % slower, with 8 SIMD groups. With 16,
	// as on an H200, nobody has measured it.
	if g.Major == 9 && g.Minor == 0 {
		with := *c
		with.GEMMHalves, with.PrefillFew = h200.GEMMHalves, h200.PrefillFew
		with.BatchRows, with.BatchFew, with.BatchSlots = h200.BatchRows, h200.BatchFew, h200.BatchSlots
		if with.Validate() == nil {
			c = &with
		}
	}
	return c, c.Validate()
}

// isH200 reports whether a GPU is a whole H200 and not a partition of one.
func isH200(g cuda.GPU, c *chip.Chip) bool {
	return strings.Contains(g.Name, "H200") && g.Major == 9 && g.Minor == 0 && g.Multiprocessors == c.Cores
}

func cudaStatus(o cuda.Options) DeviceStatus {
	d, err := cuda.New(o)
	if err != nil {
		return absent(DeviceCUDA, err)
	}
	free, err := d.FreeMemory()
	if err != nil {
		return DeviceStatus{DeviceInfo: deviceInfo(d.Info()), Why: err.Error()}
	}
	g := d.GPU()
	return DeviceStatus{
		DeviceInfo: deviceInfo(d.Info()), Available: true, Memory: free,
		Limits: fmt.Sprintf("threadgroups of %d threads and %d KiB", g.MaxThreads, g.SharedMemory>>10),
	}
}

// cudaModules returns the embedded kernels for NVIDIA GPUs. They are shared and must not be changed.
// It returns nil if their manifest is inconsistent, which a test excludes; the device then reports
// that it has no kernels.
func cudaModules() *cuda.Modules {
	m, err := kernels.Embedded()
	if err != nil {
		return nil
	}
	return m
}
