package tokenizer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
	"github.com/google/go-cmp/cmp"
)

// oracle is a pattern with a backtracking regular expression that finds the same matches.
type oracle struct {
	name    string
	pattern string // as tokenizer files write it
	regexp  string // as package regexp2 needs it, if that differs
}

// oracles returns the patterns. regexp2 folds case for ASCII only and has no possessive
// quantifiers; for patterns that need these, regexp is an equivalent expression without them.
func oracles() []oracle {
	const (
		contraction = `(?:'[sSſ]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`
		upper       = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
		lower       = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
		rest        = `\s*[\r\n]+|\s+(?!\S)|\s+`
	)
	return []oracle{
		{name: "gpt2", pattern: `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`},
		{
			name:    "cl100k possessive",
			pattern: `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`,
			regexp:  contraction + `|(?>[^\r\n\p{L}\p{N}]?)\p{L}+|\p{N}{1,3}| ?(?>[^\s\p{L}\p{N}]+)[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`,
		},
		{
			name:    "llama3",
			pattern: `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
			regexp:  contraction + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|` + rest,
		},
		{name: "llama3 without flags", pattern: `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
		{
			name:    "qwen2",
			pattern: `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
			regexp:  contraction + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|` + rest,
		},
		{
			name:    "qwen35",
			pattern: `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
			regexp:  contraction + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|` + rest,
		},
		{
			name:    "o200k",
			pattern: `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
			regexp: `[^\r\n\p{L}\p{N}]?` + upper + `*` + lower + `+` + contraction + `?|[^\r\n\p{L}\p{N}]?` + upper + `+` + lower + `*` + contraction + `?` +
				`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|` + rest,
		},
		{
			name:    "kimi",
			pattern: `[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
			regexp: `\p{Han}+|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})` + upper + `)*(?:(?!\p{Han})` + lower + `)+` + contraction + `?|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})` + upper + `)+(?:(?!\p{Han})` + lower + `)*` + contraction + `?` +
				`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|` + rest,
		},
		{name: "tekken", pattern: `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
		{name: "digit", pattern: `\p{N}`},
		{name: "digits", pattern: `\p{N}{1,3}`},
		{name: "numbers", pattern: `\p{N}+`},
	}
}

// lengths returns the lengths in characters of the pieces of s: the matches of re and the
// texts between them.
func lengths(t testing.TB, re *regexp2.Regexp, s []rune) (out []int) {
	m, err := re.FindRunesMatch(s)
	from := 0
	for ; m != nil && err == nil; m, err = re.FindNextMatch(m) {
		if m.Index > from {
			out = append(out, m.Index-from)
		}
		out = append(out, m.Length)
		from = m.Index + m.Length
	}
	if err != nil {
		t.Fatal(err)
	}
	if from < len(s) {
		out = append(out, len(s)-from)
	}
	return out
}

func splitLengths(t testing.TB, sp pattern, s string) (out []int) {
	for s != "" {
		n, _ := sp.next(s)
		if n < 1 || n > len(s) {
			t.Fatalf("%T returns a piece of %[3]d bytes of %[2]q", sp, s, n)
		}
		out = append(out, utf8.RuneCountInString(s[:n]))
		s = s[n:]
	}
	return out
}

// splitCheck is a pattern with the regular expression whose matches it must find.
type splitCheck struct {
	name string
	sp   pattern
	re   *regexp2.Regexp
}

func splitChecks(t testing.TB) []splitCheck {
	var checks []splitCheck
	classes := newClassTable()
	for _, o := range oracles() {
		sp, ok := knownPattern(classes, o.pattern)
		if !ok {
			t.Fatalf("knownPattern does not know %s", o.name)
		}
		if o.regexp == "" {
			o.regexp = o.pattern
		}
		checks = append(checks, splitCheck{o.name, sp, regexp2.MustCompile(o.regexp, regexp2.None)})
	}
	// llama.cpp's default has no pattern in tokenizer.json, only its name in GGUF.
	checks = append(checks,
		splitCheck{
			"punctuation", runPattern{classes: classes, set: punct, ascii: "$+<=>^~|", limit: math.MaxInt},
			regexp2.MustCompile(`[\p{P}\$\+<=>\^~\|]+`, regexp2.None),
		},
		splitCheck{"triple", triplePattern{}, regexp2.MustCompile(`[0-9][0-9][0-9]`, regexp2.None)},
	)
	return checks
}

