package replay

import (
	"reflect"
	"testing"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/index"
)

// TestJournalSettings holds that a journal keeps what decides an index.
func TestJournalSettings(t *testing.T) {
	given := conductor.Options{HashSeed: 1<<64 - 1, Copies: index.CopySet, MaxBytes: 1 << 40, MaxBytesTotal: 1 << 41, MaxContexts: 7,
		MaxTokenID: 1<<32 - 1, KeepClientHashes: true}
	given.Stream.StaleAfter = 90 * time.Second
	var got conductor.Options
	if err := adopt(&got, Settings(&given)); err != nil || !reflect.DeepEqual(got, given) {
		t.Errorf("%+v %v\nwant %+v", got, err, given)
	}
}
