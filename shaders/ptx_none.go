//go:build nocuda

package shaders

import "embed"

// ptxFiles is empty, because only the CUDA device reads PTX.
var ptxFiles embed.FS
