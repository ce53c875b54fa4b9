package safetensors

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const (
	// maxToken bounds the length of a name, a number or a metadata string.
	maxToken = 4 << 20
	// maxMemory bounds the memory of a decoded header. 200,000 tensors take about 40 MiB.
	maxMemory = 96 << 20
)

var (
	errMemory = fmt.Errorf("takes more than %d MiB", maxMemory>>20)
	errToken  = fmt.Errorf("has a string of more than %d MiB", maxToken>>20)
)

// parser reads JSON sequentially and never buffers more than a token.
type parser struct {
	dec    *json.Decoder
	memory uint64 // bytes that may still be allocated
}

func newParser(r io.Reader) *parser {
	lr := &tokenReader{r: bufio.NewReaderSize(r, 64<<10)}
	p := &parser{dec: json.NewDecoder(lr), memory: maxMemory}
	lr.dec = p.dec
	p.dec.UseNumber()
	return p
}

// tokenReader fails if a decoder reads further ahead than the longest token, which bounds the
// decoder's buffer.
type tokenReader struct {
	r    io.Reader
	dec  *json.Decoder
	read int64
}

func (t *tokenReader) Read(b []byte) (int, error) {
	if t.read-t.dec.InputOffset() > maxToken {
		return 0, errToken
	}
	n, err := t.r.Read(b)
	t.read += int64(n)
	return n, err
}

// charge subtracts n from the bytes that may still be allocated.
func (p *parser) charge(n int) error {
	if uint64(n) > p.memory {
		return errMemory
	}
	p.memory -= uint64(n)
	return nil
}

func (p *parser) token() (json.Token, error) {
	t, err := p.dec.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("at byte %d: %w", p.dec.InputOffset(), err)
	}
	return t, nil
}

// want returns the error for an unexpected token. what describes the expected one.
func (p *parser) want(what string, got json.Token) error {
	name := "null"
	switch t := got.(type) {
	case json.Delim:
		name = t.String()
	case string:
		name = "a string"
	case json.Number:
		name = quote(t.String())
	case bool:
		name = strconv.FormatBool(t)
	}
	return fmt.Errorf("at byte %d: %s, want %s", p.dec.InputOffset(), name, what)
}

// object reads an object. For each key it calls member, which must read the value. It rejects
// duplicate keys.
func (p *parser) object(member func(key string) error) error {
	t, err := p.token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return p.want("an object", t)
	}
	keys := map[string]struct{}{}
	for {
		t, err := p.token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return nil // the decoder returns no other token than } here
		}
		if _, dup := keys[key]; dup {
			return fmt.Errorf("duplicate key %s", quote(key))
		}
		if err := p.charge(len(key) + 48); err != nil {
			return err
		}
		keys[key] = struct{}{}
		if err := member(key); err != nil {
			return err
		}
	}
}

func (p *parser) string() (string, error) {
	t, err := p.token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", p.want("a string", t)
	}
	return s, nil
}

// uints reads an array of at most limit integers from 0 to 2^64 - 1.
func (p *parser) uints(limit int) ([]uint64, error) {
	t, err := p.token()
	if err != nil {
		return nil, err
	}
	if t != json.Delim('[') {
		return nil, p.want("an array", t)
	}
	list := []uint64{}
	for {
		t, err := p.token()
		if err != nil {
			return nil, err
		}
		if t == json.Delim(']') {
			return list, nil
		}
		number, ok := t.(json.Number)
		if !ok {
			return nil, p.want("a number", t)
		}
		v, err := strconv.ParseUint(string(number), 10, 64)
		if err != nil {
			return nil, p.want("an integer from 0 to 2^64 - 1", t)
		}
		if len(list) == limit {
			return nil, fmt.Errorf("at byte %d: more than %d numbers", p.dec.InputOffset(), limit)
		}
		list = append(list, v)
	}
}

// skip reads a value of any kind.
func (p *parser) skip() error {
	for depth := 0; ; {
		t, err := p.token()
		if err != nil {
			return err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

// end checks that only white space follows.
func (p *parser) end() error {
	t, err := p.dec.Token()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("at byte %d: %w", p.dec.InputOffset(), err)
	}
	return p.want("the end", t)
}

// quote returns a name for an error message. It quotes and shortens long or unusual names, so
// that the message stays on one line.
func quote(s string) string {
	const limit = 128
	plain := len(s) <= limit && s != ""
	for i := 0; plain && i < len(s); i++ {
		plain = s[i] > ' ' && s[i] < 0x7f
	}
	if plain {
		return s
	}
	if len(s) > limit {
		return strconv.QuoteToASCII(s[:limit]) + "..."
	}
	return strconv.QuoteToASCII(s)
}
