package server

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"example.com/conductor/spelling"
)

// TidyPaths returns a handler that passes requests on to h. Of a path that is a route's but for slashes at its end, or several
// in a row, h sees that of the route: a redirect would lose the body with many clients. It does so before h checks who may ask.
func TidyPaths(h http.Handler, routes gin.RoutesInfo) http.Handler {
	known := make(map[string]bool)
	for _, r := range routes {
		path, _, _ := strings.Cut(r.Path, "*")
		known[path] = !strings.Contains(path, ":")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if !strings.HasSuffix(path, "/") && !strings.Contains(path, "//") || known[path] || r.URL.RawPath != "" {
			h.ServeHTTP(w, r)
			return
		}
		if path = tidyPath(path); known[path] {
			to := *r.URL
			to.Path = path
			tidied := *r
			tidied.URL = &to
			r = &tidied
		}
		h.ServeHTTP(w, r)
	})
}

// tidyPath returns a path without slashes at its end, and without several in a row.
func tidyPath(path string) string {
	return "/" + strings.Join(strings.FieldsFunc(path, func(r rune) bool { return r == '/' }), "/")
}

// similarRoute returns method and path of the route that a path without one was probably meant to be, "" if there is none:
// that of its last parts, which have a prefix too many or the wrong one, or else one that is spelled alike.
func similarRoute(method, path string, routes gin.RoutesInfo) string {
	methods := make(map[string]string)
	var all []string
	for _, r := range routes {
		if strings.ContainsAny(r.Path, ":*") || r.Path == "/" {
			continue
		}
		if _, seen := methods[r.Path]; !seen {
			all = append(all, r.Path)
		}
		if methods[r.Path] == "" || r.Method == method {
			methods[r.Path] = r.Method
		}
	}
	path = strings.ToLower(tidyPath(path))
	for rest := path; rest != ""; {
		if methods[rest] != "" {
			return methods[rest] + " " + rest
		}
		at := strings.IndexByte(rest[1:], '/')
		if at < 0 {
			break
		}
		rest = rest[1+at:]
	}
	if near := spelling.Closest(path, all); near != "" {
		return methods[near] + " " + near
	}
	return ""
}
