package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/pianola-engine/pianola/internal/safetensors"
)

// lockPoll is the time between two attempts to get a lock.
const lockPoll = 100 * time.Millisecond

// repository is the folder of a repository in the cache.
type repository struct {
	id    ID
	cache string   // the cache directory
	root  *os.Root // the repository's folder
}

// openRepository opens the repository's folder. With create it makes the folder first.
func (c *Client) openRepository(id ID, create bool) (*repository, error) {
	if c.Cache == "" {
		return nil, errors.New("there is no home directory for the cache; set HF_HOME")
	}
	dir := filepath.Join(c.Cache, id.folder())
	if create {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return nil, err
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	if create {
		for _, name := range []string{"blobs", "refs", "snapshots"} {
			if err := root.MkdirAll(name, 0o777); err != nil {
				root.Close()
				return nil, err
			}
		}
	}
	return &repository{id, c.Cache, root}, nil
}

func blobPath(hash string) string             { return "blobs/" + hash }
func snapshotPath(commit, name string) string { return path.Join("snapshots", commit, name) }

// path returns the file system's path of a path below the folder.
func (r *repository) path(name string) string {
	return filepath.Join(r.root.Name(), filepath.FromSlash(name))
}

// has reports whether a path is a regular file of the size, perhaps by a link.
func (r *repository) has(name string, size int64) bool {
	st, err := r.root.Stat(name)
	return err == nil && st.Mode().IsRegular() && st.Size() == size
}

// present reports whether the content of a file is there: as a blob, or in the snapshot itself, where
// the cache has it on systems without links.
func (r *repository) present(f File, commit string) bool {
	return r.has(blobPath(f.Hash), f.Size) || r.has(snapshotPath(commit, f.Name), f.Size)
}

// lock gets the lock of a blob, which other tools use too. waiting is called if it is taken.
func (r *repository) lock(ctx context.Context, hash string, waiting func()) (unlock func(), err error) {
	dir := filepath.Join(r.cache, ".locks", r.id.folder())
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	l := flock.New(filepath.Join(dir, hash+".lock"))
	ok, err := l.TryLock()
	if err == nil && !ok {
		waiting()
		_, err = l.TryLockContext(ctx, lockPoll)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, err
	}
	return func() { l.Unlock() }, nil
}

// link makes the snapshot's entry for a file whose blob is there.
func (r *repository) link(f File, commit string) error {
	at, target := snapshotPath(commit, f.Name), linkTarget(f.Name, f.Hash)
	if !r.has(blobPath(f.Hash), f.Size) {
		return nil // present found it in the snapshot
	}
	if old, err := r.root.Readlink(at); err == nil && filepath.ToSlash(old) == target {
		return nil
	}
	if err := r.root.MkdirAll(path.Dir(at), 0o777); err != nil {
		return err
	}
	temporary := at + ".pianola-" + f.Hash[:8] + fmt.Sprint(os.Getpid())
	r.root.Remove(temporary)
	err := r.root.Symlink(filepath.FromSlash(target), temporary)
	if err != nil { // Windows allows links to administrators and developers only
		err = r.root.Link(blobPath(f.Hash), temporary)
	}
	if err == nil {
		err = r.root.Rename(temporary, at)
		r.root.Remove(temporary)
	}
	return err
}

// setRef records the commit of the ID's revision.
func (r *repository) setRef(commit string) error {
	if gitHash.MatchString(r.id.Revision) {
		return nil
	}
	at := path.Join("refs", r.id.Revision)
	if old, err := r.ref(); err == nil && old == commit {
		return nil
	}
	if err := r.root.MkdirAll(path.Dir(at), 0o777); err != nil {
		return err
	}
	temporary := at + fmt.Sprint(".pianola-", os.Getpid())
	err := r.root.WriteFile(temporary, []byte(commit), 0o666)
	if err == nil {
		err = r.root.Rename(temporary, at)
	}
	if err != nil {
		r.root.Remove(temporary)
	}
	return err
}

// ref returns the recorded commit of the ID's revision.
func (r *repository) ref() (string, error) {
	if gitHash.MatchString(r.id.Revision) {
		return r.id.Revision, nil
	}
	b, err := r.read(path.Join("refs", r.id.Revision), 128)
	if err != nil {
		return "", err
	}
	commit := strings.TrimSpace(string(b))
	if !commitHash.MatchString(commit) {
		return "", fmt.Errorf("refs/%s is damaged", r.id.Revision)
	}
	return commit, nil
}

// read returns the content of a file with at most limit bytes.
func (r *repository) read(name string, limit int64) ([]byte, error) {
	f, err := r.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return b, err
}

// shards returns the names of the files that an index in a snapshot names.
func (r *repository) shards(commit, index string) ([]string, error) {
	f, err := r.root.Open(snapshotPath(commit, index))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return decodeShards(f)
}

func decodeShards(f *os.File) ([]string, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	index, err := safetensors.DecodeIndex(f, st.Size())
	if err != nil {
		return nil, err
	}
	return index.Shards, nil
}

// withShards appends the files that the index names to the choice.
func (c *choice) withShards(names []string, files []File) error {
	byName := make(map[string]File, len(files))
	for _, f := range files {
		byName[f.Name] = f
	}
	shards := make([]File, len(names))
	for i, name := range names {
		f, ok := byName[name]
		if !ok {
			return fail(fmt.Sprintf("%s names %.100q, which is missing", c.index, name), ErrNotFound)
		}
		shards[i] = f
	}
	c.files = append(shards, c.files...)
	return nil
}

// files returns the files of a snapshot that are there.
func (r *repository) files(commit string) ([]File, error) {
	var files []File
	top := path.Join("snapshots", commit)
	err := fs.WalkDir(r.root.FS(), top, func(at string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case len(files) == maxFiles:
			return fmt.Errorf("%s has more than %d files", top, maxFiles)
		case d.IsDir():
			return nil
		}
		name := strings.TrimPrefix(at, top+"/")
		if st, err := r.root.Stat(at); err == nil && st.Mode().IsRegular() && checkName(name) == nil {
			files = append(files, File{Name: name, Size: st.Size()})
		}
		return nil
	})
	return files, err
}

