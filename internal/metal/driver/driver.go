// Package driver calls Apple's Metal: devices, buffers, pipelines, recordings and
// command buffers, as much as replaying tables takes. Metal is behind the
// interface Device; Open returns the system's.
//
// It is one Objective-C file with a C interface, metal.m, which a build with cgo
// for macOS has. A build with the tag softmetal has it on Linux too, over the
// Metal in software of package soft beside it. It knows no table.
package driver

import "unsafe"

// Handles of Metal's objects. The zero value is none.
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
	Bindings    = 8 // that a command may have, from 0
	IndexParams = 8
	IndexSecond = 9
	IndexStep   = 10
)

// Sizes of what the host and kernels share, in bytes.
const (
	StepBytes   = 64
	PlaceBytes  = 32 // of a step block, those that say where a token is
	RangeBytes  = 16 // from one execution range to the next
	SecondBytes = 16
)

// Properties are what a device says of itself.
type Properties struct {
	MaxBuffer         uint64 // bytes of a buffer
	WorkingSet        uint64 // bytes that are recommended at most
	Allocated         uint64 // bytes that this process has
	MaxThreads        int    // of a threadgroup
	ThreadgroupMemory uint64 // of a threadgroup, bytes
	Page              int    // what memory that is wrapped is a multiple of, bytes
	Family            int    // the latest of Apple's GPU families that is known, 0: none of them
	Cores             int    // of the GPU, 0: not known
	Timestamps        Timestamps
	Residency         bool   // buffers are in a residency set, and recordings need not declare them
	Registry          uint64 // names the GPU while the system runs
	Name              string
	OS                string // the system's version and build
}

// Timestamps says where the GPU can take the time.
type Timestamps uint8

// The values of Timestamps.
const (
	NoTimestamps  Timestamps = iota
	EncoderTimes             // where an encoder begins and ends
	DispatchTimes            // and between commands
)

// Language is what LibrarySource compiles: it names everything that matters for
// what becomes of a source but the GPU and the system.
const Language = "Metal 3.1, fast math"

// Constant is a function constant of 32 bits.
type Constant struct{ Index, Value uint32 }

// Pipeline is a kernel with its constants.
type Pipeline struct {
	Handle            Object
	MaxThreads        int // of a threadgroup
	SIMDWidth         int
	ThreadgroupMemory uint64 // that the kernel has of its own
	Archived          Archived
}

// Archived says what an archive had to do with a pipeline.
type Archived uint8

// The values of Archived.
const (
	NotArchived Archived = iota // there is no archive, or it did not take it
	Found                       // it was there
	Added                       // it was compiled and added
)

// Command is one dispatch, ready to be encoded; C has the same (pm_command).
type Command struct {
	Pipeline          Object
	Buffers           [Bindings]Buffer // 0: not there
	Offsets           [Bindings]uint64
	Params            uint64 // offset in the chain's Params
	SecondAt          uint64 // of recordings: offset in Bound.Second
	Label             Label
	Groups, Threads   [3]uint32
	ThreadgroupMemory uint32 // a multiple of 16
	Second            [SecondBytes / 4]uint32
	Barrier           uint8 // 1: all commands before must have finished
	Patch             uint8 // a table.Patch without the flag for rows
	Rows              uint8 // 1: the rows are patched too
	PatchOffset       [2]uint8
	_                 [3]uint8
}

// Place is where a token is, as a step block has it behind its counter.
type Place struct {
	Position, KVRow, KVLen, TokenIndex, Row, Rows uint32
}

// Run is some tokens of a program; C has the same (pm_run).
type Run struct {
	Commands      *Command
	Label         Label
	Count, Tokens uint32
	Place         Place  // of the first token
	First         uint32 // of recordings: the program's first command
	Patch         uint32 // the patch of the first token; the next tokens' are behind it
	Range         uint32 // the first token's execution range, if Ranged
	Ranged        uint32 // 1: each token has a patch and a range of its own, which the patch sets
	Move          uint32 // 1: before it the step block gets place number PlaceAt of Places
	PlaceAt       uint32
	_             [2]uint32
}

