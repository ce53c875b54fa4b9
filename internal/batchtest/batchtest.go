// Package batchtest checks, for tests of devices, that a table for batching computes a row with the
// same bits alone and among other rows.
package batchtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
)

// Session is what Check calls of a session without stop ids. replay.Session has these methods.
type Session interface {
	Reset() error
	Prompt(ctx context.Context, ids []int32) (next int32, stopped bool, err error)
	Chain(ctx context.Context, limit int) (tokens []int32, stopped bool, err error)
	SetNext(id int32) error
	Logits(dst []float32) error
	RepromptLogits(ctx context.Context, ids []int32, from int, visit func(row int, logits []float32) error) error
	Snapshot(w io.Writer) error
}

// Counts are the numbers of rows among which a row is computed.
var Counts = []int{1, 2, 7, 8, 9, 31, 33, 64, 65, 128, 512}

// checker is the state of a check.
type checker struct {
	s    Session
	ids  []int32
	rows [][]float32 // logits of each row, decoded alone
	got  []float32   // the logits read last
}

// Check decodes ids one at a time and compares the logits of every row with those of chunks of each
// number of counts that len(ids) allows, and with those of prompts that are cut at random. At the end
// it compares the KV caches. vocab is the number of logits of a row. The table must have the program
// for the logits of every row.
func Check(ctx context.Context, s Session, vocab int, ids []int32, counts []int, seed uint64) error {
	c := &checker{s: s, ids: ids, got: make([]float32, vocab)}
	if err := c.alone(ctx); err != nil {
		return err
	}
	var alone, cut bytes.Buffer
	if err := s.Snapshot(&alone); err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(seed, 0))
	for _, n := range counts {
		if n > len(ids) {
			continue
		}
		if err := c.among(ctx, n, r.IntN(len(ids)-n+1)); err != nil {
			return err
		}
	}
	if err := c.cut(ctx, r); err != nil {
		return err
	}
	if err := s.Snapshot(&cut); err != nil {
		return err
	}
	if !bytes.Equal(alone.Bytes(), cut.Bytes()) {
		return fmt.Errorf("the KV cache after prompts that are cut at random differs from that of decoding")
	}
	return nil
}

// alone decodes the tokens one at a time and keeps the logits of each row.
func (c *checker) alone(ctx context.Context) error {
	for i := range c.ids {
		if err := c.next(ctx, i, i+1); err != nil {
			return err
		}
		if err := c.s.Logits(c.got); err != nil {
			return err
		}
		c.rows = append(c.rows, slices.Clone(c.got))
	}
	return nil
}

// next appends ids[from:to] to the context, which holds those before.
func (c *checker) next(ctx context.Context, from, to int) error {
	if from > 0 {
		if err := c.s.SetNext(c.ids[from]); err != nil {
			return err
		}
		if from++; from == to {
			_, _, err := c.s.Chain(ctx, 1)
			return err
		}
	}
	_, _, err := c.s.Prompt(ctx, c.ids[from:to])
	return err
}

// among computes n rows from row from on as one chunk.
func (c *checker) among(ctx context.Context, n, from int) error {
	if err := c.s.Reset(); err != nil {
		return err
	}
	if from > 0 {
		if err := c.next(ctx, 0, from); err != nil {
			return err
		}
	}
	return c.s.RepromptLogits(ctx, c.ids[:from+n], from, func(row int, logits []float32) error {
		return c.compare(row, logits, fmt.Sprintf("among %d rows from row %d on", n, from))
	})
}

// cut appends pieces of random length.
func (c *checker) cut(ctx context.Context, r *rand.Rand) error {
	if err := c.s.Reset(); err != nil {
		return err
	}
	for from := 0; from < len(c.ids); {
		most := len(c.ids) - from
		if r.IntN(2) == 0 {
			most = min(most, 9)
		}
		to := from + 1 + r.IntN(most)
		if err := c.next(ctx, from, to); err != nil {
			return err
		}
		if err := c.s.Logits(c.got); err != nil {
			return err
		}
		if err := c.compare(to-1, c.got, fmt.Sprintf("at the end of a piece from row %d on", from)); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// compare compares the logits of a row with those of the row alone.
func (c *checker) compare(row int, logits []float32, where string) error {
	for i, want := range c.rows[row] {
		if math.Float32bits(logits[i]) != math.Float32bits(want) {
			return &Difference{Row: row, Where: where, Logit: i, Got: logits[i], Want: want}
		}
	}
	return nil
}

// Difference reports that a row has other bits than the row alone.
type Difference struct {
	Row, Logit int
	Where      string
	Got, Want  float32
}

// Error implements error.
func (d *Difference) Error() string {
	return fmt.Sprintf("row %d %s differs from the row alone: logit %d is %v, not %v", d.Row, d.Where, d.Logit, d.Got, d.Want)
}

// Tokens returns n token ids of a vocabulary. They do not repeat with a short period.
func Tokens(n, vocab int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32((i*i*7+i*37)%(vocab-3) + 3)
	}
	return ids
}
