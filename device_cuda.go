//go:build !nocuda

package pianola

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/replay/cuda"
	"github.com/pianola-engine/pianola/shaders"
)

// cudaDevice returns the CUDA device.
func cudaDevice() *backend {
	return &backend{
		device: DeviceCUDA, chosen: 2,
		open: func(o *Options) (*target, error) {
			return newCUDA(o.Mode, cuda.Options{Modules: cudaModules(), Cache: o.CUDA.cache()})
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
	if c, err := chip.Lookup("h200"); err != nil || isH200(g, c) {
		return c, err
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
	// The exact kernels for sm_90a, which the H200 uses, run on this GPU too.
	if g.Major == 9 && g.Minor == 0 {
		c.GEMMHalves, c.PrefillFew = 384, 32
		if c.Validate() != nil {
			c.GEMMHalves, c.PrefillFew = 0, 0
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
var cudaModules = sync.OnceValue(func() *cuda.Modules {
	m, err := makeModules()
	if err != nil {
		return nil
	}
	return m
})

func makeModules() (*cuda.Modules, error) {
	m, err := shaders.Made()
	if err != nil {
		return nil, err
	}
	return modulesOf(m, func(file, arch string) cuda.Text {
		return cuda.Text{
			Read: func() ([]byte, error) { return shaders.PTX(file, arch) },
			Describe: func() (i cuda.TextInfo, err error) {
				i.Hash, i.Version, i.Target, err = shaders.DescribePTX(file, arch)
				return i, err
			},
		}
	})
}

// modulesOf returns the kernels of a manifest that have PTX. text returns a source file's PTX for an
// architecture.
func modulesOf(m *shaders.Manifest, text func(file, arch string) cuda.Text) (*cuda.Modules, error) {
	mods := &cuda.Modules{BindingAlign: uint64(m.BindingAlign), Pooled: true}
	var files []string
	for i := range m.Kernels {
		k := &m.Kernels[i]
		if len(k.Entries) == 0 {
			continue // only Apple GPUs have the kernel
		}
		if !slices.Contains(files, k.File) {
			files = append(files, k.File)
		}
		for _, e := range k.Entries {
			in := cuda.Instance{Kernel: k.Name, Text: k.File, Entry: e.Name}
			for _, f := range e.Fixed {
				at, ok := decl.Of(k.Name).Spec(f.Name)
				if !ok {
					return nil, fmt.Errorf("pianola: kernel %s has no constant %s", k.Name, f.Name)
				}
				in.Fixed = append(in.Fixed, cuda.Fixed{Spec: at, Value: f.Value, Mask: f.Mask})
			}
			if decl.Of(k.Name).TGMem != "" {
				in.TGMem = decl.Of(k.Name).ThreadgroupBytes
			}
			mods.Instances = append(mods.Instances, in)
		}
	}
	for _, arch := range m.Architectures {
		for _, file := range files {
			if err := addText(mods, text(file, arch), file, arch, false); err != nil {
				return nil, err
			}
		}
	}
	for _, e := range m.Exact {
		if err := addText(mods, text(e.File, e.Architecture), e.File, e.Architecture, true); err != nil {
			return nil, err
		}
	}
	return mods, nil
}

// addText adds the PTX of a file for an architecture: "sm_90", or "sm_90a" for that processor alone.
func addText(mods *cuda.Modules, text cuda.Text, file, arch string, exact bool) error {
	number := strings.TrimPrefix(arch, "sm_")
	if exact {
		number = strings.TrimSuffix(number, "a")
	}
	capability, err := strconv.Atoi(number)
	if err != nil {
		return fmt.Errorf("pianola: architecture %q of the kernels: %w", arch, err)
	}
	text.Name, text.Arch, text.Exact = file, capability, exact
	mods.Texts = append(mods.Texts, text)
	return nil
}
