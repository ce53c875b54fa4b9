package cpu

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// WeightTypeError reports that a kernel has no implementation for a weight type.
type WeightTypeError struct {
	Kernel string
	Type   dtype.Type
	Act    string // activation type for which the implementation is missing; "" if it is missing for all
}

func (e *WeightTypeError) Error() string {
	if e.Act != "" {
		return fmt.Sprintf("%s: weight type %v with activation type %s is not supported", e.Kernel, e.Type, e.Act)
	}
	return fmt.Sprintf("%s: weight type %v is not supported", e.Kernel, e.Type)
}
