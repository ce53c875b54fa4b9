package arch

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Keys of the soft caps, in both file forms.
const (
	attnSoftCap  = "attn_logit_softcapping"
	logitSoftCap = "final_logit_softcapping"
)

// Limits of scales and caps.
const (
	minScale = 1e-6
	maxScale = 1e6
)

// embedScale selects the factor of the embedding: "" means none.
type embedScale string

const sqrtWidth embedScale = "sqrt_width" // the square root of the width

func (e *embedScale) UnmarshalText(text []byte) error {
	if *e = embedScale(text); *e != "" && *e != sqrtWidth {
		return fmt.Errorf("embed_scale: %s is not %s", clip(string(text)), sqrtWidth)
	}
	return nil
}

// softCaps selects the scores of a family that are capped if the metadata has a cap.
type softCaps struct{ attention, logits bool }

func (s *softCaps) UnmarshalJSON(text []byte) error {
	var list []string
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("soft_caps: %w", err)
	}
	for _, name := range list {
		switch name {
		case "attention":
			s.attention = true
		case "logits":
			s.logits = true
		default:
			return fmt.Errorf("soft_caps: %s is not attention or logits", clip(name))
		}
	}
	return nil
}

// scales reads the factors and caps of a family.
func (d *descriptor) scales(f *fields, c *Config) {
	if d.EmbedScale == sqrtWidth {
		c.EmbedScale = float32(math.Sqrt(float64(c.Width)))
	}
	if d.SoftCaps.attention {
		c.AttnSoftCap = f.softCap(attnSoftCap)
	}
	if d.SoftCaps.logits {
		c.LogitSoftCap = f.softCap(logitSoftCap)
	}
}

// softCap returns a soft cap, or 0 if there is none.
func (f *fields) softCap(key string) float32 {
	x := f.float(key, 0, maxScale, 0)
	if x != 0 && x < minScale {
		f.failf(key, "%v is below %v", x, minScale)
	}
	return float32(x)
}

// invRoot returns 1/sqrt(x).
func invRoot(x float64) float32 { return float32(1 / math.Sqrt(x)) }

// validate rejects defaults that no setting reads, and invalid sizes.
func (g *ggufForm) validate() error {
	for key := range g.Defaults {
		if !slices.Contains(ggufKeys, key) && !g.Recurrent.reads(key) {
			return fmt.Errorf("gguf.defaults: nothing reads %q", key)
		}
	}
	if w := g.Window; w != nil && (w.Period < 0 || w.Theta != 0 && !(w.Theta >= minBase && w.Theta <= maxBase)) {
		return errors.New("gguf.window: period or rope_theta out of range")
	}
	return nil
}
