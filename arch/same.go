package arch

import (
	"fmt"
	"math"
	"reflect"
	"slices"
)

// formFields are the fields of Config that describe a model's name and file form, not its
// computation.
var formFields = []string{"Arch", "Name", "RopeLayout", "NormPlusOne", "Ropes", "Layer", "StopIDs", "StopTokens"}

// Same checks that other, read from another form of the same model, computes the same as c.
// factors returns the elements of the tensor that Rope.Factors names. The error is a *FieldError
// that names the first difference.
func (c *Config) Same(other *Config, factors func(name string) []float32) error {
	a, b := reflect.ValueOf(c.scaled()).Elem(), reflect.ValueOf(other.scaled()).Elem()
	for i := range a.NumField() {
		field := a.Type().Field(i)
		if !field.IsExported() || slices.Contains(formFields, field.Name) {
			continue
		}
		if err := differs(field.Name, a.Field(i), b.Field(i)); err != nil {
			return err
		}
	}
	for i := range c.Layer {
		x, y := reflect.ValueOf(c.Layer[i]), reflect.ValueOf(other.Layer[i])
		for j := range x.NumField() {
			if name := x.Type().Field(j).Name; name != "Rope" {
				if err := differs(fmt.Sprintf("Layer[%d].%s", i, name), x.Field(j), y.Field(j)); err != nil {
					return err
				}
			}
		}
		r, s := &c.Ropes[c.Layer[i].Rope], &other.Ropes[other.Layer[i].Rope]
		if err := r.same(s, factors); err != nil {
			return &FieldError{Key: fmt.Sprintf("RoPE of layer %d", i), Reason: err.Error()}
		}
	}
	return nil
}

// scaled returns c with AttnScale set explicitly, and without what depends on the file form.
func (c *Config) scaled() *Config {
	s := *c
	s.Delta.Negative, s.Delta.Tiled, s.Mamba.Negative = false, false, false
	if s.AttnScale == 0 {
		s.AttnScale = invRoot(float64(s.HeadDim))
	}
	s.Latent.Joined = false // K and V may be one tensor or two
	return &s
}

// differs returns an error that names the first field in which the values differ. Floating-point
// numbers are compared to six digits.
func differs(name string, x, y reflect.Value) error {
	same := false
	switch {
	case x.Kind() == reflect.Struct:
		for i := range x.NumField() {
			if field := x.Type().Field(i); field.IsExported() {
				if err := differs(name+"."+field.Name, x.Field(i), y.Field(i)); err != nil {
					return err
				}
			}
		}
		return nil
	case x.CanFloat():
		same = close6(x.Float(), y.Float())
	default:
		same = reflect.DeepEqual(x.Interface(), y.Interface())
	}
	if same {
		return nil
	}
	return &FieldError{Key: name, Reason: fmt.Sprintf("%v came back as %v", x, y)}
}

// noRotation is a frequency that rotates nothing within the longest context.
const noRotation = 1e-20

func close6(x, y float64) bool { return math.Abs(x-y) <= 1e-6*max(math.Abs(x), math.Abs(y)) }

func (r *Rope) same(s *Rope, factors func(name string) []float32) error {
	if r.Dim != s.Dim || r.LongFrom != s.LongFrom || !close6(float64(r.AttnFactor), float64(s.AttnFactor)) {
		return fmt.Errorf("%d elements, factor %v, long from %d came back as %d, %v, %d", r.Dim, r.AttnFactor, r.LongFrom, s.Dim, s.AttnFactor, s.LongFrom)
	}
	for _, context := range []int{0, math.MaxInt} {
		x, err := r.frequencies(context, factors)
		if err != nil {
			return err
		}
		y, err := s.frequencies(context, factors)
		if err != nil {
			return err
		}
		for i := range x {
			if !close6(x[i], y[i]) && max(x[i], y[i]) > noRotation {
				return fmt.Errorf("inverse frequency %d, %v, came back as %v", i, x[i], y[i])
			}
		}
	}
	return nil
}

// frequencies returns the inverse frequencies for a context, divided by the factors of the
// tensor, if there is one.
func (r *Rope) frequencies(context int, factors func(name string) []float32) ([]float64, error) {
	inv, name := r.For(context)
	out := make([]float64, len(inv))
	for i, f := range inv {
		out[i] = float64(f)
	}
	if name == "" {
		return out, nil
	}
	divisors := factors(name)
	if len(divisors) != len(out) {
		return nil, fmt.Errorf("%d elements of %s for %d frequencies", len(divisors), name, len(out))
	}
	for i, d := range divisors {
		out[i] /= float64(d)
	}
	return out, nil
}
