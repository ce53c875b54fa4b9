// Package metal implements the device for Apple GPUs. It replays tables through Metal, which it
// calls through internal/metal/driver.
//
// Load compiles the kernels' source, creates a pipeline for each specialisation in the table,
// places the slots of each scope in a few buffers shared with the host, and executes the upload
// section. Weights are used in place if their file is mapped and already has the table's layout.
// A session holds the table's commands as one flat array in C, with its buffers in them.
//
// A submission becomes command buffers of bounded duration. One is encoded while the one before
// it runs; in between, the host checks the stop flag and whether the submission is cancelled. The
// modes:
//
//   - encode: C code walks the array once per token and sets only the state that changes. Parameters
//     are in one buffer; secondary bytes are copied inline.
//   - record: the array is an indirect command buffer, one for each command buffer that may be in
//     flight. A token consists of the kernel patch, which advances the step block and writes secondary
//     bytes, and a range of commands whose length the patch sets. After a stop the range is empty.
//
// Metal does not track the buffers: a fence orders passes, and barriers are only where the table has
// them. The package must know only the table and the driver. It receives the kernels as Kernels.
package metal
