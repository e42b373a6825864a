//go:build !linux

package bench

import "time"

// threadTime returns 0: the system does not say it.
func threadTime() time.Duration { return 0 }

func resetPeakRSS() {}

// residentBytes returns zeros: the system does not say it.
func residentBytes() (now, peak int64) { return 0, 0 }
