// Package conform holds the GPU kernels, emulated, against the CPU device's:
// each runs one command on the same bytes, and must leave the same, or what
// differs by rounding. It has tests only.
package conform
