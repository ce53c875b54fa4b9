// Package cuda implements the NVIDIA device. It replays tables through the CUDA driver, which it
// opens at run time, without cgo and without NVIDIA's toolkit.
//
// Load retains the GPU's primary context, loads the kernels that the table needs, assembled from
// PTX or from a cache directory, executes the upload section through pinned buffers, and starts the
// executor: one goroutine, locked to its thread, that submits to one stream. The slots of each
// scope are one allocation.
//
// A kernel's arguments are eight addresses, the command's 64 bytes of parameters, the address of
// its 16 secondary bytes, the address of the session's step block, and the specialisation
// constants. The secondary bytes of all commands form one array on the device. The modes differ in
// how it is patched:
//
//   - encode: the host patches a copy before each token's launches.
//   - record: the kernel patch is the first node of each token in a CUDA graph. One launch replays up
//     to 64 tokens.
//   - resident: the kernel patch is the first command of the resident kernel, a persistent kernel
//     that walks the command array. One launch replays a whole chain.
//
// Cancel writes a word of the step block from another stream. The kernel patch of the next
// token sets the stop flag if the word is set. In mode encode, the host stops submitting
// tokens.
//
// The package depends only on tables and the driver. Its caller passes it the kernels as Modules.
package cuda
