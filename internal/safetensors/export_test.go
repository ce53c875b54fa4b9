package safetensors

// Allocated exports allocated to the tests in package safetensors_test.
var Allocated = allocated
