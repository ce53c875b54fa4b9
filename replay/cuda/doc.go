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
//   - record: the kernel patch, the first node of each token of a graph; a launch
//     of the host is up to 64 tokens
//   - resident: the kernel patch too, as the first command of a kernel that
//     walks the command array, one launch a chain
//
// Cancelling writes a word of the step block from another stream, of which the
// next token's patch makes a stop; in mode encode the host gives no more tokens.
//
// It knows the table and the driver alone. The kernels come to it as Modules.
package cuda
