// Package driver wraps the parts of the CUDA driver API that the NVIDIA device needs: thin, typed
// functions over the system's library, which is opened on demand and called without cgo. The
// package has no policy: its caller decides what is allocated, launched and freed.
//
// Calls that use a context require it to be current on the calling thread, so callers lock their
// goroutine to its thread. Names are NVIDIA's without the prefix; see
// https://docs.nvidia.com/cuda/cuda-driver-api.
package driver

import "fmt"

// Handles of the driver's objects. The zero value means none.
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

// Ptr is an address in device memory. The host cannot dereference it.
type Ptr uint64

// Attribute is an attribute of a device (CUdevice_attribute).
type Attribute int32

// Device attributes.
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

// Version is the driver's CUDA version: 1000*major + 10*minor.
type Version int32

// Oldest is the first version whose assembler supports every architecture of the kernels.
const Oldest Version = 11080

// String returns the version in the form "11.8".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }
