package chip

import (
	"fmt"
	"slices"
	"strings"
)

// GPU holds the properties that an Apple GPU reports.
type GPU struct {
	Name   string // such as "Apple M4 Max"
	Family int    // latest known Apple GPU family that the GPU supports; 0 if none
	Cores  int    // number of GPU cores; 0 if unknown
}

// ForGPU returns a copy of the chip data that fits an Apple GPU best: the chip of the GPU's name;
// otherwise the latest chip of its family, or of the latest family before it, with the same tier
// or the closest number of cores. Cores is then set to the GPU's number of cores, and the bandwidth
// to the bandwidth of the variant with that number. note lists the values that are guesses, or is
// "".
func ForGPU(g GPU) (c *Chip, note string, err error) {
	var all []*Chip
	for _, name := range files() {
		c, err := load(name)
		if err != nil {
			return nil, "", err
		}
		if c.Device == Metal {
			all = append(all, c)
		}
	}
	name := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(g.Name, "Apple ")), " ", "-")
	for _, known := range all { // m4-max must not match m4
		if rest, ok := strings.CutPrefix(name, known.Name); ok && (rest == "" || rest[0] == '-') && (c == nil || len(known.Name) > len(c.Name)) {
			c = known
		}
	}
	// An M5 Ultra is not an M5.
	if c != nil && tier(name) != tier(c.Name) {
		c = nil
	}
	var notes []string
	if c == nil {
		c = closest(all, tier(name), g)
		notes = append(notes, fmt.Sprintf("the GPU is not known, the data are those of %s", c.Name))
		c.Title = g.Name
		if c.Title == "" {
			c.Title = "a GPU without a name"
		}
	} else if g.Family != 0 && g.Family != c.Family {
		notes = append(notes, fmt.Sprintf("its family is Apple %d, %s is of Apple %d", g.Family, c.Name, c.Family))
	}
	if g.Cores > 0 && g.Cores != c.Cores {
		if i := slices.IndexFunc(c.Variants, func(v Variant) bool { return v.Cores == g.Cores }); i >= 0 {
			c.become(c.Variants[i])
		} else {
			notes = append(notes, fmt.Sprintf("%s has %d cores: the bandwidth is a guess", c.Name, c.Cores))
			c.become(Variant{g.Cores, c.BandwidthGBs})
		}
	}
	c.Variants = nil
	return c, strings.Join(notes, "; "), c.Validate()
}

// tiers are the suffixes of chip names.
var tiers = []string{"pro", "max", "ultra"}

// tier returns the tier in a name, or "" for the smallest chips. An A18 Pro has none: it is a
// phone's chip.
func tier(name string) string {
	if !strings.HasPrefix(name, "m") {
		return ""
	}
	for _, word := range strings.Split(name, "-") {
		if slices.Contains(tiers, word) {
			return word
		}
	}
	return ""
}

// closest returns the chip most similar to a GPU. It prefers the GPU's family, then the latest
// family before it, then the first one; within a family the same tier, then the closest number of
// cores; and of several chips the latest generation.
func closest(all []*Chip, tier string, g GPU) *Chip {
	slices.SortStableFunc(all, func(a, b *Chip) int { return strings.Compare(b.Name, a.Name) }) // m5 before m4
	family := 0
	for _, c := range all {
		if c.Family <= max(g.Family, 7) {
			family = max(family, c.Family)
		}
	}
	of := slices.DeleteFunc(slices.Clone(all), func(c *Chip) bool { return c.Family != family })
	if tier != "" {
		for _, c := range of {
			if strings.HasSuffix(c.Name, "-"+tier) {
				return c
			}
		}
	}
	best := of[0]
	away := func(c *Chip) int {
		if g.Cores == 0 {
			return c.Cores
		}
		return max(c.Cores-g.Cores, g.Cores-c.Cores)
	}
	for _, c := range of {
		if away(c) < away(best) {
			best = c
		}
	}
	return best
}