// Chain is what becomes one command buffer; C has the same (pm_chain).
type Chain struct {
	Runs          *Run
	Params        Buffer
	Step          Buffer
	Result        Buffer // gets the step block at the end
	StepOffset    uint64
	Recording     Recording // 0: commands are encoded
	Seconds       Buffer    // of a recording: secondary bytes, execution ranges
	Ranges        uint64    // offset of the first range in Seconds
	Places        Buffer    // step blocks' beginnings
	Written, Read *Object   // what a recording's commands use
	RunCount      uint32
	WrittenCount  uint32
	ReadCount     uint32
	Serial        uint32 // 1: commands run one after another
	Labels        uint32 // 1: commands are debug groups, which takes two more messages each
	_             uint32
	// Set by Commit: the command buffer, and how many messages to Metal it took.
	CommandBuffer Object
	Calls         uint64
	// Set by Wait: when it ran on the GPU, in seconds of the system's clock.
	Start, End float64
	Fault      Fault // set by both where they fail
}

// Fault is a chain's error as C gives it (pm_error).
type Fault struct {
	Code int64
	Text [504]byte
}

// Bound is what all commands of a recording share; C has the same (pm_bound).
type Bound struct {
	Params, Second, Step Buffer
	StepOffset           uint64
}

// Device is a GPU with one queue. Its methods may be called from several
// goroutines, but for those that change one object.
//
// What a method makes is the caller's, to be given to Release. Commands, runs,
// objects and chains are in memory of Alloc.
type Device interface {
	Properties() Properties
	Objects() Objects

	// LibrarySource and LibraryData make a library: of Metal's source text, or
	// of what Apple's compiler made of it. All devices of a GPU can use it.
	LibrarySource(source []byte) (Library, error)
	LibraryData(data []byte) (Library, error)
	// Archive opens a file of compiled pipelines; "": there is none yet. SaveArchive
	// writes one with something in it to a file that is not there.
	Archive(file string) (Archive, error)
	SaveArchive(a Archive, file string) error
	// Pipeline makes a pipeline for threadgroups of so many threads at most,
	// with what an archive has of it, which gets it otherwise; 0: without one.
	// Those that are recorded must be indirect.
	Pipeline(l Library, a Archive, function string, constants []Constant, threads int, indirect bool) (Pipeline, error)

	// Buffer makes a zeroed buffer that the host shares.
	Buffer(length uint64) (Buffer, []byte, error)
	// Wrap makes a buffer of memory that stays where it is: whole pages, until
	// the buffer is released. Where there is a residency set, it has all buffers.
	Wrap(mem []byte) (Buffer, error)

	// Recording makes room for commands, Record fills it from one of them on.
	Recording(commands int) (Recording, error)
	Record(r Recording, at int, c []Command, b *Bound) error

	// Commit encodes a chain and gives it to the GPU; Wait returns when it has
	// ended. Chains run in the order of their commits.
	Commit(c *Chain) error
	Wait(c *Chain) error
	// Begin, Encode and Send are the parts of Commit, for a program that encodes
	// of its own before or behind the chain: Begin makes Chain.CommandBuffer.
	// Drop gives up one that is not sent.
	Begin(c *Chain) error
	Encode(c *Chain) error
	Send(c *Chain)
	Drop(c *Chain)
	// Timed runs one token of a chain's one run, waits for it, and sets the
	// seconds that each of its commands took. failed is the command that an
	// error is of, or -1 if that is not known.
	Timed(c *Chain, seconds []float64) (failed int, err error)

	// Touch asks for what the residency set has, and makes the GPU read buffers,
	// by copying each in pieces to the beginning of another; it waits for that.
	Touch(buffers []Buffer, into Buffer) error

	// Label makes a name that tools show.
	Label(text string) (Label, error)
	Release(o Object)

	// Alloc returns zeroed memory that Metal may read.
	Alloc(size uintptr) (unsafe.Pointer, error)
	Free(p unsafe.Pointer)

	// Close releases the device. What it made must be released before.
	Close()
}

// Slice is memory of Alloc for n values.
func Slice[T any](d Device, n int) ([]T, error) {
	var zero T
	p, err := d.Alloc(max(1, unsafe.Sizeof(zero)*uintptr(n)))
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*T)(p), n), nil
}
