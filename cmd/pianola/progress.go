package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progressDelay is the time after which a progress bar is shown.
const progressDelay = time.Second

// progress is a progress bar. It is shown only on a terminal.
type progress struct {
	w     io.Writer // nil if no progress is shown
	bytes bool
	start time.Time
	what  string
	bar   *progressbar.ProgressBar
}

// newProgress returns a progress bar. bytes selects whether it counts bytes or items.
func newProgress(w io.Writer, what string, bytes bool) *progress {
	p := &progress{what: what, bytes: bytes, start: time.Now()}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.w = w
	}
	return p
}

// set shows done of total. what names the stage of the work.
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
	_ = p.bar.Set64(int64(min(done, total))) // an error in drawing must not stop the work
}

// note shows a line above the bar.
func (p *progress) note(text string) {
	if p.w != nil {
		p.finish()
		fmt.Fprintln(p.w, "pianola:", oneLine(text))
	}
}

// finish removes the bar.
func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
}
