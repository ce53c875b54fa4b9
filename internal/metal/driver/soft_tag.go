//go:build softmetal

package driver

import _ "github.com/pianola-engine/pianola/internal/metal/soft" // the library that metal.m is linked with
