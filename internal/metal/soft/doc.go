// Package soft implements Metal in software, for tests on Linux: Apple's protocols, as far as
// internal/metal/driver uses them, on an emulator that executes only the GPU kernels. It is
// linked with the build tag softmetal; without it the package is empty.
//
// It enforces rules that Apple documents and whose violation has undefined results on a GPU.
// Breaking a rule is a violation, which tests query, and an error of the command buffer. Where
// Metal leaves an order open, the package chooses a random one: for commands without a barrier
// between them, and for passes without a fence between them. It counts live objects and calls, and
// fails calls on request.
package soft
