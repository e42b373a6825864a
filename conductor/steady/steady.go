// Package steady keeps moments as numbers, for ages and times to live that do not change where the wall clock is set.
//
// The rule of all ages and times to live, in every room:
//
//   - Within a process, ages are the difference of two values of time.Now, whose monotonic reading nobody sets. Never strip it
//     (Round, Truncate, UnixNano, JSON), except to show a time to people. Where a moment has to be a number, as in an atomic
//     or a table of millions, it is that of Nanos.
//   - Between processes and across restarts there is no monotonic clock. What is sent has an age or a time to live instead of
//     a moment, and what replicas share in the store has the store's clock alone. A moment on the disk, as that of a snapshot,
//     is shown to people, and decides only which of two files of one server is newer. There is one exception: a registration
//     that still waits for the store when its server stops (conductor/membership). The disk has the time of the change by the
//     wall clock, and the store compares it with other changes of the source. If that clock is set meanwhile, the change
//     counts as that much earlier or later, but never as later than the moment at which it reaches the store.
//   - Validity of certificates and times of credentials are by the wall clock, because they are written down by others.
//
// Cost: a subtraction.
package steady

import "time"

// began is a moment of this process on both clocks.
var began = time.Now()

// Nanos returns a moment in nanoseconds: as t.UnixNano of a wall clock that was not set since the process began. t is a value of
// time.Now, or what Add made of one. A time without a monotonic reading, as in tests, is its UnixNano.
func Nanos(t time.Time) int64 { return began.UnixNano() + int64(t.Sub(began)) }

// Seconds returns a moment in whole seconds, as Nanos does.
func Seconds(t time.Time) int64 { return Nanos(t) / int64(time.Second) }

// Time returns what the wall clock, as it is set now, would have shown at a moment of Nanos.
func Time(nanos int64, now time.Time) time.Time { return now.Add(time.Duration(nanos - Nanos(now))) }