// located is a model in the cache.
type located struct {
	path string
	// whole reports whether nothing is missing that the hub may have.
	whole bool
}

// find finds the ID's model in the cache. The error wraps ErrOffline if it is not there.
func (r *repository) find() (located, error) {
	absent := func(err error) (located, error) {
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("it is not in the cache")
		}
		return located{}, fail(err.Error(), ErrOffline)
	}
	commit, err := r.ref()
	if err != nil {
		return absent(err)
	}
	files, err := r.files(commit)
	if err != nil {
		return absent(err)
	}
	c, err := choose(files, r.id.Quant)
	if err != nil {
		return absent(fmt.Errorf("in the cache, %w", err))
	}
	if c.index != "" {
		names, err := r.shards(commit, c.index)
		if err == nil {
			err = c.withShards(names, files)
		}
		if err != nil {
			return absent(err)
		}
	}
	return located{r.path(snapshotPath(commit, c.open)), c.hasTokenizer}, nil
}

// Cached returns the path of a model that is in the cache. The error wraps ErrOffline if it is not
// there.
func (c *Client) Cached(id ID) (string, error) {
	found, err := c.cached(id)
	return found.path, err
}

func (c *Client) cached(id ID) (located, error) {
	r, err := c.openRepository(id, false)
	if err != nil {
		return located{}, fail(fmt.Sprintf("hub: %s: it is not in the cache %s", id, c.Cache), ErrOffline)
	}
	defer r.root.Close()
	found, err := r.find()
	if err != nil {
		err = fmt.Errorf("hub: %s: %w", id, err)
	}
	return found, err
}
