package weights

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// UnsupportedError reports a part of a model's files that is not supported: a key of
// config.json or a tensor.
type UnsupportedError struct {
	Path   string // path of the model
	Key    string // such as "quantization_config.quant_method"; "" for a tensor
	Tensor string
	What   string
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	if e.Key != "" {
		return fmt.Sprintf("weights: %s: %s: %s: %s", e.Path, configName, e.Key, e.What)
	}
	return fmt.Sprintf("weights: %s: tensor %s: %s", e.Path, printable(e.Tensor), e.What)
}

// setting describes the packing of an MLX matrix.
type setting struct {
	bits, group int
	mode        string // "affine" or "mxfp4"
}

// quantization describes weights whose scales are separate tensors, according to config.json.
type quantization struct {
	key   string             // key in config.json of MLX's default setting
	mlx   *setting           // default setting, or nil
	named map[string]setting // settings of modules that override the default
	// block is the number of rows and columns that share a scale of E4M3.
	block [2]uint64
}

// of returns the setting of a module. config.json may list the module under any of names.
func (q *quantization) of(names ...string) (s setting, ok bool) {
	for _, n := range names {
		if s, ok := q.named[n]; ok {
			return s, true
		}
	}
	if q.mlx == nil {
		return setting{}, false
	}
	return *q.mlx, true
}

// fault is an invalid key of config.json with a description of the error.
type fault struct{ key, what string }

// object is an object in config.json with its key.
type object struct {
	key   string
	value map[string]any
}

func (o object) path(key string) string { return o.key + "." + key }

// text returns the string under a key, or "" if there is none.
func (o object) text(key string) string {
	s, _ := o.value[key].(string)
	return s
}

// number returns the integer under a key, which must be at most limit.
func (o object) number(key string, limit int64) (int, *fault) {
	n, ok := o.value[key].(json.Number)
	v, err := n.Int64()
	if !ok || err != nil || v < 0 || v > limit {
		return 0, &fault{o.path(key), fmt.Sprintf("is %.40v, want an integer of at most %d", o.value[key], limit)}
	}
	return int(v), nil
}

// within returns the object under a key.
func (o object) within(key string) (object, bool) {
	v, ok := o.value[key].(map[string]any)
	return object{strings.TrimPrefix(o.path(key), "."), v}, ok
}

// fp8Block is E4M3's block size if config.json specifies none.
const fp8Block = 128

// readQuantization reads the keys of config.json that describe how weights are packed.
func readQuantization(meta map[string]any) (q quantization, err *fault) {
	q.block = [2]uint64{fp8Block, fp8Block}
	root := object{"", meta}
	for _, key := range []string{"quantization", "quantization_config"} {
		o, ok := root.within(key)
		if !ok {
			if v := meta[key]; v != nil {
				return q, &fault{key, fmt.Sprintf("is %.40v, want an object", v)}
			}
			continue
		}
		method, named := o.value["quant_method"]
		_, group := o.value["group_size"]
		if !named && group {
			return q, q.readMLX(o)
		}
		if named || key == "quantization_config" {
			return q, q.readMethod(o, fmt.Sprint(method))
		}
		return q, &fault{o.path("group_size"), "missing"}
	}
	return q, nil
}

// readMLX reads MLX's object: a default setting, and the settings of modules that override it.
func (q *quantization) readMLX(o object) *fault {
	q.key = o.key
	s, err := mlxSetting(o, setting{mode: "affine"})
	if err != nil {
		return err
	}
	q.mlx, q.named = &s, map[string]setting{}
	for _, name := range slices.Sorted(maps.Keys(o.value)) {
		if own, ok := o.within(name); ok {
			if q.named[name], err = mlxSetting(own, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// mlxSetting reads a setting. Absent fields have the values in def.
func mlxSetting(o object, def setting) (s setting, err *fault) {
	s = def
	for _, n := range []struct {
		key string
		to  *int
	}{{"group_size", &s.group}, {"bits", &s.bits}} {
		if o.value[n.key] == nil && *n.to != 0 {
			continue
		}
		if *n.to, err = o.number(n.key, 1<<16); err != nil {
			return s, err
		}
	}
	if mode, there := o.value["mode"]; there {
		s.mode, _ = mode.(string)
		if s.mode != "affine" && s.mode != "mxfp4" {
			return s, &fault{o.path("mode"), fmt.Sprintf("%.40q is not supported, want affine or mxfp4", fmt.Sprint(mode))}
		}
	}
	return s, nil
}

// supported ends the error messages about unsupported quantization methods.
const supported = "is not supported; supported are fp8, fbgemm_fp8, E4M3 weights of compressed-tensors and modelopt, MLX's affine and mxfp4 quantisation, and mxfp4 of gpt-oss"

// readMethod reads an object that names a quantization method.
func (q *quantization) readMethod(o object, method string) *fault {
	switch method {
	case "fp8", "fbgemm_fp8":
		if f := o.text("fmt"); f != "" && f != "e4m3" {
			return &fault{o.path("fmt"), fmt.Sprintf("%.40q %s", f, supported)}
		}
		return q.readBlock(o, "weight_block_size")
	case "compressed-tensors":
		groups, _ := o.within("config_groups")
		for _, name := range slices.Sorted(maps.Keys(groups.value)) {
			group, _ := groups.within(name)
			w, ok := group.within("weights")
			if !ok {
				return &fault{groups.path(name), "has no key weights"}
			}
			if bits, err := w.number("num_bits", 1<<16); err != nil {
				return err
			} else if bits != 8 || w.text("type") != "float" {
				return &fault{w.key, fmt.Sprintf("%d bits of type %.40q %s", bits, w.text("type"), supported)}
			}
			if err := q.readBlock(w, "block_structure"); err != nil {
				return err
			}
		}
		if len(groups.value) == 0 {
			return &fault{o.path("config_groups"), "missing"}
		}
		return nil
	case "modelopt":
		if a := o.text("quant_algo"); a != "FP8" {
			return &fault{o.path("quant_algo"), fmt.Sprintf("%.40q %s", a, supported)}
		}
		return nil
	case "mxfp4":
		return nil
	}
	if o.value["quant_method"] == nil {
		return &fault{o.path("quant_method"), "missing"}
	}
	return &fault{o.path("quant_method"), fmt.Sprintf("%.40q %s", method, supported)}
}

// readBlock reads the number of rows and columns that share a scale.
func (q *quantization) readBlock(o object, key string) *fault {
	v := o.value[key]
	if v == nil {
		return nil
	}
	if list, ok := v.([]any); ok && len(list) == 2 {
		for i := range list {
			n, _ := list[i].(json.Number)
			if size, err := n.Int64(); err == nil && size > 0 && size <= 1<<20 {
				q.block[i] = uint64(size)
			} else {
				ok = false
			}
		}
		if ok {
			return nil
		}
	}
	return &fault{o.path(key), fmt.Sprintf("is %.40v, want two sizes", v)}
}
