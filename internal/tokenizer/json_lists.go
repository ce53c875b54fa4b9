package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// jsonCursor reads the two large values of a tokenizer.json, whose syntax encoding/json has
// already checked. It is several times faster than encoding/json and keeps duplicate keys
// visible.
type jsonCursor struct {
	text string
	pos  int
}

var errMalformed = errors.New("the JSON is malformed")

// peek returns the next byte that is not white space, or 0 at the end.
func (c *jsonCursor) peek() byte {
	for ; c.pos < len(c.text); c.pos++ {
		switch b := c.text[c.pos]; b {
		case ' ', '\t', '\r', '\n':
		default:
			return b
		}
	}
	return 0
}

// take skips b if it is the next byte.
func (c *jsonCursor) take(b byte) bool {
	if c.peek() != b {
		return false
	}
	c.pos++
	return true
}

// str reads a string. The result may share the text's memory.
func (c *jsonCursor) str() (string, error) {
	if c.peek() != '"' {
		return "", errMalformed
	}
	escaped := false
	for i := c.pos + 1; i < len(c.text); i++ {
		switch c.text[i] {
		case '\\':
			escaped = true
			i++
		case '"':
			literal := c.text[c.pos : i+1]
			c.pos = i + 1
			if s := literal[1 : len(literal)-1]; !escaped && utf8.ValidString(s) {
				return s, nil
			}
			var s string
			err := json.Unmarshal([]byte(literal), &s)
			return s, err
		}
	}
	return "", errMalformed
}

// literal reads a number or another value without structure.
func (c *jsonCursor) literal() string {
	c.peek()
	start := c.pos
	for c.pos < len(c.text) && !strings.ContainsRune(",]} \t\r\n", rune(c.text[c.pos])) {
		c.pos++
	}
	return c.text[start:c.pos]
}

type vocabEntry struct {
	token string
	id    int64
	score float64 // Unigram only
}

// parseScored reads [["token", score], ...]; the id of a token is its index.
func parseScored(raw json.RawMessage) ([]vocabEntry, error) {
	c := jsonCursor{text: string(raw)}
	if !c.take('[') {
		return nil, errors.New("is not a list")
	}
	var entries []vocabEntry
	for !c.take(']') {
		i := len(entries)
		if i == maxTokens {
			return nil, fmt.Errorf("more than %d tokens", maxTokens)
		}
		bad := func() ([]vocabEntry, error) { return nil, fmt.Errorf(`token %d: is not ["token", score]`, i) }
		if !c.take('[') || c.peek() != '"' {
			return bad()
		}
		token, err := c.str()
		if err != nil {
			return nil, err
		}
		if !c.take(',') {
			return bad()
		}
		number := c.literal()
		score, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return nil, fmt.Errorf("token %s: %s is not a score", quote(token), quote(number))
		}
		if !c.take(']') {
			return bad()
		}
		entries = append(entries, vocabEntry{strings.Clone(token), int64(i), score})
		if !c.take(',') && c.peek() != ']' {
			return nil, errMalformed
		}
	}
	return entries, nil
}

// parseVocab reads {"token": id, ...}.
func parseVocab(raw json.RawMessage) ([]vocabEntry, error) {
	c := jsonCursor{text: string(raw)}
	if !c.take('{') {
		return nil, errors.New("is not an object")
	}
	var entries []vocabEntry
	for !c.take('}') {
		token, err := c.str()
		if err != nil {
			return nil, err
		}
		if !c.take(':') {
			return nil, errMalformed
		}
		number := c.literal()
		id, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("token %s: %s is not a token id", quote(token), quote(number))
		}
		if len(entries) == maxTokens {
			return nil, fmt.Errorf("more than %d tokens", maxTokens)
		}
		entries = append(entries, vocabEntry{token: strings.Clone(token), id: id})
		if !c.take(',') && c.peek() != '}' {
			return nil, errMalformed
		}
	}
	return entries, nil
}

// parseMerges reads ["a b", ...] or [["a", "b"], ...]. The merged token omits the first
// prefix bytes of the right side.
func parseMerges(v *vocabulary, raw json.RawMessage, prefix int) (*merges, error) {
	c := jsonCursor{text: string(raw)}
	if !c.take('[') {
		return nil, errors.New("is not a list")
	}
	var rules [][2]string
	for !c.take(']') {
		rule, err := c.mergeRule()
		if err != nil {
			return nil, fmt.Errorf("merge %d: %w", len(rules), err)
		}
		rules = append(rules, rule)
		if !c.take(',') && c.peek() != ']' {
			return nil, errMalformed
		}
	}
	return v.merges(len(rules), prefix, func(i int) (string, string, error) { return rules[i][0], rules[i][1], nil })
}

// mergeRule reads "a b" or ["a", "b"].
func (c *jsonCursor) mergeRule() (rule [2]string, err error) {
	switch c.peek() {
	case '"':
		s, err := c.str()
		if err == nil {
			rule[0], rule[1], err = cutMerge(s)
		}
		return rule, err
	case '[':
		c.pos++
		sides := 0
		for ; c.peek() == '"'; sides++ {
			s, err := c.str()
			if err != nil {
				return rule, err
			}
			if sides < 2 {
				rule[sides] = s
			}
			if !c.take(',') {
				sides++
				break
			}
		}
		if sides == 2 && c.take(']') {
			return rule, nil
		}
	}
	return rule, errors.New(`is neither "a b" nor ["a", "b"]`)
}
