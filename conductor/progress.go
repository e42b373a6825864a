package conductor

import "time"

// Progress is how far a recovery has come. The zero value is none.
type Progress struct {
	From              string // FromSnapshot or FromPeer, "" for none
	Name              string // of the file or the peer
	Blocks            int
	Bytes, TotalBytes int64 // the latter is 0 while it is not known
	Since             time.Time
}

// Rate returns the blocks a second.
func (p *Progress) Rate(now time.Time) float64 {
	return float64(p.Blocks) / max(now.Sub(p.Since).Seconds(), 1e-3)
}

// Left returns the time that the rest takes at the pace so far, below 0 if it is not known.
func (p *Progress) Left(now time.Time) time.Duration {
	if p.TotalBytes <= 0 || p.Bytes <= 0 {
		return -1
	}
	return time.Duration(float64(now.Sub(p.Since)) * float64(max(p.TotalBytes-p.Bytes, 0)) / float64(p.Bytes))
}
