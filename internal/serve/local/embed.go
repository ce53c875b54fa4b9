package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/weights"
)

// Embed returns one vector for each text: the hidden states of its tokens, pooled.
func (m *Model) Embed(ctx context.Context, texts []engine.Text, o engine.EmbedOptions) ([][]float32, int, error) {
	all, total := make([][]int32, len(texts)), 0
	for i, t := range texts {
		if all[i] = t.IDs; t.IDs == nil {
			ids, err := m.Encode(t.String, engine.EncodeOptions{AddSpecial: true})
			if err != nil {
				return nil, 0, &engine.RequestError{Param: fmt.Sprintf("input[%d]", i), Why: err.Error()}
			}
			all[i] = ids
		}
		if len(all[i]) == 0 {
			return nil, 0, &engine.RequestError{Param: fmt.Sprintf("input[%d]", i), Why: "the text has no tokens"}
		}
		total += len(all[i])
	}
	vectors := make([][]float32, len(texts))
	err := m.each(ctx, len(texts), func(ctx context.Context, s *pianola.Session, i int) (err error) {
		vectors[i], err = m.embed(ctx, s, all[i])
		if o.Normalize && err == nil {
			unit(vectors[i])
		}
		return err
	})
	if err != nil {
		return nil, total, err
	}
	return vectors, total, nil
}

// embed returns the pooled states of tokens.
func (m *Model) embed(ctx context.Context, s *pianola.Session, ids []int32) ([]float32, error) {
	from := 0
	if m.pooling == pianola.PoolLast {
		from = len(ids) - 1
	}
	sum := make([]float64, m.info.Width)
	for row, err := range s.Hidden(ctx, ids, from) {
		if err != nil {
			return nil, err
		}
		for i, v := range row.State {
			sum[i] += float64(v)
		}
	}
	vector := make([]float32, len(sum))
	for i, v := range sum {
		vector[i] = float32(v / float64(len(ids)-from))
	}
	return vector, nil
}

// errOther is the cause for which the calls of a request end when one of them has failed.
var errOther = errors.New("local: another call of the request has failed")

// each calls f for 0 to n-1 with a session, as many at a time as run together. An error ends all calls.
func (m *Model) each(ctx context.Context, n int, f func(context.Context, *pianola.Session, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var running sync.WaitGroup
	errs := make([]error, min(n, m.info.Parallel))
	for w := range errs {
		running.Go(func() {
			s, err := m.m.NewSession(pianola.SessionOptions{})
			for err == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					break
				}
				err = f(ctx, s, i)
			}
			if s != nil {
				err = errors.Join(err, s.Close())
			}
			if errs[w] = err; err != nil {
				cancel(errOther)
			}
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, errOther) {
			return failure(err)
		}
	}
	return nil
}

// poolingOf returns the pooling that a model's files ask for: the pooling_type of GGUF, or
// 1_Pooling/config.json, which sentence-transformers writes. Models without either get the mean.
func poolingOf(dir *weights.Directory) pianola.Pooling {
	if dir.Format() == weights.GGUF {
		arch, _ := dir.Meta("general.architecture")
		name, _ := arch.(string)
		kind, _ := dir.Meta(name + ".pooling_type")
		if fmt.Sprint(kind) == "3" { // LLAMA_POOLING_TYPE_LAST
			return pianola.PoolLast
		}
		return pianola.PoolMean
	}
	root := dir.Path()
	if st, err := os.Stat(root); err == nil && !st.IsDir() {
		root = filepath.Dir(root)
	}
	return poolingIn(filepath.Join(root, "1_Pooling", "config.json"))
}

// poolingIn reads a file of sentence-transformers.
func poolingIn(path string) pianola.Pooling {
	f, err := os.Open(path)
	if err != nil {
		return pianola.PoolMean
	}
	defer f.Close()
	var of struct {
		Last bool `json:"pooling_mode_lasttoken"`
	}
	if json.NewDecoder(io.LimitReader(f, 1<<16)).Decode(&of) == nil && of.Last {
		return pianola.PoolLast
	}
	return pianola.PoolMean
}
