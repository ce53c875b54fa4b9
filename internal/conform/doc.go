// Package conform compares the emulated GPU kernels with the CPU device's kernels. Each test runs
// one command on the same bytes; the results must be equal or differ only by rounding. Other
// tests replay whole tables and compare the tokens with the CPU device's. The package contains
// only tests.
package conform
