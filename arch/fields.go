package arch

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// Limits of the sizes that a model may have. They far exceed those of existing models, and no
// product of two of them overflows 63 bits.
const (
	maxLayers  = 1 << 10
	maxHeads   = 1 << 10
	maxHeadDim = 1 << 10
	maxWidth   = 1 << 17
	maxFF      = 1 << 20
	maxVocab   = 1 << 22
	maxContext = 1 << 27

	maxEps        = 0.1
	minBase       = 2 // YaRN divides by log(base)
	maxBase       = 1e15
	minRopeFactor = 1e-3
	maxRopeFactor = 1e6
)

// fields reads typed values by key. It keeps the first error and returns zero values from then
// on, so that a sequence of reads needs one check.
type fields struct {
	get    func(key string) (any, bool)
	prefix string // prefix of every key in errors, such as "llama." or "rope_scaling."
	// rename maps a key to the file's own name, if it is unusual.
	rename map[string]string
	err    error
}

// name returns the key as it is in the file, for errors.
func (f *fields) name(key string) string { return f.prefix + f.own(key) }

func (f *fields) own(key string) string {
	if own, ok := f.rename[key]; ok {
		return own
	}
	return key
}

// value returns a value that exists and is not null.
func (f *fields) value(key string) (any, bool) {
	if f.err != nil {
		return nil, false
	}
	v, ok := f.get(f.own(key))
	return v, ok && v != nil
}

func (f *fields) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

func (f *fields) failf(key, format string, args ...any) {
	f.fail(&FieldError{Key: f.name(key), Reason: fmt.Sprintf(format, args...)})
}

// need returns a required integer in lo..hi.
func (f *fields) need(key string, lo, hi int) int {
	v, ok := f.value(key)
	if !ok {
		f.failf(key, "missing")
		return 0
	}
	return f.integer(key, v, lo, hi)
}

// opt returns an integer in lo..hi, or absent if the key is missing.
func (f *fields) opt(key string, lo, hi, absent int) int {
	v, ok := f.value(key)
	if !ok {
		return absent
	}
	return f.integer(key, v, lo, hi)
}

func (f *fields) integer(key string, v any, lo, hi int) int {
	n, ok := toInt(v)
	if !ok {
		f.failf(key, "%s is not an integer", clip(v))
		return 0
	}
	if n < int64(lo) || n > int64(hi) {
		f.failf(key, "%s is not in %d..%d", clip(v), lo, hi)
		return 0
	}
	return int(n)
}

// needFloat returns a required number in [lo, hi].
func (f *fields) needFloat(key string, lo, hi float64) float64 {
	if _, ok := f.value(key); !ok {
		f.failf(key, "missing")
		return 0
	}
	return f.float(key, lo, hi, 0)
}

// float returns a number in [lo, hi], or absent if the key is missing.
func (f *fields) float(key string, lo, hi, absent float64) float64 {
	v, ok := f.value(key)
	if !ok {
		return absent
	}
	x, ok := toFloat(v)
	if !ok {
		f.failf(key, "%s is not a number", clip(v))
		return 0
	}
	if !(x >= lo && x <= hi) { // false for NaN
		f.failf(key, "%s is not in %v..%v", clip(v), lo, hi)
		return 0
	}
	return x
}

func (f *fields) bool(key string, absent bool) bool {
	v, ok := f.value(key)
	if !ok {
		return absent
	}
	b, ok := v.(bool)
	if !ok {
		f.failf(key, "%s is not true or false", clip(v))
	}
	return b
}

func (f *fields) string(key, absent string) string {
	v, ok := f.value(key)
	if !ok {
		return absent
	}
	s, ok := v.(string)
	if !ok {
		f.failf(key, "%s is not a string", clip(v))
	}
	return s
}

// list returns a list, or nil if the key is missing.
func (f *fields) list(key string) []any {
	v, ok := f.value(key)
	if !ok {
		return nil
	}
	l, ok := v.([]any)
	if !ok {
		f.failf(key, "%s is not a list", clip(v))
	}
	return l
}

// object returns the fields of an object, or nil if the key is missing.
func (f *fields) object(key string) *fields {
	v, ok := f.value(key)
	if !ok {
		return nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		f.failf(key, "%s is not an object", clip(v))
		return nil
	}
	return &fields{
		get:    func(key string) (any, bool) { v, ok := m[key]; return v, ok },
		prefix: f.name(key) + ".",
	}
}

// only returns fields of which only the one with the key exists.
func (f *fields) only(key string) *fields {
	return &fields{prefix: f.prefix, get: func(k string) (any, bool) {
		if k != key {
			return nil, false
		}
		return f.get(k)
	}}
}

// refuse fails if one of keys has a value other than null, false, zero or empty: such settings
// change the arithmetic in an unimplemented way.
func (f *fields) refuse(keys []string) {
	for _, key := range keys {
		key, only, one := strings.Cut(key, "=")
		v, ok := f.value(key)
		if !ok || v == false || v == "" || one && v != only {
			continue
		}
		if x, ok := toFloat(v); ok && x == 0 {
			continue
		}
		f.fail(&UnsupportedValueError{Key: f.name(key), Value: clip(v)})
	}
}

// toInt returns an integer of any type, a float without a fraction, or the common value of a GGUF
// array with one value per layer. For integers outside int64 it returns the nearest int64, which
// exceeds every limit here.
func toInt(v any) (int64, bool) {
	if n, ok := v.(json.Number); ok {
		if i, err := strconv.ParseInt(n.String(), 10, 64); err == nil {
			return i, true
		}
		x, ok := toFloat(n)
		return integral(x, ok)
	}
	r := reflect.ValueOf(v)
	switch {
	case !r.IsValid():
		return 0, false
	case r.CanInt():
		return r.Int(), true
	case r.CanUint():
		return int64(min(r.Uint(), math.MaxInt64)), true
	case r.CanFloat():
		return integral(r.Float(), true)
	case isSlice(v) && r.Len() > 0:
		first, ok := toInt(r.Index(0).Interface())
		for i := 1; ok && i < r.Len(); i++ {
			n, isInt := toInt(r.Index(i).Interface())
			ok = isInt && n == first
		}
		return first, ok
	}
	return 0, false
}

func integral(x float64, ok bool) (int64, bool) {
	switch {
	case !ok || x != math.Trunc(x): // NaN is not equal to itself
		return 0, false
	case x >= 1<<63:
		return math.MaxInt64, true
	case x < -1<<63:
		return math.MinInt64, true
	}
	return int64(x), true
}

// toFloat returns a number of any type. Numbers beyond float64 become infinite.
func toFloat(v any) (float64, bool) {
	if n, ok := v.(json.Number); ok {
		x, err := strconv.ParseFloat(n.String(), 64)
		return x, err == nil || math.IsInf(x, 0)
	}
	r := reflect.ValueOf(v)
	switch {
	case !r.IsValid():
		return 0, false
	case r.CanInt():
		return float64(r.Int()), true
	case r.CanUint():
		return float64(r.Uint()), true
	case r.CanFloat():
		return r.Float(), true
	}
	return 0, false
}

// isSlice reports whether v is a typed slice, as GGUF arrays are.
func isSlice(v any) bool {
	t := reflect.TypeOf(v)
	return t != nil && t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Interface &&
		t.Elem().Kind() != reflect.Slice
}