// compareSplits runs all checks on s.
func compareSplits(t testing.TB, checks []splitCheck, s string) {
	t.Helper()
	for _, c := range checks {
		want, got := lengths(t, c.re, []rune(s)), splitLengths(t, c.sp, s)
		if !cmp.Equal(want, got) {
			t.Fatalf("%s of %q: pieces of %v characters, want %v", c.name, s, got, want)
		}
	}
}

func TestSplitsCorpus(t *testing.T) {
	checks := splitChecks(t)
	compareSplits(t, checks, corpus(t))
	compareSplits(t, checks, heldout(t)[:20000])
}

func TestSplitsRandom(t *testing.T) {
	checks := splitChecks(t)
	// The first alphabet makes the rules interact closely; the second is all of Unicode.
	alphabet := []string{
		"a", "b", "s", "S", "t", "r", "e", "E", "l", "L", "v", "d", "A", "B", "Z", "'", "'", "'s", "'LL", "'ſ", "ſ",
		" ", " ", "  ", "\t", "\n", "\r", "\r\n", "\v", "\u0085", "\u00a0", "\u2028", "\u3000", "/", "/", ".", "!", "$", "|", "`",
		"1", "22", "٣", "½", "Ⅷ", "é", "É", "ǅ", "ʰ", "中", "文", "ا", "\u0301", "\u0301", "\u0e31", "\u200d", "😀", "\x00", "\xff", "\xe4\xb8", "\u0378", "𝕳", "𠀀", "🇩",
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2500 {
		var b strings.Builder
		for range 1 + rng.IntN(24) {
			if rng.IntN(12) == 0 {
				b.WriteRune(rune(rng.IntN(unicode.MaxRune + 1)))
			} else {
				b.WriteString(alphabet[rng.IntN(len(alphabet))])
			}
		}
		compareSplits(t, checks, b.String())
	}
}

func FuzzSplit(f *testing.F) {
	for _, s := range []string{"it's 1234  x\n", " \r\n\t é\u0301A", "中ABc'S/\n", "\xff\xe4\xb8 a"} {
		f.Add(s)
	}
	checks := splitChecks(f)
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) <= 1000 { // regexp2 backtracks and is slow on long texts
			compareSplits(t, checks, s)
		}
	})
}

func TestClasses(t *testing.T) {
	classes := newClassTable()
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if r >= 0xd800 && r < 0xe000 {
			continue
		}
		c, n := classes.at(string(r), 0)
		if n != utf8.RuneLen(r) {
			t.Fatalf("%U: %d bytes", r, n)
		}
		got := [...]bool{c&letter != 0, c&mark != 0, c&number != 0, c&space != 0, c&punct != 0, c&lower != 0, c&cased != 0}
		want := [...]bool{unicode.IsLetter(r), unicode.IsMark(r), unicode.IsNumber(r), unicode.IsSpace(r), unicode.IsPunct(r), unicode.IsLower(r) && unicode.Is(unicode.Ll, r), unicode.In(r, unicode.Lu, unicode.Lt)}
		if got != want {
			t.Fatalf("%U: classes %v, want %v", r, got, want)
		}
	}
}

// TestSplitTime checks that no pattern takes quadratic time. It splits 256 KiB of the worst
// inputs for each rule.
func TestSplitTime(t *testing.T) {
	classes := newClassTable()
	names := []string{"default", "gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "tekken"}
	for _, unit := range []string{"a", "A", "1", " ", "\n", " \n", "!", "'", "\u0301", "\u0301A", "中A", "A中", "\xff", "/", " \t", "'s"} {
		text := strings.Repeat(unit, 1<<18/len(unit)) + "x"
		for _, name := range names {
			t.Run(fmt.Sprintf("%s/%q", name, unit), func(t *testing.T) {
				pre, _ := ggufPreTokenizer(classes, name)
				start := time.Now()
				for _, st := range pre.stages {
					splitLengths(t, st.cut.(isolated).pattern, text)
				}
				if d := time.Since(start); d > 10*time.Second {
					t.Errorf("took %v", d)
				}
			})
		}
	}
}

// TestLineEndPattern divides texts at white space before the ends of lines.
func TestLineEndPattern(t *testing.T) {
	for text, want := range map[string][]string{
		"a b":          {"a b"},
		"a b  ":        {"a b", "  "},
		"  ":           {"  "},
		" \t\u3000":    {" \t\u3000"},
		"a  \nb":       {"a", "  ", "\nb"},
		"a\nb":         {"a\nb"},
		"a \n \n c d ": {"a", " \n ", "\n c d", " "},
	} {
		var got []string
		for rest := text; rest != ""; {
			n, _ := lineEndPattern{}.next(rest)
			got, rest = append(got, rest[:n]), rest[n:]
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
