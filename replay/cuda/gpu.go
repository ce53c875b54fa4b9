package cuda

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
)

// Version is the version of the driver, 1000*major + 10*minor of its CUDA.
type Version = driver.Version

// GPU describes a GPU as reported by the driver.
type GPU struct {
	Ordinal         int
	Name            string
	Major, Minor    int // compute capability
	Multiprocessors int
	Memory          uint64  // total memory in bytes
	BandwidthGBs    float64 // memory bandwidth, from its clock and width; 0 if unknown
	SharedMemory    uint64  // largest shared memory of a thread block in bytes
	MaxThreads      int     // largest number of threads in a thread block
	MaxGrid         [3]uint32
	Cooperative     bool // supports cooperative launches: the thread blocks of a kernel may wait for one another
	Driver          Version

	dev driver.Device
}

// capability returns the compute capability in the form of Text.Arch.
func (g *GPU) capability() int { return 10*g.Major + g.Minor }

// sharedMemory are the bytes of threadgroup memory that a threadgroup can have on GPUs of a compute
// capability (CUDA C++ Programming Guide, technical specifications).
var sharedMemory = map[int]uint64{70: 96 << 10, 75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 89: 99 << 10}

// lower makes g describe a GPU of a lower compute capability, unless that is 0.
func (g *GPU) lower(capability int) error {
	limit := sharedMemory[capability]
	switch {
	case capability == 0 || capability == g.capability():
		return nil
	case limit == 0 || capability > g.capability():
		return fmt.Errorf("cuda: %s of compute capability %d.%d cannot be treated as one of %d.%d", g.Name, g.Major, g.Minor, capability/10, capability%10)
	}
	g.Major, g.Minor, g.SharedMemory = capability/10, capability%10, min(g.SharedMemory, limit)
	return nil
}

// detail describes the GPU in one line.
func (g *GPU) detail() string {
	return fmt.Sprintf("compute capability %d.%d, %d multiprocessors, driver for CUDA %v", g.Major, g.Minor, g.Multiprocessors, g.Driver)
}

// FindGPU returns the GPU with the given ordinal. library is the path of the driver library, ""
// for the system's. The error wraps ErrNoDriver, ErrDriverTooOld or ErrNoGPU.
func FindGPU(library string, ordinal int) (*GPU, error) {
	_, g, err := find(library, ordinal)
	return g, err
}

func find(library string, ordinal int) (*driver.Driver, *GPU, error) {
	drv, err := driver.Open(library)
	if err != nil {
		return nil, nil, fmt.Errorf("cuda: %w", err)
	}
	g, err := describe(drv, ordinal)
	if err != nil {
		return nil, nil, fmt.Errorf("cuda: %w", err)
	}
	return drv, g, nil
}

func describe(drv *driver.Driver, ordinal int) (*GPU, error) {
	n, err := drv.DeviceCount()
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, ErrNoGPU
	case ordinal < 0 || ordinal >= n:
		return nil, fmt.Errorf("%w %d: found %d", ErrNoGPU, ordinal, n)
	}
	g := &GPU{Ordinal: ordinal, Driver: drv.Version()}
	if g.dev, err = drv.DeviceGet(ordinal); err != nil {
		return nil, err
	}
	if g.Name, err = drv.DeviceName(g.dev); err != nil {
		return nil, err
	}
	if g.Memory, err = drv.DeviceTotalMem(g.dev); err != nil {
		return nil, err
	}
	var grid [3]int
	var shared, warp, clock, width, cooperative int
	for _, a := range []struct {
		attribute driver.Attribute
		value     *int
	}{
		{driver.CapabilityMajor, &g.Major}, {driver.CapabilityMinor, &g.Minor},
		{driver.MultiprocessorCount, &g.Multiprocessors}, {driver.MaxThreadsPerBlock, &g.MaxThreads},
		{driver.MaxSharedPerBlockOptIn, &shared}, {driver.WarpSize, &warp},
		{driver.MemoryClockKHz, &clock}, {driver.MemoryBusWidth, &width},
		{driver.CooperativeLaunch, &cooperative},
		{driver.MaxGridX, &grid[0]}, {driver.MaxGridY, &grid[1]}, {driver.MaxGridZ, &grid[2]},
	} {
		if *a.value, err = drv.DeviceAttribute(g.dev, a.attribute); err != nil {
			return nil, err
		}
	}
	if warp != simdWidth {
		return nil, fmt.Errorf("%s has warps of %d threads, but the kernels require %d", g.Name, warp, simdWidth)
	}
	g.Cooperative = cooperative != 0
	g.SharedMemory = uint64(max(shared, 0))
	g.BandwidthGBs = float64(clock) * 2 * float64(width) / 8 / 1e6 // two transfers per clock
	for i, n := range grid {
		g.MaxGrid[i] = uint32(max(n, 0))
	}
	return g, nil
}

// simdWidth is the number of threads of a SIMD group (warp) that the kernels rely on.
const simdWidth = 32
