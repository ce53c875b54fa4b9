package safetensors

// Allocated is for the tests in package safetensors_test.
var Allocated = allocated
