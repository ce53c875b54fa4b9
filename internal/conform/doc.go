// Package conform holds the GPU kernels, emulated, against the CPU device's:
// each runs one command on the same bytes, and must leave the same, or what
// differs by rounding; and whole tables are replayed with them, a model's
// tokens beside those of the CPU device. It has tests only.
package conform
