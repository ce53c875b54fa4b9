package emu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/shaders"
)

// sample lists the quantised weight types of an emulator built with Options.Sample. Compiling
// the kernels for all types takes more time than most tests. Each property in shaders/types.h
// that selects code has a type in this list; TestSample checks it.
var sample = []dtype.Type{
	dtype.Q8_0, dtype.Q4_0, dtype.Q5_1, dtype.Q2_K, dtype.Q3_K, dtype.Q4_K, dtype.Q6_K, dtype.IQ4_XS, dtype.MXFP4, dtype.NVFP4, dtype.TQ1_0, dtype.MLX3, dtype.MLX8,
}

// counted lists the quantised weight types of an emulator built with Options.Count.
var counted = []dtype.Type{dtype.Q4_0, dtype.Q8_0, dtype.Q4_K, dtype.Q6_K}

// Sampled reports whether an emulator built with Options.Sample has the kernels of a weight type.
// Only quantised types of shaders/types.h may be missing.
func Sampled(t dtype.Type) bool { return has(sample, t) }

// has reports whether an emulator built with the types of a list has the kernels of a weight type.
func has(list []dtype.Type, t dtype.Type) bool {
	return !t.Quantized() || t.Family() == dtype.FP8 || slices.Contains(list, t.Family())
}

// typeNames returns the names of types in shaders/types.h, separated by commas.
func typeNames(list []dtype.Type) string {
	var names []string
	for _, t := range list {
		if bits, _, _, ok := t.MLX(); ok {
			names = append(names, fmt.Sprintf("MLX%d", bits))
		} else {
			names = append(names, t.String())
		}
	}
	return strings.Join(names, ",")
}

// UncompiledError reports a dispatch of a kernel with a weight type that the emulator was built
// without.
type UncompiledError struct {
	Kernel string
	Type   dtype.Type
}

// Error implements error.
func (e *UncompiledError) Error() string {
	return fmt.Sprintf("emu: kernel %s was not compiled for weight type %s, because Options.Sample or Options.Count is set", e.Kernel, e.Type)
}

// ConfigurationError reports a dispatch with constants that only the kernels of Apple's configuration
// implement.
type ConfigurationError struct {
	Kernel string
	Specs  []uint32 // the constants' values in the declaration's order
}

// Error implements error.
func (e *ConfigurationError) Error() string {
	return fmt.Sprintf("emu: only Apple's configuration has kernel %s for the constants %v", e.Kernel, e.Specs)
}

// compiled returns an error if the emulator was built without a weight type of the dispatch, or if its
// configuration lacks the kernel. The kernels would compute nothing.
func (p *Program) compiled(d *Dispatch) error {
	k, ok := decl.Declared(d.Kernel)
	if !ok {
		return nil
	}
	if !p.apple {
		made, err := shaders.Made()
		if err != nil {
			return err
		}
		if m, ok := made.Kernel(d.Kernel); ok {
			if _, ok := m.Entry(d.Specs[:]); !ok {
				return &ConfigurationError{d.Kernel, d.Specs[:len(k.Specs)]}
			}
		}
	}
	if p.types == nil {
		return nil
	}
	for i, c := range k.Specs {
		if t := dtype.Type(d.Specs[i]); c.WeightType && !has(p.types, t) {
			return &UncompiledError{d.Kernel, t}
		}
	}
	return nil
}
