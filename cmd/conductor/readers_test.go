package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/config"
	"example.com/conductor/internal/freeport"
	"example.com/conductor/internal/must"
)

// plantedTenant is sources of a tenant whose every name begins with zz, and whose engines have addresses that begin with
// 127.7.7: none of that may be in an answer to others. %[1]s is a port for a socket that two tenants share, where a
// source of tenant b waits too. Tenant b also follows a publisher of the planted one.
const plantedTenant = `
sources:
  - {endpoint: 'tcp://127.7.7.7:7777', type: vLLM, modelname: zz-model, instance_id: zz-engine, tenant_id: zz-tenant, block_size: 16,
     additionalsalt: zz-salt, aliases: [zz-alias], lora_name: zz-adapter}
  - {endpoint: 'tcp://127.7.7.8:7777', type: vLLM, modelname: m, instance_id: zz-twin, tenant_id: zz-tenant, block_size: 16}
  - {endpoint: 'push:', type: LMCache, modelname: zz-model, instance_id: zz-cache, tenant_id: zz-tenant, block_size: 16}
  - {endpoint: 'bind:tcp://127.0.0.1:%[1]s', type: vLLM, modelname: zz-model, instance_id: zz-bound, tenant_id: zz-tenant, block_size: 16}
  - {discover: 'http://127.7.7.9:7777', instance_id: zz-asked, tenant_id: zz-tenant, block_size: 16}
  - {endpoint: 'tcp://127.0.0.1:1', type: vLLM, modelname: m, instance_id: own, tenant_id: b, block_size: 16}
  - {endpoint: 'bind:tcp://127.0.0.1:%[1]s', type: vLLM, modelname: m, instance_id: own-bound, tenant_id: b, block_size: 16}
`

// unknownRoutes are requests for which no listener has a route.
var unknownRoutes = []gin.RouteInfo{{Method: "GET", Path: "/nowhere"}, {Method: "POST", Path: "/services"},
	{Method: "OPTIONS", Path: "/query"}, {Method: "GET", Path: "/admin"}, {Method: "GET", Path: "/services/"}}

var plantedName = regexp.MustCompile(`zz-[a-z]*|127\.7\.7\.\d`)

// plantedServer is a server with plantedTenant, and with credentials for each role: of all tenants, and of tenant b alone.
func plantedServer(t *testing.T, dialect string) *process {
	t.Helper()
	entries := []string{"operator admin '*'"}
	for _, role := range []string{"query", "register", "metrics", "peer", "admin"} {
		entries = append(entries, role+" "+role+" '*'", role+"-b "+role+" b")
	}
	address, err := freeport.Address()
	must.Succeed(t, err)
	_, port, err := net.SplitHostPort(address)
	must.Succeed(t, err)
	return serveProcess(t, "auth: {file: "+credentialsFile(t, entries...)+"}\ndynamo: {test_endpoints: true}\n"+
		fmt.Sprintf(plantedTenant, port), "127.0.0.1:0="+dialect)
}

