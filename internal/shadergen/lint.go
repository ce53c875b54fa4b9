package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
)

// position describes one of the attributes that give a kernel its position in the grid.
type position struct {
	attr   string
	ptx    string // expression for PTX: a uint3, or a uint if scalar
	host   string // expression for the emulator, with pianola_position *at
	scalar bool   // the attribute is always a scalar; others may have three components
}

// positions are the position attributes that kernels may use. Grids have one dimension.
var positions = []position{
	{"threadgroup_position_in_grid", "metal::shim::group()", "uint3(at->group[0], at->group[1], at->group[2])", false},
	{"threadgroups_per_grid", "metal::shim::groups()", "uint3(at->groups[0], at->groups[1], at->groups[2])", false},
	{"threads_per_threadgroup", "uint3(metal::shim::threads(), 1u, 1u)", "uint3(at->threads, 1u, 1u)", false},
	{"thread_position_in_threadgroup", "uint3(metal::shim::thread_index(), 0u, 0u)", "uint3(at->index, 0u, 0u)", false},
	{"thread_position_in_grid", "(metal::shim::group() * uint3(metal::shim::threads(), 1u, 1u) + uint3(metal::shim::thread_index(), 0u, 0u))",
		"uint3(at->group[0] * at->threads + at->index, at->group[1], at->group[2])", false},
	{"thread_index_in_threadgroup", "metal::shim::thread_index()", "at->index", true},
	{"thread_index_in_simdgroup", "(metal::shim::thread_index() & 31u)", "(at->index & 31u)", true},
	{"simdgroup_index_in_threadgroup", "(metal::shim::thread_index() >> 5)", "(at->index >> 5)", true},
	{"simdgroups_per_threadgroup", "(metal::shim::threads() >> 5)", "(at->threads >> 5)", true},
	{"threads_per_simdgroup", "32u", "32u", true},
}

func positionOf(attr string) (*position, bool) {
	i := slices.IndexFunc(positions, func(p position) bool { return p.attr == attr })
	if i < 0 {
		return nil, false
	}
	return &positions[i], true
}

// banned lists words that Metal does not support or that the project's rules forbid.
var banned = []struct {
	words []string
	why   string
}{
	{[]string{"double"}, "Metal has no double"},
	{[]string{"virtual", "dynamic_cast", "typeid", "try", "catch", "throw", "new", "delete", "thread_local"}, "Metal has no %s"},
	{[]string{"goto", "asm", "union", "static_cast", "reinterpret_cast", "const_cast", "volatile"}, "house rule: no %s"},
	{[]string{"bool2", "bool3", "bool4"}, "house rule: no vectors of bool; compare element by element"},
	{[]string{"INFINITY", "NAN", "HUGE_VALF", "isnan", "isinf", "isfinite"}, "%s: Metal's fast math assumes finite numbers; use a finite sentinel"},
	{[]string{"host_name"}, "a kernel must not be a template: write inline templates and thin kernels"},
}

var scalarPosition = regexp.MustCompile(`^(uint|ushort)$`)
var vectorPosition = regexp.MustCompile(`^(uint|ushort)([23]?)$`)

// checkParam checks a single parameter of a kernel.
func (s *source) checkParam(p *parameter) {
	words := strings.Fields(p.typ)
	space := words[0]
	if space == "const" && len(words) > 1 {
		space = words[1]
	}
	pointer := strings.ContainsAny(p.typ, "*&")
	at, isPosition := positionOf(p.attr)
	switch {
	case p.attr == "":
		s.fail(p.at, "parameter "+p.name+" has no [[attribute]]")
	case p.attr == "buffer" && (!pointer || space != "device" && space != "constant"):
		s.fail(p.at, p.name+": a [[buffer]] is a pointer or a reference to device or constant")
	case p.attr == "threadgroup" && (!pointer || space != "threadgroup"):
		s.fail(p.at, p.name+": [[threadgroup]] is a pointer to threadgroup")
	case (p.attr == "buffer" || p.attr == "threadgroup") && (p.index < 0 || p.index > 30):
		s.fail(p.at, p.name+": the index of [["+p.attr+"]] must be from 0 to 30")
	case p.attr == "buffer" || p.attr == "threadgroup":
	case !isPosition:
		s.fail(p.at, p.name+": unknown attribute [["+p.attr+"]]")
	case at.scalar && !scalarPosition.MatchString(p.typ):
		s.fail(p.at, p.name+": [["+p.attr+"]] is a uint or a ushort")
	case !vectorPosition.MatchString(p.typ):
		s.fail(p.at, p.name+": [["+p.attr+"]] is a uint, a ushort or a vector of them")
	}
}

