package pianola

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrStopString says that a stop string is empty or no UTF-8.
var ErrStopString = errors.New("pianola: a stop string must be text")

// stopStrings ends a text before the first of some strings. What may become one
// is withheld until it is known.
type stopStrings struct {
	list []string
	tail string // the beginning of one, at the end of the text so far
}

func newStopStrings(list []string) (*stopStrings, error) {
	for _, s := range list {
		if s == "" || !utf8.ValidString(s) {
			return nil, fmt.Errorf("%w: %q", ErrStopString, s)
		}
	}
	return &stopStrings{list: list}, nil
}

// next returns what can be shown of a text that follows, and whether a stop string
// ends it there.
func (p *stopStrings) next(text string) (show string, stop bool) {
	text = p.tail + text
	end := -1
	for _, s := range p.list {
		if i := strings.Index(text, s); i >= 0 && (end < 0 || i < end) {
			end = i
		}
	}
	if end >= 0 {
		p.tail = ""
		return text[:end], true
	}
	keep := 0
	for _, s := range p.list {
		for n := min(len(s)-1, len(text)); n > keep; n-- {
			if strings.HasSuffix(text, s[:n]) {
				keep = n
			}
		}
	}
	p.tail = text[len(text)-keep:]
	return text[:len(text)-keep], false
}

// flush returns what was withheld, at the end of the text.
func (p *stopStrings) flush() string {
	tail := p.tail
	p.tail = ""
	return tail
}
