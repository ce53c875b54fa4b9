package tokenizer

import "unicode/utf8"

// alphabet is GPT-2's bijection between bytes and printable characters, bytes_to_unicode in
// GPT-2's encoder.py. Byte-level vocabularies are written in it. Printable Latin-1 characters
// represent themselves; the other 68 bytes are represented by U+0100 to U+0143 in order.
type alphabet struct {
	char  [256]rune
	bytes [0x144]int16 // by character; -1 is outside the alphabet
}

func newAlphabet() *alphabet {
	a := new(alphabet)
	for i := range a.bytes {
		a.bytes[i] = -1
	}
	other := rune(0x100)
	for b := range 256 {
		r := rune(b)
		printable := '!' <= r && r <= '~' || '¡' <= r && r <= '¬' || '®' <= r && r <= 'ÿ'
		if !printable {
			r = other
			other++
		}
		a.char[b] = r
		a.bytes[r] = int16(b)
	}
	return a
}

// encode returns the characters that represent the bytes of s.
func (a *alphabet) encode(s string) string {
	out := make([]byte, 0, 2*len(s))
	for i := range len(s) {
		out = utf8.AppendRune(out, a.char[s[i]])
	}
	return string(out)
}

// decode returns the bytes that token represents. It returns false if a character is outside the
// alphabet.
func (a *alphabet) decode(token string) (string, bool) {
	same := true
	for _, r := range token {
		if int(r) >= len(a.bytes) || a.bytes[r] < 0 {
			return "", false
		}
		same = same && r < utf8.RuneSelf
	}
	if same {
		return token, true
	}
	out := make([]byte, 0, len(token))
	for _, r := range token {
		out = append(out, byte(a.bytes[r]))
	}
	return string(out), true
}
