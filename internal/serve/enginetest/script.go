package enginetest

import (
	"strings"
	"unicode"

	"github.com/pianola-engine/pianola/internal/serve/engine"
)

// Input is what a script answers.
type Input struct {
	Prompt     string // what the tokens of the prompt stand for
	Generation engine.Generation
}

// Script is an answer. A stop token follows its steps.
type Script struct {
	Steps  []Step
	Cached int // tokens of the prompt that were found in a cache
}

// Step is a token of an answer, or an event before it.
type Step struct {
	Wait    <-chan struct{} // the step waits until the channel is closed
	Err     error           // if not nil, the generation ends with it
	Text    string          // the bytes of the token; they may be a part of a character
	Special string          // the name of a special token, which has no text
	Stop    bool            // the token is a stop token
}

// Words returns the steps of a text: one for each word with the space before it, for each line
// break, and for each name of a special token such as <|channel|>.
func Words(text string) (steps []Step) {
	for text != "" {
		if strings.HasPrefix(text, "<|") {
			if i := strings.Index(text, "|>"); i > 0 {
				steps = append(steps, Step{Special: text[:i+2]})
				text = text[i+2:]
				continue
			}
		}
		end := 1 + strings.IndexFunc(text[1:], func(c rune) bool { return unicode.IsSpace(c) || c == '<' })
		if end == 0 {
			end = len(text)
		}
		steps = append(steps, Step{Text: text[:end]})
		text = text[end:]
	}
	return steps
}

// Say returns a script that answers every prompt with a text.
func Say(text string) func(Input) Script {
	steps := Words(text)
	return func(Input) Script { return Script{Steps: steps} }
}

// stopper withholds text that may be the beginning of a stop text.
type stopper struct {
	stop []string
	held string
}

// add takes text, and returns what no stop text contains, and the stop text that was found.
func (s *stopper) add(text string) (said, found string) {
	text = s.held + text
	at := len(text)
	for _, stop := range s.stop {
		if i := strings.Index(text, stop); i >= 0 && (i < at || i == at && len(stop) < len(found)) {
			at, found = i, stop
		}
	}
	if found != "" {
		s.held = ""
		return text[:at], found
	}
	hold := 0
	for _, stop := range s.stop {
		for n := min(len(stop)-1, len(text)); n > hold; n-- {
			if strings.HasSuffix(text, stop[:n]) {
				hold = n
			}
		}
	}
	at = len(text) - hold
	s.held = text[at:]
	return text[:at], ""
}
