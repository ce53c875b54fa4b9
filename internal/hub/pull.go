package hub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// maxFilesAtOnce bounds the number of files that are downloaded at once.
const maxFilesAtOnce = 8

// spareSpace is the number of bytes that a download leaves free.
const spareSpace = 16 << 20

// Resolve returns the local path of a model. A path that exists is returned as it is, and so is a
// string that is not an ID. A model in the cache is found without a request to the server;
// others are pulled.
func (c *Client) Resolve(ctx context.Context, model string) (string, error) {
	if _, err := os.Stat(model); err == nil {
		return model, nil
	}
	id, err := ParseID(model)
	if err != nil {
		return model, nil
	}
	found, err := c.cached(id)
	if err == nil && (found.whole || c.Offline) {
		return found.path, nil
	}
	path, err := c.Pull(ctx, id)
	if err != nil {
		return "", fmt.Errorf("%w; there is no local file %s", err, model)
	}
	return path, nil
}

// Pull brings the cache up to date with the server and returns the path of the model. If the server
// cannot be reached, or the Client is offline, it returns what the cache has.
//
// The error is the cause of ctx or wraps one of the package's errors, if it is not an error of the
// file system or of the network.
func (c *Client) Pull(ctx context.Context, id ID) (string, error) {
	path, err := c.pull(ctx, id)
	if err == nil {
		return path, nil
	}
	if errors.Is(err, ErrOffline) {
		if found, cacheErr := c.cached(id); cacheErr == nil {
			if c.Note != nil && !c.Offline {
				c.Note(err.Error() + "; using the model in the cache")
			}
			return found.path, nil
		}
	}
	if isFull(err) {
		err = fail("the disk is full: "+c.Cache, ErrNoSpace)
	}
	return "", fmt.Errorf("hub: %s: %w", id, err)
}

func (c *Client) pull(ctx context.Context, id ID) (string, error) {
	if c.Offline {
		return "", fail("it is not in the cache "+c.Cache+", and HF_HUB_OFFLINE is set", ErrOffline)
	}
	s, err := c.session()
	if err != nil {
		return "", err
	}
	defer s.http.CloseIdleConnections()
	commit, files, err := s.list(ctx, id)
	if err != nil {
		return "", err
	}
	model, err := choose(files, id.Quant)
	if err != nil {
		return "", err
	}
	r, err := c.openRepository(id, true)
	if err != nil {
		return "", err
	}
	defer r.root.Close()
	if model.index != "" {
		if err := s.addShards(ctx, r, commit, model, files); err != nil {
			return "", err
		}
	}
	if err := s.fetchAll(ctx, r, commit, model.files); err != nil {
		return "", err
	}
	for _, f := range model.files {
		if err := r.link(f, commit); err != nil {
			return "", err
		}
	}
	if err := r.setRef(commit); err != nil {
		return "", err
	}
	return r.path(snapshotPath(commit, model.open)), nil
}

// addShards downloads the index of a model and adds the files that it names to the choice.
func (s *session) addShards(ctx context.Context, r *repository, commit string, model *choice, files []File) error {
	for _, f := range model.files {
		if f.Name != model.index {
			continue
		}
		one := []File{f}
		if err := s.fetchAll(ctx, r, commit, one); err != nil {
			return err
		}
		f = one[0]
		at := blobPath(f.Hash)
		if !r.has(at, f.Size) {
			at = snapshotPath(commit, f.Name)
		}
		index, err := r.root.Open(at)
		if err != nil {
			return err
		}
		defer index.Close()
		names, err := decodeShards(index)
		if err != nil {
			return err
		}
		return model.withShards(names, files)
	}
	return nil
}

// fetchAll downloads the files that the cache lacks, after it has checked the free space. It completes
// files of which only the name is known.
func (s *session) fetchAll(ctx context.Context, r *repository, commit string, files []File) error {
	err := each(ctx, len(files), maxFilesAtOnce, func(ctx context.Context, i int) (err error) {
		if files[i].Hash == "" {
			err = s.describe(ctx, r.id, commit, &files[i])
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", files[i].Name, err)
		}
		return err
	})
	if err != nil {
		return err
	}
	var missing []File
	m := &meter{tell: s.Progress, note: s.Note}
	need := uint64(spareSpace)
	seen := map[string]bool{} // two names may have the same content
	for _, f := range files {
		if seen[f.Hash] || r.present(f, commit) {
			continue
		}
		seen[f.Hash] = true
		missing = append(missing, f)
		m.total += f.Size
		need += uint64(f.Size) - r.downloaded(f)
	}
	if len(missing) == 0 {
		return nil
	}
	if err := s.checkSpace(r, need); err != nil {
		return err
	}
	return each(ctx, len(missing), maxFilesAtOnce, func(ctx context.Context, i int) error {
		if err := s.fetch(ctx, r, commit, missing[i], m); err != nil {
			return fmt.Errorf("%s: %w", missing[i].Name, err)
		}
		return nil
	})
}

// checkSpace compares the free space with a number of bytes.
func (s *session) checkSpace(r *repository, need uint64) error {
	free := s.free
	if free == nil {
		free = freeSpace
	}
	have, err := free(r.root.Name())
	if err != nil || have >= need {
		return nil // writing fails if the disk is full
	}
	return fail(fmt.Sprintf("%d MiB are needed in %s, and %d MiB are free", (need+1<<20-1)>>20, filepath.Clean(r.cache), have>>20), ErrNoSpace)
}

// downloaded returns the number of bytes of a file that an earlier run has left.
func (r *repository) downloaded(f File) uint64 {
	name := blobPath(f.Hash) + partExt
	if st, err := r.root.Stat(name); err != nil || !st.Mode().IsRegular() {
		return 0
	}
	file, err := r.root.Open(name)
	if err != nil {
		return 0
	}
	defer file.Close()
	p := &part{f: file, size: f.Size, piece: max(f.Size, 1)} // one piece, if the trailer is gone
	if st, err := file.Stat(); err != nil || !p.load(st.Size()) {
		return 0
	}
	return uint64(p.done())
}
