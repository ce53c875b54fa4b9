//go:build nocuda

package pianola

// cudaDevice returns nil: the build tag nocuda leaves the CUDA device out.
func cudaDevice() *backend { return nil }
