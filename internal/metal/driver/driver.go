// Package driver wraps the parts of Apple's Metal that replaying tables needs: devices,
// buffers, pipelines, recordings and command buffers. The interface Device represents a GPU;
// Open returns the system's.
//
// The implementation is Objective-C with a C interface, metal.h, in builds with cgo for macOS and
// iOS. A build with the tag softmetal has it on Linux too, on the software Metal of
// internal/metal/soft.
// The package must not know tables.
package driver

import "unsafe"

// Handles of Metal objects. The zero value means none.
type (
	Object    uintptr // any of the following
	Library   = Object
	Archive   = Object // compiled pipelines
	Buffer    = Object
	Recording = Object // an indirect command buffer
	Label     = Object
)

// Buffer indexes of a kernel's arguments.
const (
	Bindings    = 8 // largest number of bindings of a command; their indexes begin at 0
	IndexParams = 8
	IndexSecond = 9
	IndexStep   = 10
)

// Sizes in bytes of data that the host and kernels share.
const (
	StepBytes   = 64
	PlaceBytes  = 32 // leading bytes of a step block, which hold the current position
	RangeBytes  = 16 // distance between execution ranges
	SecondBytes = 16
)

// Properties are a device's properties as Metal reports them.
type Properties struct {
	MaxBuffer         uint64 // largest size of a buffer in bytes
	WorkingSet        uint64 // recommended largest working set in bytes
	Allocated         uint64 // bytes that this process has allocated
	MaxThreads        int    // largest number of threads in a threadgroup
	ThreadgroupMemory uint64 // largest threadgroup memory in bytes
	Page              int    // page size in bytes: alignment and granularity of wrapped memory
	Family            int    // latest known Apple GPU family that the GPU supports; 0 if none
	Cores             int    // number of GPU cores; 0 if unknown, as on iOS
	Timestamps        Timestamps
	Residency         bool   // buffers are in a residency set, so recordings need not declare them
	Registry          uint64 // identifies the GPU until the system restarts
	Name              string
	OS                string // version and build of the system
}

// Timestamps tells where the GPU can sample timestamps.
type Timestamps uint8

// The values of Timestamps.
const (
	NoTimestamps  Timestamps = iota
	EncoderTimes             // at the beginning and end of an encoder
	DispatchTimes            // between commands
)

// Language identifies the options with which LibrarySource compiles: everything that affects the
// result besides the source, the GPU and the system.
const Language = "Metal 3.1, fast math"

// Constant is a 32-bit function constant.
type Constant struct{ Index, Value uint32 }

// Pipeline is a kernel with its constants.
type Pipeline struct {
	Handle            Object
	MaxThreads        int // largest number of threads in a threadgroup
	SIMDWidth         int
	ThreadgroupMemory uint64 // threadgroup memory that the kernel itself declares
	Archived          Archived
}

// Archived tells how an archive was used for a pipeline.
type Archived uint8

// The values of Archived.
const (
	NotArchived Archived = iota // there is no archive, or it did not accept the pipeline
	Found                       // the pipeline was in the archive
	Added                       // the pipeline was compiled and added
)

// Command is one dispatch, ready to be encoded. C has the same struct (pm_command).
type Command struct {
	Pipeline          Object
	Buffers           [Bindings]Buffer // 0 if the command lacks the binding
	Offsets           [Bindings]uint64
	Params            uint64 // offset in the chain's Params
	SecondAt          uint64 // for recordings: offset in Bound.Second
	Label             Label
	Groups, Threads   [3]uint32
	ThreadgroupMemory uint32 // a multiple of 16
	Second            [SecondBytes / 4]uint32
	Barrier           uint8 // 1: wait until all earlier commands have finished
	Patch             uint8 // a table.Patch without PatchRows
	Rows              uint8 // 1: the rows are patched too
	PatchOffset       uint8 // offset of the patched value; 255 if the command has no patch
	Own               uint8 // for recordings: a bit for each binding whose buffer belongs to the session
	Sized             uint8 // for recordings: 1: the parameters depend on the capacity of the session's caches
	_                 [2]uint8
}

// Place is the current position, in the layout of a step block after its counter.
type Place struct {
	Position, KVRow, KVLen, TokenIndex, Row, Rows uint32
}

// Run replays some tokens of a program. C has the same struct (pm_run).
type Run struct {
	Commands      *Command
	Label         Label
	Count, Tokens uint32
	Place         Place  // of the first token
	First         uint32 // for recordings: the program's first command
	Patch         uint32 // index of the first token's patch; the next tokens' patches follow
	Range         uint32 // index of the first token's execution range, if Ranged
	Ranged        uint32 // 1: each token has its own patch and its own range, which the patch sets
	Move          uint32 // 1: before the run, the step block is set to entry PlaceAt of Places
	PlaceAt       uint32
	Encoded       uint32 // 1: the commands are encoded even if the chain has a recording; they may be a part of a token
	_             uint32
}

