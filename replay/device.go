// Package replay runs tables. It defines the Device interface, which every device implements,
// and Session, which turns a prompt into chains of tokens.
//
// The package knows devices only by their interface. It must not know kernels, model files
// or architectures.
package replay

import (
	"context"

	"github.com/pianola-engine/pianola/table"
)

// Device replays tables.
//
// Load is called once, before all other methods. After it, methods may be called from
// several goroutines. Submissions of all sessions are executed one after another.
type Device interface {
	Info() Info

	// Load checks the table with table.Validate, executes the upload section and prepares
	// the table for replay. It is the only check between a table and a device: Load returns
	// an error for a table that does not validate.
	Load(ctx context.Context, t *table.Table, src Source, o LoadOptions) error

	// NewSession allocates the slots of session scope, filled with zeros. KV caches grow as
	// submissions write them, up to the context.
	NewSession() (SessionID, error)
	// Reserve grows a session's KV caches to hold the given number of positions, so that
	// submissions within them allocate nothing. The session must have nothing in flight.
	Reserve(id SessionID, positions int) error
	// Fork returns a new session with a copy of another session's slots. Of KV caches it
	// copies the rows of the given number of positions, which must have been written or
	// reserved. The session must have nothing in flight.
	Fork(id SessionID, positions int) (SessionID, error)
	// CloseSession waits for the session's submission in flight and frees its slots.
	CloseSession(id SessionID) error

	// Write and Read copy to and from a slot of session scope. The range must be within the
	// slot; in a KV cache it must be within rows that have been written or reserved. The
	// session must have nothing in flight.
	Write(id SessionID, slot uint32, offset uint64, p []byte) error
	Read(id SessionID, slot uint32, offset uint64, p []byte) error

	// Submit starts a submission and returns without waiting for it. It grows the KV caches
	// first if the submission needs more rows. s must not change until Wait has returned. A
	// session has at most one submission in flight.
	Submit(s *Submission) (Ticket, error)
	// Cancel makes the device skip the rest of a submission. It may be called at any time.
	Cancel(t Ticket)
	// Wait waits until the submission has ended and returns its result. It must be called
	// exactly once for each ticket.
	Wait(t Ticket) (Result, error)

	// Memory returns the memory that the device uses.
	Memory() Memory

	// Close cancels the submissions in flight, for which Wait returns an error, and frees
	// everything. Calling it again has no effect.
	Close() error
}

// Planner is a Device that can predict the memory of a table before it is loaded.
type Planner interface {
	// Plan returns the memory that the device will use once the table is loaded, and the
	// memory that each session with room for the given number of positions adds. The table
	// must be valid. where returns the offset of a tensor in its file; the files are mapped
	// as a whole. Plan reads no weights and allocates no device memory.
	Plan(t *table.Table, where func(tensor string) (offset uint64, ok bool), positions int) (loaded, session Memory, err error)
}

// CallCounter is a Device that counts its calls of the system's GPU interface, such as
// Metal.
type CallCounter interface {
	// Calls returns the number of calls since the device was created.
	Calls() uint64
}
