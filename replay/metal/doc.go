// Package metal is the device of Apple's GPUs. It replays tables through Metal,
// which package driver beside it calls.
//
// Load compiles the kernels' source, makes a pipeline for each specialisation
// that the table has, puts the slots of each scope into few buffers that the
// host shares, and executes the upload section; weights stay where the file has
// them if it is mapped and their layout is the file's. A session has the table's
// commands as one flat array in C with its buffers in them.
//
// A submission becomes command buffers of a bounded time each. One is encoded
// while the one before runs; the host looks at the stop flag and at a
// cancellation in between. The modes:
//
//   - encode: C walks the array once a token and sets what differs from what is
//     set; parameters come from one buffer, secondary bytes are copied inline
//   - record: the array is an indirect command buffer, once for each command
//     buffer that may be in flight; a token is its patch, which moves the step
//     block on and writes secondary bytes, and a range of commands, which the
//     patch has set. Behind a stop the range is empty.
//
// No buffer is tracked: a fence orders passes, and barriers are where the table
// has them. It knows the table and the driver alone. The kernels come to it as
// Kernels.
package metal
