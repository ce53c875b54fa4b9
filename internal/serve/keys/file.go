package keys

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"
)

// Bounds of a file of keys.
const (
	maxFile = 4 << 20 // bytes
	maxKeys = 10_000  // a request's key is compared with all of them
	maxName = 64      // bytes
	minKey  = 16      // characters of a key
)

// hash is the SHA-256 of a key. The key itself is not kept.
type hash [sha256.Size]byte

// line is a key as the file has it.
type line struct {
	name   string
	hash   hash
	limits Limits
}

// readFile reads a file of keys.
func readFile(path string, defaults Limits) ([]line, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("keys: %s: the file has more than %d bytes", path, maxFile)
	}
	lines, err := parse(text, defaults)
	if err != nil {
		return nil, fmt.Errorf("keys: %s: %w", path, err)
	}
	return lines, nil
}

// parse reads the text of a file of keys. Its errors name lines and never contain a key.
func parse(text []byte, defaults Limits) ([]line, error) {
	var all []line
	names, hashes := map[string]int{}, map[hash]int{}
	scan := bufio.NewScanner(bytes.NewReader(text))
	scan.Buffer(nil, maxFile+1)
	for n := 1; scan.Scan(); n++ {
		fields := strings.Fields(scan.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		l, err := parseLine(fields, defaults)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if at, ok := names[l.name]; ok {
			return nil, fmt.Errorf("line %d: the name %q is in line %d too", n, l.name, at)
		}
		if at, ok := hashes[l.hash]; ok {
			return nil, fmt.Errorf("line %d: the key is in line %d too", n, at)
		}
		if len(all) == maxKeys {
			return nil, fmt.Errorf("line %d: more than %d keys", n, maxKeys)
		}
		names[l.name], hashes[l.hash] = n, n
		all = append(all, l)
	}
	if err := scan.Err(); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("the file has no key")
	}
	return all, nil
}

// parseLine reads the fields of a line: name, key and limits.
func parseLine(fields []string, defaults Limits) (line, error) {
	l := line{name: fields[0], limits: defaults}
	if len(l.name) > maxName || strings.ContainsFunc(l.name, func(r rune) bool { return r <= ' ' || r == '"' || r >= 0x7f }) {
		return l, fmt.Errorf("the name must have at most %d printable ASCII characters, without quotes", maxName)
	}
	if len(fields) < 2 {
		return l, errors.New("want NAME KEY [LIMIT=VALUE ...]")
	}
	var err error
	if l.hash, err = parseKey(fields[1]); err != nil {
		return l, err
	}
	burst := false
	for i, field := range fields[2:] {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "rate":
			l.limits.Rate, err = parseRate(value)
		case "burst":
			burst = true
			l.limits.Burst, err = parseCount(value)
		case "concurrent":
			l.limits.Concurrent, err = parseCount(value)
		default:
			err = errors.New("want rate, burst or concurrent")
		}
		if err != nil { // the field may be a misplaced key, so it is not shown
			return l, fmt.Errorf("field %d: %w", i+3, err)
		}
	}
	if burst && l.limits.Rate == 0 {
		return l, errors.New("burst has no effect without rate")
	}
	return l, nil
}

// parseKey returns the hash of a key, which the file may have instead of the key.
func parseKey(text string) (hash, error) {
	if digits, ok := strings.CutPrefix(text, "sha256:"); ok {
		var h hash
		b, err := hex.DecodeString(digits)
		if err != nil || len(b) != len(h) {
			return h, fmt.Errorf("sha256: must have %d hexadecimal digits after it", 2*len(h))
		}
		return hash(b), nil
	}
	if utf8.RuneCountInString(text) < minKey {
		return hash{}, fmt.Errorf("the key has less than %d characters", minKey)
	}
	return sha256.Sum256([]byte(text)), nil
}

// parseRate reads a number of requests per second, minute or hour, such as 5/s or 0.5/m.
func parseRate(text string) (rate.Limit, error) {
	bad := errors.New("rate: want a positive number per s, m or h, such as 5/s")
	number, unit, _ := strings.Cut(text, "/")
	per, ok := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[unit]
	n, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(n > 0 && n <= 1e9) {
		return 0, bad
	}
	return rate.Limit(n / per.Seconds()), nil
}

// parseCount reads a positive number.
func parseCount(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 1_000_000 {
		return 0, errors.New("want a number from 1 to 1000000")
	}
	return n, nil
}
