// Package ptxstore stores PTX texts compactly. Texts that differ only in their .version and
// .target directives share one body, which is compressed and stored once. An index lists the
// texts with their bodies, versions and targets.
package ptxstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// Index is the name of the file with the list of texts.
const Index = "index.json"

// entry describes one text in the index.
type entry struct {
	Name    string `json:"name"` // "norm.sm_90"
	Body    string `json:"body"` // the file with the text's body: "norm.sm_70.ptx.zst"
	Version string `json:"version"`
	Target  string `json:"target"`
}

var (
	versionLine = []byte("\n.version ")
	targetLine  = []byte("\n.target ")
)

// Pack returns the content of the store's files by file name. texts holds PTX texts by name,
// such as "norm.sm_90". Each text must have one .version and one .target directive, at the
// beginning of a line. compress returns a body in the format of Zstandard; if it is nil, Pack
// compresses bodies itself.
func Pack(texts map[string][]byte, compress func(body []byte) ([]byte, error)) (map[string][]byte, error) {
	if compress == nil {
		compress = Compress
	}
	files := map[string][]byte{}
	bodies := map[string]string{} // file names by body
	index := []entry{}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		body, version, err := cut(texts[name], versionLine)
		if err != nil {
			return nil, fmt.Errorf("ptxstore: %s: %w", name, err)
		}
		body, target, err := cut(body, targetLine)
		if err != nil {
			return nil, fmt.Errorf("ptxstore: %s: %w", name, err)
		}
		file, ok := bodies[string(body)]
		if !ok {
			file = name + ".ptx.zst"
			bodies[string(body)] = file
			if files[file], err = compress(body); err != nil {
				return nil, fmt.Errorf("ptxstore: %s: %w", name, err)
			}
		}
		index = append(index, entry{name, file, version, target})
	}
	b, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("ptxstore: %w", err)
	}
	files[Index] = append(b, '\n')
	return files, nil
}

// cut removes the directive's argument from its line and returns it as value.
func cut(text, directive []byte) (rest []byte, value string, err error) {
	at := bytes.Index(text, directive)
	if at < 0 || bytes.Count(text, directive) != 1 {
		return nil, "", fmt.Errorf("%d lines begin with%s, want 1", bytes.Count(text, directive), directive[1:])
	}
	at += len(directive)
	end := bytes.IndexByte(text[at:], '\n')
	if end < 0 {
		return nil, "", fmt.Errorf("the line with%s does not end", directive[1:])
	}
	return slices.Concat(text[:at], text[at+end:]), string(text[at : at+end]), nil
}

// maxText is the size in bytes above which no text is read.
const maxText = 256 << 20

// window is the distance in bytes at which the compression finds repeated text. Entries of a text
// resemble one another, and one may have several MB.
const window = 8 << 20

// Compress compresses a body.
func Compress(text []byte) ([]byte, error) {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer w.Close()
	return w.EncodeAll(text, nil), nil
}

// Store reads the files that [Pack] made.
type Store struct {
	dir   fs.FS
	index []entry
}

// Open reads the index of a folder.
func Open(dir fs.FS) (*Store, error) {
	b, err := fs.ReadFile(dir, Index)
	if err != nil {
		return nil, fmt.Errorf("ptxstore: %w", err)
	}
	s := &Store{dir: dir}
	if err := json.Unmarshal(b, &s.index); err != nil {
		return nil, fmt.Errorf("ptxstore: %s: %w", Index, err)
	}
	return s, nil
}

// Names returns the names of the texts.
func (s *Store) Names() []string {
	names := make([]string, len(s.index))
	for i, e := range s.index {
		names[i] = e.Name
	}
	return names
}

// Description identifies a text.
type Description struct {
	Hash            [sha256.Size]byte // differs between different texts; not the hash of the text itself
	Version, Target string            // the arguments of the directives
}

// Describe describes a text without decompressing it: its hash is that of the compressed body and
// the directives.
func (s *Store) Describe(name string) (d Description, err error) {
	e, err := s.entry(name)
	if err != nil {
		return d, err
	}
	body, err := fs.ReadFile(s.dir, path.Clean(e.Body))
	if err != nil {
		return d, fmt.Errorf("ptxstore: %w", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q %q\n", e.Version, e.Target)
	h.Write(body)
	return Description{[sha256.Size]byte(h.Sum(nil)), e.Version, e.Target}, nil
}

func (s *Store) entry(name string) (*entry, error) {
	i := slices.IndexFunc(s.index, func(e entry) bool { return e.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("ptxstore: %s: %w", name, fs.ErrNotExist)
	}
	return &s.index[i], nil
}

// body returns the body of a text, compressed and not.
func (s *Store) body(e *entry) (packed, body []byte, err error) {
	if packed, err = fs.ReadFile(s.dir, path.Clean(e.Body)); err != nil {
		return nil, nil, fmt.Errorf("ptxstore: %w", err)
	}
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxText))
	if err != nil {
		return nil, nil, fmt.Errorf("ptxstore: %w", err)
	}
	defer r.Close()
	if body, err = r.DecodeAll(packed, nil); err != nil {
		return nil, nil, fmt.Errorf("ptxstore: %s: %w", e.Body, err)
	}
	return packed, body, nil
}

// Packed returns the compressed bodies by the hashes of the bodies, so that a body that has not changed
// need not be compressed again.
func (s *Store) Packed() (map[[sha256.Size]byte][]byte, error) {
	all := map[[sha256.Size]byte][]byte{}
	for i := range s.index {
		packed, body, err := s.body(&s.index[i])
		if err != nil {
			return nil, err
		}
		all[sha256.Sum256(body)] = packed
	}
	return all, nil
}

// Text returns a text exactly as [Pack] received it.
func (s *Store) Text(name string) ([]byte, error) {
	e, err := s.entry(name)
	if err != nil {
		return nil, err
	}
	_, body, err := s.body(e)
	if err != nil {
		return nil, err
	}
	for directive, value := range map[string]string{string(versionLine): e.Version, string(targetLine): e.Target} {
		at := bytes.Index(body, []byte(directive))
		if at < 0 {
			return nil, fmt.Errorf("ptxstore: %s: no line with%s", e.Body, directive[1:])
		}
		body = slices.Insert(body, at+len(directive), []byte(value)...)
	}
	return body, nil
}
