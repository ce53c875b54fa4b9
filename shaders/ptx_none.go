//go:build nocuda

package shaders

import "embed"

// ptxFiles is empty: nothing reads PTX without the NVIDIA device.
var ptxFiles embed.FS
