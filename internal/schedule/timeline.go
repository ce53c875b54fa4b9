package schedule

import (
	"fmt"
	"strings"
	"time"
)

// Timeline returns the step as text, with a line for each event and one for the submission. Times are
// in milliseconds.
func (st *Step) Timeline(now time.Duration) string {
	var b strings.Builder
	line := func(format string, a ...any) {
		fmt.Fprintf(&b, "%8.1f  "+format+"\n", append([]any{milliseconds(now)}, a...)...)
	}
	for _, r := range st.Refused {
		line("refuse %d: %v", r.Request.ID, r.Err)
	}
	for _, r := range st.SetBack {
		line("set back %d, which has %d tokens", r.ID, len(r.Tokens))
	}
	for _, r := range st.Admitted {
		at := "" // admitted and set back in one step
		if r.Running() {
			at = fmt.Sprintf(" as %d, at %d of %d tokens", r.Number, r.Sequence.Len(), len(r.Tokens))
		}
		line("admit %d%s", r.ID, at)
	}
	var parts []string
	if len(st.Decode) > 0 {
		ids := make([]string, len(st.Decode))
		for i, r := range st.Decode {
			ids[i] = fmt.Sprint(r.Request.ID)
			if n := len(r.Draft); n > 0 {
				ids[i] += fmt.Sprintf("+%d", n)
			} else if r.Tokens < st.Chain {
				ids[i] += fmt.Sprintf("(%d)", r.Tokens)
			}
		}
		parts = append(parts, fmt.Sprintf("decode %d of %s", st.Chain, strings.Join(ids, " ")))
	}
	for _, c := range st.Chunks {
		last := ""
		if c.Last {
			last = ", the last"
		}
		parts = append(parts, fmt.Sprintf("prefill %d of %d at %d%s", c.Rows, c.Request.ID, c.At, last))
	}
	for _, b := range st.Restores {
		parts = append(parts, fmt.Sprintf("read %d of %d back at %d", b.Rows, b.Request.ID, b.At))
	}
	if len(parts) > 0 {
		if st.Joint {
			parts[0] = "together: " + parts[0]
		}
		line("%s; %.1f of %.1f", strings.Join(parts, "; "), milliseconds(st.Predicted), milliseconds(st.Bound))
	}
	return b.String()
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
