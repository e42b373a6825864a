package mooncake

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/server"
)

// A registration that counts is not refused as one that does not, although the server is stopping.
func TestRefusedWhileStopping(t *testing.T) {
	f := func(err error, want int) {
		t.Helper()
		err = refused(registration.Registration{}, err)
		var own *failure
		status := 0
		if errors.As(err, &own) {
			status = own.status
		} else {
			status, _ = server.Status(err)
		}
		if status != want {
			t.Errorf("%v is answered with %d, want %d", err, status, want)
		}
	}
	f(ingest.ErrClosed, http.StatusBadRequest)
	f(fmt.Errorf("%w: %w", conductor.ErrNotDurable, ingest.ErrClosed), http.StatusServiceUnavailable)
}
