package dynamo

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"example.com/conductor/bounds"
	"example.com/conductor/internal/apitest"
	"example.com/conductor/internal/must"
)

const prefix = "/dynamo/v1"

// TestRoutesAreDescribed compares the routes with openapi.yaml, both ways.
func TestRoutesAreDescribed(t *testing.T) {
	engine := gin.New()
	newServer(t, Config{TestEndpoints: true}).dialect.Mount(engine.Group(prefix))
	apitest.Load(t).CompareRoutes(t, engine.Routes(), func(path string) bool { return strings.HasPrefix(path, prefix+"/") })
}

// TestAnswersFitTheDocument makes every kind of request and holds each answer
// against openapi.yaml.
func TestAnswersFitTheDocument(t *testing.T) {
	doc := apitest.Load(t)
	inBubble(t, Config{TestEndpoints: true, MaxTokens: 16}, func(t *testing.T, s *testServer) {
		f := func(method, path, body string, status int) {
			t.Helper()
			req := httptest.NewRequest(method, prefix+path, strings.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			if body == "no type" {
				req.Header.Del("Content-Type")
			}
			rec := httptest.NewRecorder()
			s.handler.ServeHTTP(rec, req)
			if rec.Code != status {
				t.Errorf("%s %s %.200s: status %d, want %d: %s", method, path, body, rec.Code, status, rec.Body)
			}
			doc.CheckAnswer(t, req, rec)
		}
		f("POST", "/register", newRegistration(), 201)
		f("POST", "/register", newRegistration(), 409)
		f("POST", "/register", newRegistration("block_size", "0"), 400)
		f("POST", "/register", newRegistration("instance_id", `"node"`, "endpoint", `"inproc://never"`), 201)
		s.publish(1, 0, stored("GPU", 1, 1), stored("CPU", 2, 2), stored("DISK", 3, 3))
		f("GET", "/workers", "", 200)
		f("GET", "/workers?model_name=a&model_name=b", "", 400)
		f("GET", "/peers", "", 200)
		f("GET", "/peers?detail=1", "", 200)
		f("GET", "/peers?detail=yes", "", 400)
		f("GET", "/health", "", 200)
		f("POST", "/reopen_logs", "", 200)
		f("POST", "/query", ask(promptOf(3), ""), 200)
		f("POST", "/query", ask(promptOf(3), `,"routing_group":"g"`), 404)
		f("POST", "/query", ask(promptOf(5), ""), 413)
		f("POST", "/query_by_hash", byHash(local1, ""), 200)
		f("POST", "/query_by_hash", byHash(local1, `,"cache_salt":"x"`), 400)
		f("POST", "/query_tiered_by_hash", byHash(local1+","+local2+","+local3, ""), 200)
		for _, b := range bodies {
			f("POST", b.path, "{", 400)
			f("POST", b.path, "{}", 422)
			f("POST", b.path, "no type", 415)
			f("POST", b.path, strings.Repeat(" ", b.limit+1), 413)
		}
		f("POST", "/register_peer", `{"url":"http://a"}`, 201)
		f("POST", "/deregister_peer", `{"url":"http://b"}`, 404)
		f("POST", "/deregister_peer", `{"url":"http://a"}`, 200)
		f("POST", "/test/resume_listener", `{"instance_id":1}`, 409)
		f("POST", "/test/pause_listener", `{"instance_id":1}`, 200)
		f("POST", "/test/pause_listener", `{"instance_id":5}`, 404)
		f("POST", "/unregister", `{"instance_id":5,"model_name":"m"}`, 404)
		f("POST", "/unregister", `{"instance_id":1,"model_name":"m"}`, 200)
		must.Succeed(t, s.dialect.cfg.Admission.Enter(t.Context(), bounds.Flow{}))
		f("POST", "/query", ask(promptOf(3), ""), 503)
		f("POST", "/query_by_hash", byHash(local1, ""), 503)
		f("POST", "/query_tiered_by_hash", byHash(local1, ""), 503)
		f("GET", "/workers", "", 200)
		s.dialect.cfg.Admission.Leave(bounds.Flow{})
		f("POST", "/query", ask(promptOf(3), ""), 200)
	})
}
