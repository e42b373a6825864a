// Package apitest compares routes and answers with openapi.yaml.
package apitest

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/gin-gonic/gin"

	kvconductor "example.com/conductor"
	"example.com/conductor/internal/must"
)

// Document is openapi.yaml.
type Document struct {
	OpenAPI *openapi3.T
	router  routers.Router
}

// Load reads the document.
func Load(t testing.TB) *Document {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(kvconductor.OpenAPI)
	must.Succeed(t, err)
	must.Succeed(t, doc.Validate(t.Context()))
	router, err := legacy.NewRouter(doc)
	must.Succeed(t, err)
	return &Document{doc, router}
}

// parameter is a part of a path that the router names.
var parameter = regexp.MustCompile(`[:*]([a-z]+)`)

// CompareRoutes compares routes with the paths that described selects, both ways. HEAD is
// GET without its body.
func (d *Document) CompareRoutes(t *testing.T, routes gin.RoutesInfo, described func(path string) bool) {
	t.Helper()
	var have, want []string
	for _, r := range routes {
		if r.Method != http.MethodHead {
			have = append(have, r.Method+" "+parameter.ReplaceAllString(r.Path, "{$1}"))
		}
	}
	for path, item := range d.OpenAPI.Paths.Map() {
		for method := range item.Operations() {
			if described(path) {
				want = append(want, method+" "+path)
			}
		}
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("routes:\n%s\nopenapi.yaml:\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

// Find returns what the document says of a request.
func (d *Document) Find(t *testing.T, req *http.Request) *openapi3filter.RequestValidationInput {
	t.Helper()
	route, params, err := d.router.FindRoute(req)
	if err != nil {
		t.Fatalf("%s %s is not described: %v", req.Method, req.URL, err)
	}
	return &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route}
}

// CheckAnswer compares an answer with the description of its request's path.
func (d *Document) CheckAnswer(t *testing.T, req *http.Request, rec *httptest.ResponseRecorder) {
	t.Helper()
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: d.Find(t, req),
		Status:                 rec.Code,
		Header:                 rec.Header(),
		Options:                &openapi3filter.Options{IncludeResponseStatus: true},
	}
	input.SetBodyBytes(rec.Body.Bytes())
	if err := openapi3filter.ValidateResponse(t.Context(), input); err != nil {
		t.Errorf("%s %s: answer %d %s does not fit the document: %v", req.Method, req.URL, rec.Code, rec.Body, err)
	}
}
