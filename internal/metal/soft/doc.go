// Package soft implements Metal in software, for tests on Linux: Apple's protocols, as far as
// internal/metal/driver uses them, on an emulator that executes only the GPU kernels. It is
// linked with the build tag softmetal; without it the package is empty.
//
// It enforces the rules that Apple documents and that a GPU would punish sooner or later:
// breaking one is a violation, which tests query, and an error of the command buffer. Where Metal
// leaves an order open it chooses a random one: for commands not separated by a barrier, and
// passes not separated by a fence. It counts live objects and calls, and fails calls on request.
package soft
