package compiler

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/pianola-engine/pianola/internal/recurrent"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/table"
)

// OptionsOf returns the options that a table was compiled with. Header.Options, which
// Compile writes, records those that differ from the zero value.
func OptionsOf(t *table.Table) (Options, error) {
	h := &t.Header
	o := Options{Context: int(h.Context)}
	for _, word := range strings.Fields(h.Options) {
		name, value, _ := strings.Cut(word, "=")
		number := func() (n int) {
			n, _ = strconv.Atoi(value)
			return n
		}
		switch name {
		case "all-logits":
			o.AllLogits = true
		case "hidden":
			o.Hidden = true
		case "log-probs":
			o.LogProbs = true
		case "no-fuse":
			o.NoFuse = true
		case "no-repack":
			o.NoRepack = true
		case "exact":
			o.Exact = true
		case table.OptionBatching:
			o.Batching = true
		case "sampler":
			o.Sampler = value
		case "sequences":
			o.Sequences = number()
		case "pages":
			o.Pages = number()
		case "rows", "kinds", "states", "live-states", "saved-states":
			// They follow from the model, the chip, the context and the number of sequences.
		case "draft":
			o.Draft = number()
		case "kv":
			o.KV = value
		case "kv-sinks":
			o.KVSinks = number()
		case "kv-window":
			o.KVWindow = number()
		default:
			return Options{}, fmt.Errorf("compiler: the table's header has an unknown option %.40q", word)
		}
	}
	var pool *sequence.Layout
	if l, ok := sequence.Of(h.Options, int(h.Context)); ok {
		pool = &l
	}
	ring, _ := recurrent.Of(h.Options)
	if o.header(pool, ring) != h.Options {
		return Options{}, fmt.Errorf("compiler: the table's header has invalid options %.80q", h.Options)
	}
	return o, nil
}
