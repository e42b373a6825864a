package sim

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress shows how far a run is. A nil Progress shows nothing.
type Progress struct {
	w     io.Writer
	every time.Duration // between two lines, 0 for a bar
	bar   *progressbar.ProgressBar

	mu      sync.Mutex // guards the rest
	text    string     // next to the bar
	total   int        // requests, -1 if only the duration ends the run
	done    int
	started time.Time
	last    time.Time // of a line
}

// BarProgress draws a bar, for terminals.
func BarProgress(w io.Writer) *Progress { return &Progress{w: w} }

// LineProgress writes a line now and then, for logs.
func LineProgress(w io.Writer, every time.Duration) *Progress { return &Progress{w: w, every: every} }

// start begins with a number of requests, -1 if only the duration ends the run.
func (p *Progress) start(requests int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total, p.started, p.last = requests, time.Now(), time.Now()
	if p.every == 0 {
		p.bar = progressbar.NewOptions(requests,
			progressbar.OptionSetWriter(p.w),
			progressbar.OptionSetDescription("wrong 0, behind 0"),
			progressbar.OptionSetItsString("req"),
			progressbar.OptionShowIts(),
			progressbar.OptionShowCount(),
			progressbar.OptionSetWidth(24),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish(),
		)
	}
}

// add shows one more request, and the counts so far.
func (p *Progress) add(wrong, behind, failed int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	if p.bar != nil {
		text := fmt.Sprintf("wrong %d, behind %d", wrong, behind)
		if failed > 0 {
			text += fmt.Sprintf(", failed %d", failed)
		}
		if text != p.text {
			p.text = text
			p.bar.Describe(text)
		}
		_ = p.bar.Add(1) // a terminal that went away is no reason to stop
		return
	}
	now := time.Now()
	if now.Sub(p.last) < p.every {
		return
	}
	p.last = now
	of := ""
	if p.total >= 0 {
		of = fmt.Sprintf(" of %d", p.total)
	}
	fmt.Fprintf(p.w, "%d%s requests, %.0f/s, wrong %d, behind %d, failed %d\n",
		p.done, of, float64(p.done)/now.Sub(p.started).Seconds(), wrong, behind, failed)
}

// stop takes the bar away.
func (p *Progress) stop() {
	if p != nil && p.bar != nil {
		_ = p.bar.Clear()
	}
}
