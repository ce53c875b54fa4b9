// Package soft is Metal in software, for tests on Linux: Apple's protocols, as
// far as package driver uses them, over an emulator that executes the GPU
// kernels and nothing else. It is linked in with the build tag softmetal; without
// it the package is empty.
//
// It enforces what Apple documents and what a GPU would punish at some time: an
// offender is a violation, which tests ask for, and an error of the command
// buffer. What Metal leaves open it does in a random order: commands that no
// barrier separates, and passes that no fence separates. It counts what is alive
// and each call, and fails where it is told to.
package soft
