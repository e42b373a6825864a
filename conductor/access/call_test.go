package access

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor/forward"
	"example.com/conductor/internal/must"
)

// TestCarriedEndsWithItsReplica rechecks a call that a replica carries for a client, while the
// credentials of the replica change.
func TestCarriedEndsWithItsReplica(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	policy := func(roles string) Policy {
		known, err := ParseCredentials("c.yaml",
			[]byte("tokens: [{name: replica, sha256: "+digest("token")+", roles: ["+roles+"], tenants: ['*']}]"))
		must.Succeed(t, err)
		return Policy{Credentials: known}
	}
	guard := New(policy("peer"), zerolog.Nop())
	engine := gin.New()
	engine.Use(guard.Check)
	asked := 0
	engine.POST("/grpc/:service/:method", func(g *gin.Context) {
		asked++
		c := guard.Carried(g)
		if c.client.Name != "c" || c.client.Roles != Query || c.Flow().Name != "b" || c.Flow().Weight != 3 ||
			c.Tell() != (&Client{"c", Query, []string{"b"}, 3}).Tell() {
			t.Errorf("%+v of %v", c.client, c.Flow())
		}
		must.Succeed(t, c.Recheck())
		guard.Use(policy("peer, metrics"))
		must.Succeed(t, c.Recheck())
		guard.Use(policy("metrics"))
		for range 2 {
			if status := Refused(c.Recheck()); status != http.StatusUnauthorized {
				t.Errorf("after the role peer was withdrawn: %d", status)
			}
		}
	})
	r := httptest.NewRequest("POST", "/grpc/kvconductor.v1.Conductor/Watch", nil)
	r.Header.Set("Authorization", "Bearer token")
	r.Header.Set(forward.ForwardedHeader, "r")
	r.Header.Set(forward.ClientHeader, (&Client{"c", Query, []string{"b"}, 3}).Tell())
	w := httptest.NewRecorder()
	engine.ServeHTTP(w, r)
	if w.Code != http.StatusOK || asked != 1 {
		t.Errorf("status %d", w.Code)
	}
	if c := (*Guard)(nil).Carried(nil); c.client != operator || c.Recheck() != nil {
		t.Error("without a guard a caller is no operator")
	}
}
