package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// parameter is a parameter of a kernel function.
type parameter struct {
	typ   string // with one space between words: "device const float *"
	name  string
	attr  string // "buffer", "threadgroup" or a position attribute
	index int    // index of a buffer or of threadgroup memory
	at    token
}

// writable reports whether the kernel may write through the parameter, which must be a device
// pointer.
func (p *parameter) writable() bool { return !slices.Contains(strings.Fields(p.typ), "const") }

// kernel is a kernel function in the source.
type kernel struct {
	name       string
	params     []parameter
	maxThreads int
	ahead      []string // bindings that it may read before the preceding commands have ended
	requests   string   // bindings of which it may request bytes for the L2 cache before
	settled    []string // bindings that it may read before if the command's parameter settled is 1
	body       []token
	at         token
}

// source is a .metal file or a header.
type source struct {
	path    string // file name in errors, such as "shaders/norm.metal"
	text    string
	tokens  []token
	kernels []kernel
	faults  []error

	comments []comment
	edits    []edit
}

// edit replaces bytes of the text for compilers other than Apple's.
type edit struct {
	pos, end int
	with     string
}

// base returns the file's name.
func (s *source) base() string { return filepath.Base(s.path) }

func (s *source) fail(at token, what string) { s.failAt(at.pos, what) }

func (s *source) failAt(pos int, what string) {
	s.faults = append(s.faults, &fault{s.path, 1 + strings.Count(s.text[:pos], "\n"), what})
}

// parseSource parses a text. It collects errors in faults.
func parseSource(path, text string) *source {
	s := &source{path: path, text: text}
	s.tokens, s.comments = lex(text)
	if at, ok := s.unbalanced(); ok {
		s.fail(at, "a bracket is not balanced")
		return s
	}
	s.findKernels()
	s.lint()
	return s
}

// unbalanced returns a bracket that has no partner, if there is one.
func (s *source) unbalanced() (token, bool) {
	partner := [...][2]string{{"(", ")"}, {"{", "}"}, {"[", "]"}, {"[[", "]]"}}
	var open []token
	for _, t := range s.tokens {
		for _, p := range partner {
			switch t.s {
			case p[0]:
				open = append(open, t)
			case p[1]:
				if len(open) == 0 || open[len(open)-1].s != p[0] {
					return t, true
				}
				open = open[:len(open)-1]
			}
		}
	}
	if len(open) > 0 {
		return open[0], true
	}
	return token{}, false
}

// is reports whether token i equals one of the words.
func (s *source) is(i int, words ...string) bool {
	return i >= 0 && i < len(s.tokens) && slices.Contains(words, s.tokens[i].s)
}

