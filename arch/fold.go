package arch

import (
	"cmp"
	"fmt"
	"math"
)

// fold removes the factors of activations from the configuration, and keeps those by which the weights
// are multiplied instead.
func (v *conversion) fold() error {
	c := *v.Config
	of := &c.Factors
	v.folded = map[Role]float32{
		Embed: c.EmbedScale, Head: c.LogitScale, O: of.Attn, Gate: of.Gate, Down: of.Down, MambaOut: of.Mamba,
	}
	if c.AttnScale != 0 { // Q·K is divided by the root of the head size
		v.folded[K] = c.AttnScale * float32(math.Sqrt(float64(c.HeadDim)))
	}
	for r, factor := range v.folded {
		if factor != 0 && c.Bias.Has(r) {
			return fmt.Errorf("arch: %s: a factor of %v, which has a bias, is not converted", c.Arch, r)
		}
	}
	if c.TiedHead && cmp.Or(c.EmbedScale, 1) != cmp.Or(c.LogitScale, 1) {
		return fmt.Errorf("arch: %s: different factors of the embedding and of the output, which are one matrix, are not converted", c.Arch)
	}
	v.parts = of.MambaIn
	c.EmbedScale, c.LogitScale, c.AttnScale, c.Factors = 0, 0, 0, Factors{}
	v.Config = &c
	return nil
}

// addScaled adds the rows of a role's weight, multiplied by the factors that it contains.
func (v *conversion) addScaled(r Role, to string, shape []uint64, rows ConvertedRows) error {
	rows.Scale = v.folded[r]
	m := &v.Config.Mamba
	if r != MambaIn || v.parts[0] == 0 {
		return v.add(to, shape, rows)
	}
	inner, group := uint64(m.inner()), uint64(m.Groups*m.State)
	for i, n := range []uint64{inner, inner, group, group, uint64(m.Heads)} {
		part := rows
		part.Rows, part.Scale = n, v.parts[i]
		if err := v.add(to, []uint64{n, shape[1]}, part); err != nil {
			return err
		}
		rows.First += n
	}
	return nil
}
