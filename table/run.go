package table

import "time"

// The types of this file are what a session and a device say to each other;
// package replay has the interface itself. They are here so that a device
// needs to know the table alone.

// Source gives the bytes of a model's tensors.
type Source interface {
	// Tensor returns a tensor's bytes, which stay valid until the source is
	// closed.
	Tensor(name string) ([]byte, error)
}

// Releaser is a Source that can do without the memory of bytes that it gave,
// once they are copied.
type Releaser interface {
	Release(b []byte)
}

// Pager is a Source that has its files in memory: a device that shares the
// host's memory may use tensors where they are.
type Pager interface {
	// Mapping returns all that is mapped with b, which are bytes of a tensor. It
	// begins with a page, and its last page is there in whole. It stays until
	// the source is closed.
	Mapping(b []byte) (whole []byte, ok bool)
}

// LoadOptions are a device's settings for one table.
type LoadOptions struct {
	Progress func(done, total uint64) // bytes of the upload section; may be nil
}

// SessionID names a session's slots on a device.
type SessionID uint32

// Run is one program, replayed Count times: each time the tokens, positions
// and KV rows move on by Step.Rows.
type Run struct {
	Program uint32 // index in Table.Programs
	Count   uint32
	Step    Step
}

// Submission is what a device executes without asking the host: a list of
// runs, one after the other. Once a stop flag is set or Cancel is called the
// rest does nothing.
type Submission struct {
	Session SessionID
	Runs    []Run

	// Dry walks the table, patches and meets at barriers, but runs no
	// kernel: what replaying costs beside the kernels.
	Dry bool
	// Timings, if not nil, gets the time of each command of the last run,
	// with a barrier after every command; len must be the program's count.
	Timings []time.Duration
}

// Ticket names a submission in flight.
type Ticket uint64

// Result is what a submission gave.
type Result struct {
	Count   int           // tokens written to the ring
	Stopped bool          // a stop id was written
	Elapsed time.Duration // on the device
}

// Info says what a device is.
type Info struct {
	Device string   // "cpu", "metal", "cuda", "null"
	Name   string   // of the chip or the processor
	Modes  []string // replay modes it can do
	Detail string   // features, threads
}

// Memory is what a device holds, in bytes.
type Memory struct {
	Weights  uint64 // copied or repacked
	Mapped   uint64 // used where the source has them
	Sessions uint64
	Executor uint64 // scratch and the team's private memory
}
