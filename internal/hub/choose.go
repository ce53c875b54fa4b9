package hub

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	ggufExt     = ".gguf"
	shardExt    = ".safetensors"
	indexExt    = ".safetensors.index.json"
	singleName  = "model" + shardExt
	configName  = "config.json"
	maxListed   = 24 // names in an error
	maxParts    = 9999
	templateDir = "additional_chat_templates/"
)

var (
	// partName matches the file name of a part of a split GGUF model.
	partName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)
	// quantName matches a quantization in the name of a GGUF file.
	quantName = regexp.MustCompile(`(?i)(?:^|[-._/])((?:UD-)?(?:I?Q\d+(?:_[A-Z0-9]+)*|TQ\d_\d|BF16|F16|FP16|F32|FP32|MXFP4(?:_[A-Z]+)*|NVFP4))(?:$|[-./])`)
)

// preferred lists the quantizations of which the first one that exists is the default.
var preferred = []string{"Q4_K_M", "UD-Q4_K_XL", "Q4_K_S", "Q4_0", "MXFP4", "MXFP4_MOE", "Q5_K_M", "Q6_K", "Q8_0", "BF16", "F16", "F32"}

// sideFiles are the files beside the weights that package weights and the tokenizers read.
var sideFiles = []string{
	"generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
	"added_tokens.json", "chat_template.json", "chat_template.jinja",
}

// choice is the files of one model of a repository.
type choice struct {
	files []File
	open  string // the file to open, or "" for the directory
	index string // the index that names further files, or ""
	// hasTokenizer reports whether the files have the tokenizer of a Hugging Face directory.
	hasTokenizer bool
}

// gguf is a GGUF model: one file or the parts of a split one.
type gguf struct {
	label string // the quantization, or the file name if that has none
	name  string // the first file
	parts []File // by number; a missing part has no name
}

// missing returns the number of the first missing part, or 0.
func (g *gguf) missing() int {
	return 1 + slices.IndexFunc(g.parts, func(f File) bool { return f.Name == "" })
}

// choose returns the files of the model that quant selects: a quantization, "gguf", "safetensors"
// or a file name. "" selects the best known default.
func choose(files []File, quant string) (*choice, error) {
	models := ggufs(files)
	hf := chooseSafetensors(files)
	switch {
	case strings.EqualFold(quant, "safetensors"):
		if hf == nil {
			return nil, unavailable(quant, models, hf)
		}
		return hf, nil
	case quant == "" && len(models) == 0 && hf != nil:
		return hf, nil
	}
	found, err := chooseGGUF(models, quant)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, unavailable(quant, models, hf)
	}
	if n := found.missing(); n != 0 {
		return nil, fail(fmt.Sprintf("part %d of %d of %s is missing", n, len(found.parts), found.name), ErrNotFound)
	}
	return &choice{files: found.parts, open: found.name, hasTokenizer: true}, nil
}

// chooseGGUF returns the model that quant selects, or nil if there is none.
func chooseGGUF(models []*gguf, quant string) (*gguf, error) {
	if quant == "" || strings.EqualFold(quant, "gguf") {
		for _, p := range preferred {
			if found, err := chooseGGUF(models, p); found != nil || err != nil {
				return found, err
			}
		}
		if len(models) == 1 {
			return models[0], nil
		}
		return nil, nil
	}
	for _, match := range []func(g *gguf) bool{
		func(g *gguf) bool {
			return slices.ContainsFunc(g.parts, func(f File) bool { return f.Name == quant || path.Base(f.Name) == quant })
		},
		func(g *gguf) bool { return strings.EqualFold(g.label, quant) },
		func(g *gguf) bool { return strings.EqualFold(strings.TrimPrefix(g.label, "UD-"), quant) },
	} {
		var found []*gguf
		for _, g := range models {
			if match(g) {
				found = append(found, g)
			}
		}
		if len(found) == 1 {
			return found[0], nil
		}
		if len(found) > 1 {
			names := make([]string, len(found))
			for i, g := range found {
				names[i] = g.name
			}
			return nil, fail(fmt.Sprintf("%s is ambiguous; name one of the files %s", quant, enumerate(names)), ErrNotFound)
		}
	}
	return nil, nil
}

