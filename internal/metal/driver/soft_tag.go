//go:build softmetal

package driver

import _ "github.com/pianola-engine/pianola/internal/metal/soft" // links the library that metal.m uses