// Chain becomes one command buffer. C has the same struct (pm_chain).
type Chain struct {
	Runs          *Run
	Params        Buffer
	Step          Buffer
	Result        Buffer // the step block is copied here at the end
	StepOffset    uint64
	Recording     Recording // 0 if the commands are encoded
	Secondary     Buffer    // for a recording: the secondary bytes of all commands, then the execution ranges
	Ranges        uint64    // offset of the first range in Secondary
	Places        Buffer    // leading bytes of step blocks
	Written, Read *Object   // objects that a recording's commands use
	RunCount      uint32
	WrittenCount  uint32
	ReadCount     uint32
	Serial        uint32 // 1: commands run one after another
	Labels        uint32 // 1: commands become debug groups, which takes two more messages each
	_             uint32
	// Set by Commit: the command buffer, and the number of Metal messages it took.
	CommandBuffer Object
	Calls         uint64
	// Set by Wait: start and end on the GPU, in seconds of the system's clock.
	Start, End float64
	Fault      Fault // set by both if they fail
}

// Fault is a chain's error in C's form (pm_error).
type Fault struct {
	Code int64
	Text [504]byte
}

// Bound holds what all commands of a recording share. C has the same struct (pm_bound).
type Bound struct {
	Params, Second, Step Buffer
	StepOffset           uint64
	Again                uint32 // 1: the commands are recorded for another session, which changes its buffers, sized parameters and the step block
	_                    uint32
}

// Device is a GPU with one queue. Its methods may be called from several goroutines, except those
// that change the same object.
//
// The caller owns the objects that methods create and releases them with Release. Commands, runs,
// objects and chains are in memory from Alloc.
type Device interface {
	Properties() Properties
	Objects() Objects

	// LibrarySource and LibraryData create a library from Metal source text, or from a library
	// compiled by Apple's compiler. All devices of a GPU can use it.
	LibrarySource(source []byte) (Library, error)
	LibraryData(data []byte) (Library, error)
	// Archive opens a file of compiled pipelines; "" creates an empty archive. SaveArchive writes
	// an archive that is not empty to a new file.
	Archive(file string) (Archive, error)
	SaveArchive(a Archive, file string) error
	// Pipeline creates a pipeline for threadgroups of at most the given number of threads. It
	// takes the pipeline from the archive or, if the archive lacks it, compiles and adds it. If
	// archive is 0, Pipeline always compiles. Pipelines for recorded commands must be indirect.
	Pipeline(l Library, a Archive, function string, constants []Constant, threads int, indirect bool) (Pipeline, error)

	// Buffer creates a zeroed buffer shared with the host.
	Buffer(length uint64) (Buffer, []byte, error)
	// Wrap creates a buffer that uses existing memory: whole pages, which must stay valid until
	// the buffer is released. All buffers are in the residency set, if the system supports one.
	Wrap(mem []byte) (Buffer, error)

	// Recording allocates a recording for the given number of commands. Record stores commands in
	// it, beginning at index at.
	Recording(commands int) (Recording, error)
	Record(r Recording, at int, c []Command, b *Bound) error

	// Commit encodes a chain and submits it to the GPU. Wait waits until it has ended. Chains run
	// in the order of their commits.
	Commit(c *Chain) error
	Wait(c *Chain) error
	// Begin, Encode and Send are the steps of Commit, for callers that encode commands of their
	// own before or after the chain. Begin creates Chain.CommandBuffer, Encode encodes the chain
	// to it and Send submits it. Drop discards a command buffer that has not been sent.
	Begin(c *Chain) error
	Encode(c *Chain) error
	Send(c *Chain)
	Drop(c *Chain)
	// Timed replays one token of the chain's only run and waits for it. It stores the duration of
	// each command in seconds. If a command fails, failed is its index, or -1 if it is unknown.
	Timed(c *Chain, seconds []float64) (failed int, err error)

	// Touch makes the buffers resident in the GPU's memory: it requests residency for the
	// residency set, and makes the GPU read the buffers by copying them piece by piece to the
	// beginning of buffer into. It waits for the GPU.
	Touch(buffers []Buffer, into Buffer) error

	// Label creates a string for debug groups, which Apple's tools show.
	Label(text string) (Label, error)
	Release(o Object)

	// Alloc returns zeroed memory that Metal may read.
	Alloc(size uintptr) (unsafe.Pointer, error)
	Free(p unsafe.Pointer)

	// Close releases the device. Objects that it created must be released before.
	Close()
}

// Slice returns memory from Alloc for n values.
func Slice[T any](d Device, n int) ([]T, error) {
	var zero T
	p, err := d.Alloc(max(1, unsafe.Sizeof(zero)*uintptr(n)))
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*T)(p), n), nil
}
