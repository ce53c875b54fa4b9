package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progressDelay is how long work may take before a bar is worth showing.
const progressDelay = time.Second

// progress shows how far long work has come, on a terminal only.
type progress struct {
	w     io.Writer // nil if no progress is shown
	bytes bool
	start time.Time
	what  string
	bar   *progressbar.ProgressBar
}

// newProgress returns a bar for work that is counted in bytes or in things.
func newProgress(w io.Writer, what string, bytes bool) *progress {
	p := &progress{what: what, bytes: bytes, start: time.Now()}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.w = w
	}
	return p
}

// set shows done of total parts of what is being done.
func (p *progress) set(what string, done, total uint64) {
	if p.w == nil || total == 0 || time.Since(p.start) < progressDelay {
		return
	}
	if p.bar != nil && what != p.what {
		p.finish()
	}
	p.what = what
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(int64(total),
			progressbar.OptionSetWriter(p.w), progressbar.OptionSetDescription(what),
			progressbar.OptionShowBytes(p.bytes), progressbar.OptionSetWidth(30),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetPredictTime(true))
	}
	_ = p.bar.Set64(int64(min(done, total))) // a bar that cannot be drawn stops nothing
}

// finish takes the bar away.
func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
}
