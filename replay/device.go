// Package replay runs tables: the Device interface that every device
// satisfies, and the Session that turns a prompt into chains of tokens.
//
// It knows tables and devices by their interface. It must not know a kernel, a
// model file or an architecture.
package replay

import (
	"context"

	"github.com/pianola-engine/pianola/table"
)

// Device replays tables. Its signatures use package table's types only, so
// that a device's package need not import this one.
//
// Load is called once, before everything else. After it, methods may be called
// from several goroutines; submissions of all sessions run one after another.
type Device interface {
	Info() Info

	// Load checks the table with table.Validate, executes the upload section and
	// prepares replaying. It is the only check of a table on its way to a
	// device: Load returns an error for a table that does not validate.
	Load(ctx context.Context, t *table.Table, src Source, o LoadOptions) error

	// NewSession allocates the slots of session scope, zeroed. KV caches get memory
	// as submissions write them, within the context.
	NewSession() (SessionID, error)
	// Reserve makes room in a session's KV caches for so many positions, so that
	// submissions within them need none. The session must have nothing in flight.
	Reserve(id SessionID, positions int) error
	// Fork makes a session with the contents of another's slots, of KV caches the
	// rows of so many positions, which have been written or reserved. The session
	// must have nothing in flight.
	Fork(id SessionID, positions int) (SessionID, error)
	// CloseSession frees them. It waits for the session's submission in flight.
	CloseSession(id SessionID) error

	// Write and Read copy to and from a slot of session scope. The range must
	// be within the slot, of a KV cache in rows that have been written or reserved,
	// and the session must have nothing in flight.
	Write(id SessionID, slot uint32, offset uint64, p []byte) error
	Read(id SessionID, slot uint32, offset uint64, p []byte) error

	// Submit starts a submission and returns at once, when there is room in the KV
	// caches for it. s must stay as it is until Wait has returned. A session has one submission in flight.
	Submit(s *Submission) (Ticket, error)
	// Cancel makes what is left of a submission do nothing; safe at any time.
	Cancel(t Ticket)
	// Wait returns when the submission has ended. Each ticket is waited for
	// once.
	Wait(t Ticket) (Result, error)

	// Memory says what the device holds.
	Memory() Memory

	// Close cancels what is in flight, which Wait returns an error for, and frees
	// everything. Twice is harmless.
	Close() error
}

// Planner is a Device that says what a table takes before it is loaded.
type Planner interface {
	// Plan returns what Memory says once the table, which is valid, is loaded, and what
	// each session with room for so many positions adds to that. where says where
	// tensors begin in their files, which are mapped whole. Nothing is read and nothing allocated.
	Plan(t *table.Table, where func(tensor string) (offset uint64, ok bool), positions int) (loaded, session Memory, err error)
}

// Tapper is a Device that says whether submissions may have a Tap.
type Tapper interface{ Taps() bool }

// CallCounter is a Device that counts what it calls of the system to replay.
type CallCounter interface {
	// Calls counts since the device was made.
	Calls() uint64
}
