package fleet

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress shows how far a run is.
type Progress interface {
	// Start tells the number of requests, -1 if only the duration ends the run;
	// both may be open.
	Start(requests int, duration time.Duration)
	// Add tells that n more requests are done, and the counts so far.
	Add(n, wrong, behind, failed int)
	Stop()
}

// NoProgress shows nothing.
func NoProgress() Progress { return none{} }

type none struct{}

func (none) Start(int, time.Duration) {}
func (none) Add(_, _, _, _ int)       {}
func (none) Stop()                    {}

// BarProgress draws a bar, for terminals.
func BarProgress(w io.Writer) Progress { return &bar{w: w} }

type bar struct {
	w io.Writer
	p *progressbar.ProgressBar

	mu   sync.Mutex // guards text
	text string
}

func (b *bar) Start(requests int, _ time.Duration) {
	b.p = progressbar.NewOptions(requests,
		progressbar.OptionSetWriter(b.w),
		progressbar.OptionSetDescription("wrong 0, behind 0"),
		progressbar.OptionSetItsString("req"),
		progressbar.OptionShowIts(),
		progressbar.OptionShowCount(),
		progressbar.OptionSetWidth(24),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)
}

func (b *bar) Add(n, wrong, behind, failed int) {
	text := fmt.Sprintf("wrong %d, behind %d", wrong, behind)
	if failed > 0 {
		text += fmt.Sprintf(", failed %d", failed)
	}
	b.mu.Lock()
	changed := text != b.text
	b.text = text
	b.mu.Unlock()
	if changed {
		b.p.Describe(text)
	}
	_ = b.p.Add(n) // a terminal that went away is no reason to stop
}

func (b *bar) Stop() { _ = b.p.Clear() }

// LineProgress writes a line now and then, for logs.
func LineProgress(w io.Writer, every time.Duration) Progress {
	return &lines{w: w, every: every, now: time.Now}
}

type lines struct {
	w     io.Writer
	every time.Duration
	now   func() time.Time

	mu      sync.Mutex // guards the rest
	total   int
	done    int
	started time.Time
	last    time.Time
}

func (l *lines) Start(requests int, _ time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total = requests
	l.started = l.now()
	l.last = l.started
}

func (l *lines) Add(n, wrong, behind, failed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done += n
	now := l.now()
	if now.Sub(l.last) < l.every {
		return
	}
	l.last = now
	of := ""
	if l.total >= 0 {
		of = fmt.Sprintf(" of %d", l.total)
	}
	fmt.Fprintf(l.w, "%d%s requests, %.0f/s, wrong %d, behind %d, failed %d\n",
		l.done, of, float64(l.done)/now.Sub(l.started).Seconds(), wrong, behind, failed)
}

func (l *lines) Stop() {}
