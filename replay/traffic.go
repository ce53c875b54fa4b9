package replay

import (
	"fmt"
	"slices"

	"github.com/pianola-engine/pianola/table"
)

// traffic is the memory that each program of a table reads, by program index.
type traffic []programTraffic

type programTraffic struct {
	weights uint64        // bytes per replay
	kv      []table.Reads // reads of caches, combined where the visible positions are the same
	chooses bool          // the program chooses a token
}

func newTraffic(t *table.Table, p programs) (traffic, error) {
	all := make(traffic, len(t.Programs))
	for i := range t.Programs {
		reads, err := t.Reads(t.Programs[i].Name)
		if err != nil {
			return nil, fmt.Errorf("replay: %w", err)
		}
		to := &all[i]
		to.chooses = slices.Contains([]int{p.decode, p.head, p.sample, p.sampleHead, p.ranked, p.rankedHead, p.verify}, i)
		for _, r := range reads {
			to.weights += r.Weights
			if r.KVRow == 0 {
				continue
			}
			at := slices.IndexFunc(to.kv, func(known table.Reads) bool { return known.Seen == r.Seen })
			if at < 0 {
				at = len(to.kv)
				to.kv = append(to.kv, table.Reads{Seen: r.Seen})
			}
			to.kv[at].KVRow += r.KVRow
		}
	}
	return all, nil
}

// of returns the bytes that a submission has read. Of the programs that choose tokens it
// counts the given number of replays.
func (a traffic) of(sub *Submission, replays int) (bytes uint64) {
	if sub.Dry {
		return 0
	}
	for i := range sub.Runs {
		run := &sub.Runs[i]
		p, n := &a[run.Program], int(run.Count)
		if p.chooses {
			n = min(n, replays)
			replays -= n
		}
		sees := int(run.Step.KVLen) + int(run.Step.Rows) - 1
		for range n {
			bytes += p.weights
			for _, kv := range p.kv {
				bytes += kv.Bytes(sees)
			}
			sees += int(run.Step.Rows)
		}
	}
	return bytes
}