// match returns the index of the bracket that closes the bracket at i.
func (s *source) match(i int) int {
	depth := 0
	for ; i < len(s.tokens); i++ {
		switch s.tokens[i].s {
		case "(", "{", "[", "[[":
			depth++
		case ")", "}", "]", "]]":
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return len(s.tokens) - 1
}

// words returns the tokens [a, b), separated by one space.
func (s *source) words(a, b int) string {
	if a >= b {
		return ""
	}
	return strings.Join(strings.Fields(s.text[s.tokens[a].pos:s.tokens[b-1].end]), " ")
}

// blank removes the tokens [a, b] from the text for other compilers.
func (s *source) blank(a, b int) {
	from, to := s.tokens[a].pos, s.tokens[b].end
	s.edits = append(s.edits, edit{from, to, strings.Repeat("\n", strings.Count(s.text[from:to], "\n"))})
}

// findKernels finds the kernel functions with their attributes.
func (s *source) findKernels() {
	maxThreads := 0
	for i := 0; i < len(s.tokens); i++ {
		switch {
		case s.is(i, "[[") && s.is(i+1, "max_total_threads_per_threadgroup"):
			end := s.match(i)
			n, err := strconv.Atoi(s.words(i+3, end-1))
			if err != nil || n < 32 || n > 1024 || n%32 != 0 {
				s.fail(s.tokens[i], "max_total_threads_per_threadgroup must be a number, a multiple of 32 up to 1024")
			}
			maxThreads = n
			s.blank(i, end)
			i = end
		case s.is(i, "[[") && s.is(i+1, "function_constant"):
			end := s.match(i)
			s.blank(i, end)
			s.edits[len(s.edits)-1].with = "= 0" // only tests: constants.h defines them
			i = end
		case s.is(i, "kernel"):
			i = s.kernel(i, maxThreads)
			maxThreads = 0
		}
	}
}

// kernel parses the kernel function at token i and returns the index of its last token.
func (s *source) kernel(i, maxThreads int) int {
	if i > 0 && s.is(i-1, ">") {
		s.fail(s.tokens[i], "a kernel must not be a template: write inline templates and thin kernels")
	}
	if !s.is(i+1, "void") || !s.is(i+3, "(") {
		s.fail(s.tokens[i], "a kernel must be `kernel void name(...)`")
		return i
	}
	open := i + 3
	shut := s.match(open)
	k := kernel{name: s.tokens[i+2].s, maxThreads: maxThreads, at: s.tokens[i+2], params: s.params(open+1, shut),
		ahead: strings.Fields(s.rule(aheadRule, i)), requests: s.rule(requestRule, i),
		settled: strings.Fields(s.rule(settledRule, i))}
	if !s.is(shut+1, "{") {
		s.fail(s.tokens[shut], "kernel "+k.name+" has no body")
		return shut
	}
	end := s.match(shut + 1)
	k.body = s.tokens[shut+2 : end]
	// Make the kernel a template, so that code excluded by an entry's constants is not compiled.
	s.edits = append(s.edits, edit{s.tokens[i].pos, s.tokens[i].pos, "template <typename pianola_constants_of> "},
		edit{s.tokens[shut].pos, s.tokens[shut].pos, ", const pianola_constants_of pianola_fc"})
	s.kernels = append(s.kernels, k)
	return end
}

// aheadRule matches the comment before a kernel that reads bindings ahead.
var aheadRule = regexp.MustCompile(`^reads ahead: (.+)$`)

// requestRule matches the comment before a kernel that requests bindings for the L2 cache ahead, or reads the
// records of caches ahead (cache_of). No command writes them.
var requestRule = regexp.MustCompile(`^(?:requests|finds) ahead: (.+)$`)

// settledRule matches the comment before a kernel that reads bindings early if they are settled.
var settledRule = regexp.MustCompile(`^settled: (.+)$`)

// rule returns the submatch of a comment before token i that matches form, or "".
func (s *source) rule(form *regexp.Regexp, i int) string {
	from := 0
	for j := i - 1; j >= 0; j-- {
		if s.is(j, "}", ";") {
			from = s.tokens[j].end
			break
		}
	}
	for _, c := range s.comments {
		if m := form.FindStringSubmatch(c.text); m != nil && c.pos >= from && c.pos < s.tokens[i].pos {
			return m[1]
		}
	}
	return ""
}

// params parses the tokens [a, b), which are a kernel's parameters.
func (s *source) params(a, b int) []parameter {
	var list []parameter
	for i := a; i < b; {
		end := i // end of this parameter
		for depth := 0; end < b && (depth > 0 || !s.is(end, ",")); end++ {
			switch {
			case s.is(end, "(", "[", "[[", "<"):
				depth++
			case s.is(end, ")", "]", "]]", ">"):
				depth--
			}
		}
		attr := i
		for attr < end && !s.is(attr, "[[") {
			attr++
		}
		if attr-i < 2 {
			s.fail(s.tokens[i], "a kernel's parameter needs a type, a name and an attribute")
			return list
		}
		p := parameter{typ: s.words(i, attr-1), name: s.tokens[attr-1].s, at: s.tokens[attr-1], index: -1}
		if attr < end {
			shut := s.match(attr)
			p.attr = s.tokens[attr+1].s
			if s.is(attr+2, "(") {
				n, err := strconv.Atoi(s.words(attr+3, shut-1))
				if err != nil {
					s.fail(p.at, p.name+": the attribute's index is not a number")
				}
				p.index = n
			}
			s.blank(attr, shut)
		}
		s.checkParam(&p)
		list = append(list, p)
		i = end + 1
	}
	s.checkParams(list)
	return list
}

// preprocessed returns the text for compilers other than Apple's. Attributes are removed,
// kernels receive the specialisation constants as their last parameter, and every token
// remains on its line.
func (s *source) preprocessed() string {
	sort.SliceStable(s.edits, func(i, j int) bool { return s.edits[i].pos < s.edits[j].pos })
	var b strings.Builder
	b.WriteString("#line 1 " + strconv.Quote(s.path) + "\n")
	last := 0
	for _, e := range s.edits {
		b.WriteString(s.text[last:e.pos] + e.with)
		last = e.end
	}
	b.WriteString(s.text[last:])
	return b.String()
}
