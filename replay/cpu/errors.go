package cpu

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// WeightTypeError says that a kernel has no implementation for a weight type.
type WeightTypeError struct {
	Kernel string
	Type   dtype.Type
	Act    string // activation type that it is missing for, "" if none is there
}

func (e *WeightTypeError) Error() string {
	if e.Act != "" {
		return fmt.Sprintf("%s: weight type %v with activation type %s is not supported", e.Kernel, e.Type, e.Act)
	}
	return fmt.Sprintf("%s: weight type %v is not supported", e.Kernel, e.Type)
}
