// Package cuda is the NVIDIA device. It replays tables through the CUDA driver,
// which it opens at run time, without cgo and without NVIDIA's toolkit.
//
// Load retains the GPU's primary context, assembles the kernels that the table
// needs from their PTX text, executes the upload section through pinned
// buffers, and starts the executor: one goroutine, locked to its thread, that
// gives submissions to one stream. Slots of each scope are one allocation.
//
// Kernels get eight addresses, the command's 64 bytes of parameters, the address
// of its 16 secondary bytes, the address of the session's step block and the
// specialisation constants. The secondary bytes of all commands are one array
// of the device, the seconds. The modes differ in who patches it:
//
//   - encode: the host, in a copy ahead of each token's launches
//   - record: the kernel patch, the first node of a graph that is one token; the
//     host launches the graph once for each token
//
// Cancelling writes a byte of the step block from another stream: whatever of
// the submission has not begun does nothing.
//
// It knows the table and the driver alone. The kernels come to it as Modules.
package cuda
