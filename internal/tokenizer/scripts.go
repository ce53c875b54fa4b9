package tokenizer

import (
	"cmp"
	"slices"
	"unicode"
	"unicode/utf8"
)

// scriptCutter is the pre-tokenizer UnicodeScripts. It cuts between characters of different
// scripts. Spaces and characters without a script match any script; at the start of a text
// they are dropped. Hiragana, Katakana and the prolonged sound mark count as Han.
type scriptCutter []scriptRange

// scriptRange is a range of characters of one script, which is given by its index in a list.
type scriptRange struct {
	lo, hi rune
	script int
}

const anyScript = 0

func newScriptCutter() scriptCutter {
	const han = 1
	next := han
	var c scriptCutter
	for name, table := range unicode.Scripts {
		script := han
		if name != "Han" && name != "Hiragana" && name != "Katakana" {
			next++
			script = next
		}
		for _, r := range table.R16 {
			c.add(rune(r.Lo), rune(r.Hi), rune(r.Stride), script)
		}
		for _, r := range table.R32 {
			c.add(rune(r.Lo), rune(r.Hi), rune(r.Stride), script)
		}
	}
	slices.SortFunc(c, func(a, b scriptRange) int { return cmp.Compare(a.lo, b.lo) })
	return c
}

func (c *scriptCutter) add(lo, hi, stride rune, script int) {
	if stride == 1 {
		*c = append(*c, scriptRange{lo, hi, script})
		return
	}
	for r := lo; r <= hi; r += stride {
		*c = append(*c, scriptRange{r, r, script})
	}
}

func (c scriptCutter) script(r rune) int {
	switch r {
	case ' ':
		return anyScript
	case 'ー':
		r = '一'
	}
	i, ok := slices.BinarySearchFunc(c, r, func(s scriptRange, r rune) int {
		switch {
		case s.hi < r:
			return -1
		case s.lo > r:
			return 1
		}
		return 0
	})
	if !ok {
		return anyScript
	}
	return c[i].script
}

func (c scriptCutter) next(s string) (int, bool) {
	last := anyScript
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if script := c.script(r); script != anyScript && script != last {
			if i > 0 {
				return i, last != anyScript
			}
			last = script
		}
		i += n
	}
	return len(s), last != anyScript
}