// TestReadersSeeTheirTenantAlone asks every route of every listener without credentials, with wrong ones, and as the
// clients of one tenant, and looks for names of another tenant in each answer. The last column says who is
// shown them all the same: clients of all tenants with the role that the list of sources needs.
func TestReadersSeeTheirTenantAlone(t *testing.T) {
	t.Parallel()
	bodies := []string{
		`{}`,
		`{"model":"m","block_size":16,"token_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"tenant_id":"b"}`,
		`{"model":"nearly","block_size":16,"token_ids":[1],"tenant_id":"b"}`,
		`{"model_name":"m","token_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"routing_group":"b"}`,
		`{"model_name":"m","block_hashes":[1],"routing_group":"b"}`,
		`{"queries":[{"model":"nearly","block_size":16,"token_ids":[1],"tenant_id":"b"}]}`,
		`{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":"own","block_size":32,"dp_rank":0,"tenant_id":"b"}`,
		`{"instance_id":"own","endpoint":"tcp://127.0.0.1:1","model_name":"m","block_size":32,"routing_group":"b"}`,
		`{"instance_id":"nobody","dp_rank":0,"tenant_id":"b"}`,
	}
	for _, root := range []string{config.Conductor, config.ConductorMsgpack, config.ConductorJSONV2, config.Dynamo} {
		t.Run(root, func(t *testing.T) {
			t.Parallel()
			p := plantedServer(t, root)
			ask := func(method, path, token, body string) (status int, answer string) {
				req, err := http.NewRequestWithContext(inTime(t), method, p.url+path, strings.NewReader(body))
				must.Succeed(t, err)
				if req.Header.Set("Content-Type", "application/json"); token != "" {
					req.Header.Set("Authorization", "Bearer "+token)
				}
				resp, err := http.DefaultClient.Do(req)
				must.Succeed(t, err)
				defer resp.Body.Close()
				var text bytes.Buffer
				must.Succeed(t, resp.Header.Write(&text))
				in := bufio.NewReader(resp.Body)
				for endless := resp.Header.Get("Content-Type") == "text/event-stream"; ; {
					line, err := in.ReadString('\n')
					if text.WriteString(line); err == io.EOF || endless && strings.Contains(line, `"version"`) {
						return resp.StatusCode, text.String()
					}
					must.Succeed(t, err)
				}
			}
			eventually(t, "an operator does not see the planted names", func() (string, bool) {
				_, ready := ask("GET", "/ready", "query", "")
				_, services := ask("GET", "/conductor/v1/services", "operator", "")
				return ready + services, strings.Contains(ready, "zz-engine|zz-tenant|0") && strings.Contains(ready, "zz-asked") &&
					strings.Contains(services, "zz-salt") && strings.Contains(services, "127.7.7.7")
			})
			seen := 0
			for _, route := range append(routesOf(root), unknownRoutes...) {
				path := strings.NewReplacer(":service", "kvconductor.v1.Conductor", ":method", "Query", ":profile", "cmdline", "*file",
					"app.js", "*page", "settings", "*id", "none?tenant_id=b").Replace(route.Path)
				paths := []string{path}
				if route.Method == http.MethodGet {
					paths = append(paths, path+"?detail=1&verbose=1&top=1",
						path+"?source=own|b|0&instance=own&tenant_id=b&model=m&block_size=16")
				}
				for _, token := range []string{"", "wrong", "query-b", "register-b", "metrics-b", "peer-b", "admin-b"} {
					if token == "wrong" && seen > 8 {
						continue // attempts are bounded, see TestWrongTokens
					}
					for _, path := range paths {
						for _, body := range bodies {
							_, answer := ask(route.Method, path, token, body)
							if seen++; plantedName.MatchString(answer) {
								t.Errorf("%s %s as %q with %s shows %q: %.600s", route.Method, path, token, body,
									plantedName.FindAllString(answer, -1), answer)
							}
							if route.Method != http.MethodPost {
								break
							}
						}
					}
				}
			}
			if seen < 500 {
				t.Errorf("%d answers", seen)
			}

			// A source that has been connecting for half a minute is stale, and is waited for no longer.
			numbers := regexp.MustCompile(`"summary":"\d of \d sources (is|are) (connecting|stale)(, \d (is|are) connecting)?"`)
			// Roles without the right to list sources see numbers, and clients of all tenants no more than that.
			for token, names := range map[string]bool{"": false, "wrong": false, "register": false, "metrics": false, "peer": false,
				"query": true, "operator": true} {
				status, answer := ask("GET", "/ready", token, "")
				if status != http.StatusServiceUnavailable && status != http.StatusOK || !numbers.MatchString(answer) ||
					plantedName.MatchString(answer) != names {
					t.Errorf("/ready as %q: %d %s", token, status, answer)
				}
			}
		})
	}
}

// TestCallersSeeTheirTenantAlone is TestReadersSeeTheirTenantAlone over gRPC.
func TestCallersSeeTheirTenantAlone(t *testing.T) {
	t.Parallel()
	p := plantedServer(t, config.GRPC)
	address := p.listener(t, config.GRPC)
	call := func(token, method string, in, out proto.Message) string {
		var text string
		conn := dialed(t, address, token, nil)
		if strings.HasSuffix(method, "Watch") || strings.HasSuffix(method, "Info") {
			s, err := conn.NewStream(inTime(t), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
			must.Succeed(t, err)
			if err = s.SendMsg(in); err == nil || err == io.EOF {
				must.Succeed(t, s.CloseSend())
				err = s.RecvMsg(out)
			}
			text = fmt.Sprint(err)
		} else {
			text = fmt.Sprint(conn.Invoke(inTime(t), method, in, out))
		}
		return text + " " + protojson.Format(out)
	}
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	ask := func(model string) *pb.QueryRequest {
		return &pb.QueryRequest{Model: model, BlockSize: 16, TenantId: "b", Detail: true,
			Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: tokens}}}
	}
	for _, token := range []string{"", "query-b", "register-b", "admin-b"} {
		for _, answer := range []string{
			call(token, "/grpc.health.v1.Health/Check", new(grpc_health_v1.HealthCheckRequest), new(grpc_health_v1.HealthCheckResponse)),
			call(token, "/grpc.health.v1.Health/List", new(grpc_health_v1.HealthListRequest), new(grpc_health_v1.HealthListResponse)),
			call(token, "/grpc.health.v1.Health/Watch", new(grpc_health_v1.HealthCheckRequest), new(grpc_health_v1.HealthCheckResponse)),
			call(token, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", &reflectionpb.ServerReflectionRequest{
				MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}, new(reflectionpb.ServerReflectionResponse)),
			call(token, pb.Conductor_Query_FullMethodName, ask("m"), new(pb.QueryResponse)),
			call(token, pb.Conductor_Query_FullMethodName, ask("nearly"), new(pb.QueryResponse)),
			call(token, pb.Conductor_Watch_FullMethodName, &pb.WatchRequest{Query: ask("m")}, new(pb.QueryResponse)),
			call(token, pb.Conductor_QueryBatch_FullMethodName, &pb.QueryBatchRequest{Queries: []*pb.QueryRequest{ask("nearly")}},
				new(pb.QueryBatchResponse)),
			call(token, pb.Conductor_Routed_FullMethodName, new(pb.RoutedRequest), new(pb.RoutedResponse)),
		} {
			if plantedName.MatchString(answer) {
				t.Errorf("as %q: %s", token, answer)
			}
		}
	}
}
