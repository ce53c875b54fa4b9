package cpu

import (
	"time"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Warm measures with how many workers decode is fastest, unless the caller has chosen a number.
// Hardware threads that share a core, or memory that fewer workers saturate, can make fewer workers
// faster. Prompts and drafts have enough work for all of them.
func (d backend) Warm(run func(...replay.Run) error) error {
	program := -1
	for i := range d.table.Programs {
		if d.table.Programs[i].Name == table.ProgramDecode {
			program = i
		}
	}
	if !d.chooses || program < 0 || len(teamSizes(d.threads)) == 1 {
		return nil
	}
	decode := device.WarmRun(d.table, program)
	decode.Count = min(chosenTokens, d.table.Header.Context)
	few, err := fastestTeam(d.threads, func(workers int) (time.Duration, error) {
		d.team.few = workers
		start := time.Now()
		err := run(decode)
		return time.Since(start), err
	})
	d.team.few = few
	return err
}

const (
	chosenTokens = 2                      // tokens of a measurement
	chosenRounds = 6                      // measurements of each number of workers; the first is discarded
	chosenTime   = 400 * time.Millisecond // all measurements take about this time at most
	chosenGain   = 1.05                   // fewer workers must be faster by this factor
)

// teamSizes returns the numbers of workers to measure, in descending order.
func teamSizes(n int) []int {
	if n < 4 {
		return []int{n}
	}
	list := []int{n, n - 1}
	if part := n * 3 / 4; part < n-1 {
		list = append(list, part)
	}
	if part := n / 2; part < list[len(list)-1] {
		list = append(list, part)
	}
	return list
}

// fastestTeam returns the number of workers, at most n, for which measure returns the shortest
// time. If decode takes long, it measures less or nothing: reading the weights then takes most of
// the time, for which all workers are best.
func fastestTeam(n int, measure func(workers int) (time.Duration, error)) (int, error) {
	list := teamSizes(n)
	least := make([]time.Duration, len(list))
	spent := time.Duration(0)
	for round := range chosenRounds {
		for i, workers := range list {
			took, err := measure(workers)
			if err != nil {
				return n, err
			}
			if spent += took; took*time.Duration(len(list)) > chosenTime {
				return n, nil
			}
			if round == 1 || round > 1 && took < least[i] {
				least[i] = took
			}
		}
		if round > 0 && spent+spent/time.Duration(round+1) > chosenTime {
			break
		}
	}
	best := 0
	for i := range list {
		if float64(least[i])*chosenGain < float64(least[best]) {
			best = i
		}
	}
	return list[best], nil
}
