//go:build !nocuda

package shaders

import "embed"

//go:embed ptx
var ptxFiles embed.FS