// checkParams checks the rules that concern several of a kernel's parameters.
func (s *source) checkParams(list []parameter) {
	dims := ""
	for i := range list {
		p := &list[i]
		if p.index >= 0 && slices.ContainsFunc(list[:i], func(q parameter) bool { return q.attr == p.attr && q.index == p.index }) {
			s.fail(p.at, fmt.Sprintf("[[%s(%d)]] is used twice", p.attr, p.index))
		}
		if at, ok := positionOf(p.attr); ok && !at.scalar {
			m := vectorPosition.FindStringSubmatch(p.typ)
			if m == nil {
				continue
			}
			if dims != "" && dims != "x"+m[2] {
				s.fail(p.at, "Metal wants the same number of components for all positions: "+p.name)
			}
			dims = "x" + m[2]
		}
	}
}

// lint checks the rules that need only the tokens.
func (s *source) lint() {
	for i, t := range s.tokens {
		for _, b := range banned {
			if slices.Contains(b.words, t.s) {
				s.fail(t, strings.ReplaceAll(b.why, "%s", t.s))
			}
		}
		switch {
		case strings.HasPrefix(t.s, "__"):
			s.fail(t, "house rule: no names of the compiler's own: "+t.s)
		case t.s == "static" && !s.is(i+1, "inline"):
			s.fail(t, "house rule: static is for inline functions only")
		case t.s == "threadgroup" && s.is(i-1, "{", ";", "}") && !s.pointer(i):
			s.fail(t, "house rule: threadgroup memory is the kernel's [[threadgroup(0)]] alone")
		}
	}
	s.lintRecursion()
}

// pointer reports whether the declaration at token i declares a pointer or a reference.
func (s *source) pointer(i int) bool {
	for ; i < len(s.tokens) && !s.is(i, ";", "=", "("); i++ {
		if s.is(i, "*", "&") {
			return true
		}
	}
	return false
}

// lintRecursion finds functions that call themselves. It also reports declarations without a
// body, which excludes all other forms of recursion.
func (s *source) lintRecursion() {
	for i := 0; i+1 < len(s.tokens); i++ {
		if s.is(i, "{") && (i < 2 || !s.is(i-1, ")")) {
			// A struct, an enum, an initializer or a namespace may contain functions, so check its
			// content too.
			continue
		}
		if !s.is(i+1, "(") || !isWord(s.tokens[i].s) || i == 0 || !isWord(s.tokens[i-1].s) && !s.is(i-1, "*", "&", ">") || s.is(i-1, "return", "else", "constexpr") {
			continue
		}
		shut := s.match(i + 1)
		name := s.tokens[i].s
		if !s.is(shut+1, "{") {
			continue
		}
		end := s.match(shut + 1)
		for j := shut + 2; j < end; j++ {
			if s.is(j, name) && s.is(j+1, "(") && !s.is(j-1, ".", "->", "::") {
				s.fail(s.tokens[j], "Metal has no recursion: "+name+" calls itself")
			}
		}
		i = end
	}
}

var word = regexp.MustCompile(`^[A-Za-z_]\w*$`)

func isWord(s string) bool { return word.MatchString(s) }

// lintConstants finds specialisation constants outside of kernels. Other functions must
// receive them as arguments.
func (s *source) lintConstants() {
	for _, t := range s.tokens {
		if !slices.ContainsFunc(decl.Constants, func(c decl.Constant) bool { return strings.ToUpper(c.Name) == t.s }) && t.s != strings.ToUpper(family) {
			continue
		}
		within := func(k kernel) bool {
			return len(k.body) > 0 && t.pos >= k.body[0].pos && t.pos < k.body[len(k.body)-1].end
		}
		if !slices.ContainsFunc(s.kernels, within) {
			s.fail(t, "house rule: "+t.s+" is a function constant, which only kernels may name: pass it as an argument")
		}
	}
}