// unavailable is the error for a quant that no file has.
func unavailable(quant string, models []*gguf, hf *choice) error {
	var have []string
	for _, g := range models {
		have = append(have, g.label)
	}
	if hf != nil {
		have = append(have, "safetensors")
	}
	switch {
	case len(have) == 0:
		return fail("there is neither a GGUF file nor a config.json with *.safetensors", ErrNotFound)
	case quant == "":
		return fail("there are several models; select one of "+enumerate(have), ErrNotFound)
	}
	return fail(fmt.Sprintf("there is no %s; available: %s", quant, enumerate(have)), ErrNotFound)
}

// enumerate joins names, sorted and without repetitions.
func enumerate(names []string) string {
	slices.Sort(names)
	names = slices.Compact(names)
	more := ""
	if n := len(names) - maxListed; n > 0 {
		names, more = names[:maxListed], fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(names, ", ") + more
}

// ggufs returns the GGUF models among files, sorted by name. Projectors of multimodal models and
// importance matrices are not models.
func ggufs(files []File) []*gguf {
	models := map[string]*gguf{}
	for _, f := range files {
		base := strings.ToLower(path.Base(f.Name))
		if !strings.HasSuffix(f.Name, ggufExt) || strings.Contains(base, "mmproj") || strings.Contains(base, "imatrix") {
			continue
		}
		stem, number, count := strings.TrimSuffix(f.Name, ggufExt), 1, 1
		key := f.Name
		if m := partName.FindStringSubmatch(f.Name); m != nil {
			i, _ := strconv.Atoi(m[2]) // five digits
			n, _ := strconv.Atoi(m[3])
			if i < 1 || i > n || n > maxParts {
				continue
			}
			stem, number, count = m[1], i, n
			key = m[1] + "-of-" + m[3]
		}
		g := models[key]
		if g == nil {
			g = &gguf{label: label(stem), parts: make([]File, count)}
			models[key] = g
		}
		g.parts[number-1] = f
		if g.name == "" || f.Name < g.name {
			g.name = f.Name
		}
	}
	return slices.SortedFunc(maps.Values(models), func(a, b *gguf) int { return cmp.Compare(a.name, b.name) })
}

// label returns the last quantization in a file's name, or else the name.
func label(stem string) string {
	found := ""
	for rest := stem; ; {
		m := quantName.FindStringSubmatchIndex(rest)
		if m == nil {
			break
		}
		found = rest[m[2]:m[3]]
		rest = rest[m[3]:]
	}
	if found == "" {
		return path.Base(stem) + ggufExt
	}
	found = strings.ToUpper(found)
	if rest, ok := strings.CutPrefix(found, "FP"); ok {
		return "F" + rest
	}
	return found
}

// chooseSafetensors returns the files of the Hugging Face model at the root of a repository, or nil
// if there is none. With an index, the files that it names are not in the choice yet.
func chooseSafetensors(files []File) *choice {
	byName := map[string]File{}
	var singles, indexes []string
	for _, f := range files {
		byName[f.Name] = f
		switch {
		case strings.Contains(f.Name, "/"):
		case strings.HasSuffix(f.Name, shardExt):
			singles = append(singles, f.Name)
		case strings.HasSuffix(f.Name, indexExt):
			indexes = append(indexes, f.Name)
		}
	}
	config, ok := byName[configName]
	if !ok {
		return nil
	}
	c := &choice{}
	for _, name := range sideFiles {
		if f, ok := byName[name]; ok {
			c.files = append(c.files, f)
			c.hasTokenizer = c.hasTokenizer || name == "tokenizer.json" || name == "tokenizer.model"
		}
	}
	for _, f := range files {
		if rest, ok := strings.CutPrefix(f.Name, templateDir); ok && strings.HasSuffix(rest, ".jinja") && !strings.Contains(rest, "/") {
			c.files = append(c.files, f)
		}
	}
	_, hasSingle := byName[singleName]
	_, hasIndex := byName["model"+indexExt]
	// weights.OpenDirectory selects the weights in the same order.
	switch {
	case hasSingle:
		c.files = append(c.files, byName[singleName])
	case hasIndex:
		c.index = "model" + indexExt
	case len(indexes) == 1:
		c.index = indexes[0]
	case len(indexes) == 0 && len(singles) == 1:
		c.files = append(c.files, byName[singles[0]])
	default:
		return nil
	}
	if c.index != "" {
		c.files = append(c.files, byName[c.index])
	}
	// The config is linked last: a snapshot that has it has the other files.
	c.files = append(c.files, config)
	return c
}
