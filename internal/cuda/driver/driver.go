// Package driver is the CUDA driver's API, as far as the NVIDIA device needs
// it: thin, typed functions over the system's own library, which is opened when
// it is asked for and called without cgo. It has no policy: what is allocated,
// launched and freed when is its caller's business.
//
// Calls that use a context need it to be current on the calling thread, so
// callers lock their goroutine to its thread. Names are NVIDIA's without the
// prefix; https://docs.nvidia.com/cuda/cuda-driver-api describes them.
package driver

import "fmt"

// Handles of the driver's objects. The zero value is none.
type (
	Device    int32
	Context   uintptr
	Stream    uintptr
	Event     uintptr
	Module    uintptr
	Function  uintptr
	Graph     uintptr
	Node      uintptr
	GraphExec uintptr
)

// Ptr is an address of the device's memory, of no use to the host.
type Ptr uint64

// Attribute is an attribute of a device (CUdevice_attribute).
type Attribute int32

// The attributes of a device that are asked for.
const (
	MaxThreadsPerBlock      Attribute = 1
	MaxGridX                Attribute = 5
	MaxGridY                Attribute = 6
	MaxGridZ                Attribute = 7
	WarpSize                Attribute = 10
	MultiprocessorCount     Attribute = 16
	MemoryClockKHz          Attribute = 36
	MemoryBusWidth          Attribute = 37 // bits
	CooperativeLaunch       Attribute = 95
	CapabilityMajor         Attribute = 75
	CapabilityMinor         Attribute = 76
	MaxSharedPerBlockOptIn  Attribute = 97 // bytes
	functionMaxThreads                = 0  // CUfunction_attribute
	functionMaxDynamicBytes           = 8
)

// Version is the driver's version: 1000*major + 10*minor of the CUDA that it
// is made for.
type Version int32

// Oldest is the first version whose assembler knows every architecture that
// there are kernels for.
const Oldest Version = 11080

// String returns the version as "11.8".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }
