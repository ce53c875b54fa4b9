package jinja

import (
	"net/url"
	"regexp"
	"strings"
)

// moreFilters returns the filters for sequences and for whole texts.
func moreFilters() map[string]filter {
	return map[string]filter{
		"batch":       batch,
		"slice":       sliced,
		"groupby":     groupBy,
		"format":      func(r *render, v any, a args) any { return r.formatFilter(v, a) },
		"center":      func(r *render, v any, a args) any { return centered(r, v, a) },
		"wordcount":   func(r *render, v any, _ args) any { return len(wordRE.FindAllString(r.spent(v), -1)) },
		"truncate":    truncate,
		"striptags":   stripTags,
		"forceescape": onText(escape),
		"urlencode":   urlEncode,
	}
}

// Patterns for words and for HTML tags.
var (
	wordRE = regexp.MustCompile(`[\p{L}\p{N}_]+`)
	tagRE  = regexp.MustCompile(`(?s)<!--.*?-->|<[^>]*>`)
)

// spent converts a value to text and charges the cost to the budget.
func (r *render) spent(v any) string {
	s := r.str(v)
	r.spend(len(s) / 4)
	return s
}

// filled appends v until the list has n elements.
func (r *render) filled(l *List, n int, v any) {
	r.spend(max(0, n-len(l.Items)))
	for len(l.Items) < n {
		l.Items = append(l.Items, v)
	}
}

// batch splits a sequence into lists of a given length. It may fill up the last list.
func batch(r *render, v any, a args) any {
	n := integer(a.get(0, "linecount", nil), "a length")
	if n <= 0 {
		fail("the length of a batch is %d", n)
	}
	out := &List{}
	items := r.items(v)
	for len(items) > 0 {
		l := r.copied(items[:min(n, len(items))])
		items = items[len(l.Items):]
		if fill := a.get(1, "fill_with", nil); fill != nil {
			r.filled(l, n, fill)
		}
		out.Items = append(out.Items, l)
	}
	return out
}

// sliced splits a sequence into a given number of lists, the first ones possibly longer
// by one element. It may fill up the others.
func sliced(r *render, v any, a args) any {
	n := integer(a.get(0, "slices", nil), "a number of parts")
	if n <= 0 {
		fail("the number of slices is %d", n)
	}
	items := r.items(v)
	r.spend(n)
	each, longer := len(items)/n, len(items)%n
	out := &List{}
	for i := range n {
		size := each
		if i < longer {
			size++
		}
		l := r.copied(items[:size])
		items = items[size:]
		if fill := a.get(1, "fill_with", nil); fill != nil && i >= longer {
			l.Items = append(l.Items, fill)
		}
		out.Items = append(out.Items, l)
	}
	return out
}

// groupBy sorts by an attribute and returns pairs of an attribute value and the list of
// elements with that value.
func groupBy(r *render, v any, a args) any {
	attr := a.get(0, "attribute", nil)
	cased := truth(a.get(2, "case_sensitive", false))
	by := func(item any) any {
		k := r.path(item, attr)
		if _, missing := k.(undefined); missing {
			k = a.get(1, "default", k)
		}
		return k
	}
	out := &List{}
	var last any
	for _, item := range r.order(r.items(v), cased, false, by) {
		k := by(item)
		if n := len(out.Items); n > 0 && r.equal(r.folded(k, cased), last, 0) {
			members := out.Items[n-1].(*List).Items[1].(*List)
			members.Items = append(members.Items, item)
			continue
		}
		last = r.folded(k, cased)
		out.Items = append(out.Items, &List{Items: []any{k, &List{Items: []any{item}}}, tuple: true, group: true})
	}
	return out
}

func (r *render) formatFilter(v any, a args) string {
	if len(a.list) > 0 && len(a.named) > 0 {
		fail("format accepts either named or unnamed values, not both")
	}
	if len(a.named) > 0 {
		return r.printf(r.str(v), newDict(args{named: a.named, order: a.order}))
	}
	return r.printf(r.str(v), &List{Items: a.list, tuple: true})
}

func centered(r *render, v any, a args) string {
	return r.padded(r.str(v), integer(a.get(0, "width", 80), "a width"), " ", true, true)
}

// truncate shortens a text and appends dots. It cuts after a whole word unless killwords is
// true.
func truncate(r *render, v any, a args) any {
	s := []rune(r.spent(v))
	length := integer(a.get(0, "length", 255), "a length")
	end := text(a.get(2, "end", "..."), "the end")
	leeway := integer(a.get(3, "leeway", 5), "the leeway")
	dots := len([]rune(end))
	if length < dots || leeway < 0 {
		fail("the length %d is too small for %q", length, end)
	}
	if leeway > len(s) || len(s) <= length+leeway {
		return string(s)
	}
	short := string(s[:length-dots])
	if !truth(a.get(1, "killwords", false)) {
		if i := strings.LastIndex(short, " "); i >= 0 {
			short = short[:i]
		}
	}
	return short + end
}

// entities resolves the HTML entities that stripTags supports.
var entities = strings.NewReplacer("&amp;", "&", "&lt;", "<", "&gt;", ">", "&#34;", `"`, "&quot;", `"`, "&#39;", "'", "&nbsp;", "\u00a0")

func stripTags(r *render, v any, _ args) any {
	return entities.Replace(strings.Join(strings.Fields(tagRE.ReplaceAllString(r.spent(v), "")), " "))
}

// urlEncode escapes a text for the path of a URL, or a mapping for its query.
func urlEncode(r *render, v any, _ args) any {
	d, ok := v.(*Dict)
	if !ok {
		s := strings.ReplaceAll(url.QueryEscape(r.spent(v)), "+", "%20")
		return strings.ReplaceAll(s, "%2F", "/")
	}
	var parts []string
	for _, k := range d.keys {
		parts = append(parts, url.QueryEscape(r.spent(k))+"="+url.QueryEscape(r.spent(d.values[k])))
	}
	return r.join("&", parts...)
}
