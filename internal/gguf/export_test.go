package gguf

// Allocated exports allocated to the tests in package gguf_test.
var Allocated = allocated
