//go:build softmetal

package driver

import _ "github.com/pianola-engine/pianola/replay/metal/soft" // the library that metal.m is linked with
