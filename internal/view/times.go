package view

import (
	"encoding/json"
	"fmt"
	"io"
	"math"

	"github.com/pianola-engine/pianola/table"
)

// Times are the measured times of a table's commands, from the output of `pianola profile --json`.
type Times struct {
	Tokens  int         `json:"tokens"` // decoded tokens, or tokens of all prompts
	Depth   int         `json:"depth"`
	Prompt  int         `json:"prompt"` // tokens of a prompt; 0 for decoding
	TotalUS float64     `json:"total_us"`
	US      []timeOfCmd `json:"commands"`
}

// timeOfCmd is the mean time of one command for a token or a prompt.
type timeOfCmd struct {
	Command int     `json:"command"`
	Label   string  `json:"label"`
	US      float64 `json:"us"`
	GBs     float64 `json:"gb_s"`
}

// maxTimes bounds the size of the file. A line of a command has about 150 bytes.
const maxTimes = 256 << 20

// ReadTimes reads the times of the commands of t. It fails if they were measured with another table.
func ReadTimes(r io.Reader, t *table.Table) (*Times, error) {
	dec := json.NewDecoder(io.LimitReader(r, maxTimes))
	times := &Times{}
	if err := dec.Decode(times); err != nil {
		return nil, fmt.Errorf("view: not the output of pianola profile --json: %w", err)
	}
	if len(times.US) == 0 {
		return nil, fmt.Errorf("view: not the output of pianola profile --json: it has no commands")
	}
	if err := inRange("total_us", times.TotalUS); err != nil {
		return nil, err
	}
	seen := make([]bool, len(t.Cmds))
	for _, c := range times.US {
		if c.Command < 0 || c.Command >= len(t.Cmds) {
			return nil, fmt.Errorf("view: the profile has command %d, but the table has %d commands", c.Command, len(t.Cmds))
		}
		if label := t.Label(c.Command); c.Label != label {
			return nil, fmt.Errorf("view: the profile is of another table: command %d is %q there and %q here", c.Command, c.Label, label)
		}
		if seen[c.Command] {
			return nil, fmt.Errorf("view: the profile has command %d twice", c.Command)
		}
		seen[c.Command] = true
		if err := inRange(fmt.Sprintf("us of command %d", c.Command), c.US); err != nil {
			return nil, err
		}
	}
	return times, nil
}

// inRange returns an error unless v is a time in microseconds below about a year.
func inRange(what string, v float64) error {
	if math.IsNaN(v) || v < 0 || v > 1e13 {
		return fmt.Errorf("view: %s of the profile is %v", what, v)
	}
	return nil
}
