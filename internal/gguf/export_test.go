package gguf

// Allocated is for the tests in package gguf_test.
var Allocated = allocated
