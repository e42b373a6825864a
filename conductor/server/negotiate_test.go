package server

import (
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/body"
)

// TestDialectsWithoutNames holds that the parameter dialect counts only where a dialect has
// a name, and that a dialect refuses the routes it lacks.
func TestDialectsWithoutNames(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	say := func(who string) []Route {
		return []Route{{Method: "POST", Path: "/a", Handle: func(g *gin.Context, c body.Codec) { g.String(200, who+" "+c.ContentType()) }}}
	}
	refuse := func(g *gin.Context, c body.Codec, why *Refusal) { g.String(why.Status, why.Reason+" "+c.ContentType()) }
	first := Dialect{Routes: append(say("first"), Route{Method: "POST", Path: "/b", Handle: say("first")[0].Handle}), Refuse: refuse}
	packed := Dialect{Codec: body.Msgpack, Routes: say("packed"), Refuse: refuse}
	named := Dialect{Name: "v2", Routes: say("named"), Refuse: refuse}
	f := func(t2 Dialects, target, contentType, accept, want string) {
		t.Helper()
		r := gin.New()
		t2.MountRoot(r)
		req := httptest.NewRequest("POST", target, nil)
		req.Header.Set("Content-Type", contentType)
		req.Header.Set("Accept", accept)
		rec := httptest.NewRecorder()
		r.ServeHTTP(rec, req)
		if got := rec.Body.String(); got != want {
			t.Errorf("%s as %q accepting %q: %q, want %q", target, contentType, accept, got, want)
		}
	}
	const inJSON, inMsgpack = "application/json", "application/msgpack"
	two, three := Dialects{first, packed}, Dialects{first, packed, named}
	f(two, "/a?dialect=v3", inJSON, "", "first "+inJSON)
	f(two, "/a", inJSON, inMsgpack, "first "+inMsgpack)
	f(two, "/a", inMsgpack, inJSON, "packed "+inJSON)
	for _, alias := range []string{"application/x-msgpack", "application/vnd.msgpack", "Application/X-MsgPack; v=5"} {
		f(two, "/a", alias, "", "packed "+inMsgpack)
		f(two, "/a", alias, inJSON, "packed "+inJSON)
		f(two, "/b", alias, "", "unsupported_content_type "+inMsgpack)
	}
	f(two, "/a", inJSON, "application/x-msgpack", "first "+inMsgpack)
	f(two, "/a", inJSON, "application/vnd.msgpack, application/json;q=0.5", "first "+inMsgpack)
	f(two, "/a", inJSON, "application/json, application/vnd.msgpack;q=0.5", "first "+inJSON)
	f(two, "/b", inMsgpack, "", "unsupported_content_type "+inMsgpack)
	f(two, "/c", inMsgpack, "", "not_found "+inMsgpack)
	f(three, "/a?dialect=v2", inJSON, inMsgpack, "named "+inMsgpack)
	f(three, "/b?dialect=v2", inJSON, inMsgpack, "first "+inJSON)
	f(three, "/a?dialect=v3", inJSON, "", "invalid_value "+inJSON)
	f(three, "/a?dialect=v3", inMsgpack, "", "packed "+inMsgpack)
	f(three, "/c?dialect=v3", inJSON, "", "not_found "+inJSON)
	f(Dialects{named}, "/a?dialect=v3", inJSON, "", "named "+inJSON)
}
