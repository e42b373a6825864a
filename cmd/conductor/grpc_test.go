package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	grpcstatus "google.golang.org/grpc/status"

	pb "example.com/conductor/api/kvconductor/v1"
	indexerpb "example.com/conductor/api/kvindexer/v1"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/rpc"
	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

// grpcProcess starts a server with a listener of each kind. It returns the address of that of gRPC.
func grpcProcess(t *testing.T, text string, more ...string) (p *process, address string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
	p = startProcess(t, append([]string{"serve", "--config", file, "--listen", "127.0.0.1:0=conductor", "--listen", "127.0.0.1:0=grpc"},
		more...)...)
	return p, p.listener(t, config.GRPC)
}

// listener returns the address of the listener of a dialect, once there is one.
func (p *process) listener(t *testing.T, dialect string) (address string) {
	t.Helper()
	line := regexp.MustCompile(`"address":"([^"]+)","dialect":"` + dialect + `"`)
	eventually(t, "no listener of "+dialect, func() (string, bool) {
		if m := line.FindStringSubmatch(p.log()); m != nil {
			address = m[1]
		}
		return p.log(), address != ""
	})
	return address
}

// dialed returns a connection; the calls of a token carry it.
func dialed(t *testing.T, address, token string, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	with := func(ctx context.Context) context.Context {
		if token == "" {
			return ctx
		}
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
			opts ...grpc.CallOption) error {
			return invoke(with(ctx), method, req, reply, cc, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return stream(with(ctx), desc, cc, method, opts...)
		}))
	must.Succeed(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// inTime bounds a test's calls.
func inTime(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// rpcMatrix has the roles that may make calls, as matrix has those of routes. A call that is not
// here fails the test.
var rpcMatrix = map[string]string{
	"/kvconductor.v1.Conductor/Query": "query", "/kvconductor.v1.Conductor/QueryBatch": "query", "/kvconductor.v1.Conductor/Watch": "query",
	"/kvconductor.v1.Conductor/Candidates": "query", "/kvconductor.v1.Conductor/Routed": "query",
	"/kvconductor.v1.Conductor/RoutedStream":         "query",
	"/kvconductor.v1.Conductor/TakeBack":             "query",
	"/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix": "query",
	"/grpc.health.v1.Health/Check":                   "open", "/grpc.health.v1.Health/List": "open", "/grpc.health.v1.Health/Watch": "open",
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      "open",
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "open",
}

// methodsOf returns the methods of a listener of gRPC, as the server lists them.
func methodsOf() []string {
	c := conductor.New(conductor.Options{Log: zerolog.Nop()})
	defer c.Close()
	cfg := config.Default()
	return grpcServer(c, &cfg, rpc.Options{Conductor: c, Metrics: rpc.NewMetrics(nil), Log: zerolog.Nop()}).Methods()
}

// TestRolesOfCalls holds every method of every service against the matrix, for a client of each
// role, of every tenant and of one, and for clients without credentials.
func TestRolesOfCalls(t *testing.T) {
	t.Parallel()
	roles := []string{"query", "register", "metrics", "peer", "admin"}
	var entries []string
	for _, r := range roles {
		entries = append(entries, r+" "+r+" '*'", r+"-b "+r+" b")
	}
	_, address := grpcProcess(t, "auth: {file: "+credentialsFile(t, entries...)+"}\n")
	methods := methodsOf()
	if len(methods) != len(rpcMatrix) {
		t.Errorf("the server has %d methods, the matrix %d", len(methods), len(rpcMatrix))
	}
	for _, token := range append(append([]string{""}, roles...), "query-b", "register-b", "metrics-b", "peer-b", "admin-b", "wrong") {
		conn := dialed(t, address, token, nil)
		for _, method := range methods {
			role, known := rpcMatrix[method]
			if !known {
				t.Errorf("%s is in no line of the matrix", method)
				continue
			}
			has, _ := strings.CutSuffix(token, "-b")
			want := codes.OK // the handler answers
			switch {
			case role == "open":
			case token == "" || token == "wrong":
				want = codes.Unauthenticated
			case has != role && has != "admin":
				want = codes.PermissionDenied
			}
			code, text := codeOf(inTime(t), conn, method)
			if token == "wrong" && code == codes.ResourceExhausted {
				code = codes.Unauthenticated // after ten of them, hence last
			}
			if refused := code == codes.Unauthenticated || code == codes.PermissionDenied; refused != (want != codes.OK) ||
				want != codes.OK && code != want {
				t.Errorf("%s as %q: %s %s, want %s", method, token, code, text, want)
			}
		}
	}
}

// codeOf returns the code of a call with an empty message.
func codeOf(ctx context.Context, conn *grpc.ClientConn, method string) (codes.Code, string) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err == nil {
		// The first answer is enough, and an empty message suits every method.
		if err = stream.SendMsg(new(grpc_health_v1.HealthCheckRequest)); err == nil {
			stream.CloseSend()
			err = stream.RecvMsg(new(grpc_health_v1.HealthCheckResponse))
		} else {
			err = stream.RecvMsg(new(grpc_health_v1.HealthCheckResponse))
		}
	}
	st := grpcstatus.Convert(err)
	return st.Code(), st.Message()
}

// TestGRPCQueries asks over gRPC and over HTTP: the answers are the same.
func TestGRPCQueries(t *testing.T) {
	t.Parallel()
	engine := newRuledEngine(t, "10.0.0.7:30000", 0)
	other := newRuledEngine(t, "https://w9:30000", 0)
	source := "  - {endpoint: 'tcp://%s', type: SGLang, modelname: m, instance_id: '%s', block_size: 16}\n"
	p, address := grpcProcess(t, "sources:\n"+fmt.Sprintf(source, engine.pub.Addr(), engine.name)+
		fmt.Sprintf(source, other.pub.Addr(), other.name)+"limits: {max_tokens: 4096, max_token_id: 150000}\n")
	engine.publish(ruledStored(0, 6))
	other.publish(ruledStored(0, 3), ruledStored(3, 4, "medium", "CPU"), ruledStored(4, 6, "medium", "DISK"))
	engine.settled(p)
	other.settled(p)
	ctx := inTime(t)
	conn := dialed(t, address, "", nil)
	client := pb.NewConductorClient(conn)
	tokens := recordedTokens(8)
	hashes := []uint64{1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007}
	byTokens := &pb.QueryRequest{Model: "m", BlockSize: 16, Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: tokens}}}
	byHashes := &pb.QueryRequest{Model: "m", BlockSize: 16,
		Prompt: &pb.QueryRequest_Hashes{Hashes: &pb.Hashes{Kind: pb.HashKind_HASH_KIND_ENGINE, Values: hashes}}}
	overHTTP := sorted(post(t, p.url+"/query", string(asJSON(map[string]any{"model": "m", "block_size": 16, "token_ids": tokens})), 200))
	for _, q := range []*pb.QueryRequest{byTokens, byHashes} {
		ans, err := client.Query(ctx, q)
		must.Succeed(t, err)
		if got := asHTTP(ans); got != overHTTP {
			t.Errorf("gRPC\n%s\nHTTP\n%s", got, overHTTP)
		}
	}
	one, err := client.Query(ctx, &pb.QueryRequest{Model: "m", BlockSize: 16, Prompt: byTokens.Prompt, Top: 1, Detail: true})
	must.Succeed(t, err)
	if len(one.Rows) != 1 || len(one.Rows[0].Sources) != 1 || one.Rows[0].Sources[0].State == "" ||
		one.Rows[0].Sources[0].GetWatermark() != 0 || one.Rows[0].Sources[0].AgeMs == nil {
		t.Errorf("detail: %v", one)
	}
	batch, err := client.QueryBatch(ctx,
		&pb.QueryBatchRequest{Queries: []*pb.QueryRequest{byTokens, {Model: "m", BlockSize: 16}, byHashes}})
	must.Succeed(t, err)
	if len(batch.Answers) != 3 || asHTTP(batch.Answers[0].GetResponse()) != overHTTP ||
		batch.Answers[1].GetError().GetField() != "prompt" || asHTTP(batch.Answers[2].GetResponse()) != overHTTP {
		t.Errorf("batch: %v", batch)
	}
	// What sgl-router asks: the worker's device and host count, its disk does not.
	router := indexerpb.NewKVIndexerClient(conn)
	match, err := router.MatchExternalKvPrefix(ctx,
		&indexerpb.MatchExternalKvPrefixRequest{Hashes: []int64{1000, 1001, 1002, 1003, 1004, 1005, -7}})
	must.Succeed(t, err)
	want := `[["http://10.0.0.7:30000",6,"10.0.0.7:30000"],["https://w9:30000",4,"https://w9:30000"]] 6 7`
	if got := routerAnswer(match); got != want {
		t.Errorf("the router gets %s, want %s", got, want)
	}
	match, err = router.MatchExternalKvPrefix(ctx, &indexerpb.MatchExternalKvPrefixRequest{Hashes: []int64{1000, 1001, 1002}, MaxBlocks: 2})
	must.Succeed(t, err)
	if got := routerAnswer(match); !strings.HasSuffix(got, " 2 2") {
		t.Errorf("two blocks: %s", got)
	}
	match, err = router.MatchExternalKvPrefix(ctx, &indexerpb.MatchExternalKvPrefixRequest{Hashes: []int64{5}})
	must.Succeed(t, err)
	if got := routerAnswer(match); got != "[] 0 1" {
		t.Errorf("nothing: %s", got)
	}

	// Mistakes.
	wrong := func(err error, code codes.Code, field string) {
		t.Helper()
		st := grpcstatus.Convert(err)
		named := ""
		for _, d := range st.Details() {
			if bad, ok := d.(*errdetails.BadRequest); ok {
				named = bad.FieldViolations[0].Field
			}
		}
		if st.Code() != code || named != field {
			t.Errorf("%v of field %q, want %s of %q", err, named, code, field)
		}
	}
	long := make([]uint32, 4097)
	for _, c := range []struct {
		q     *pb.QueryRequest
		field string
	}{
		{&pb.QueryRequest{BlockSize: 16, Prompt: byTokens.Prompt}, "model"},
		{&pb.QueryRequest{Model: "m", Prompt: byTokens.Prompt}, "block_size"},
		{&pb.QueryRequest{Model: "m", BlockSize: 1 << 31, Prompt: byTokens.Prompt}, "block_size"},
		{&pb.QueryRequest{Model: "m", BlockSize: 16}, "prompt"},
		{&pb.QueryRequest{Model: "m", BlockSize: 16, Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: long}}}, "tokens.ids[4096]"},
		{&pb.QueryRequest{Model: "m", BlockSize: 16, Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: []uint32{1, 150001}}}},
			"tokens.ids[1]"},
		{&pb.QueryRequest{Model: "m", BlockSize: 16, Prompt: &pb.QueryRequest_Hashes{Hashes: &pb.Hashes{Kind: 77}}}, "hashes.kind"},
	} {
		_, err := client.Query(ctx, c.q)
		wrong(err, codes.InvalidArgument, c.field)
	}
	_, err = client.QueryBatch(ctx, &pb.QueryBatchRequest{Queries: make([]*pb.QueryRequest, 300)})
	wrong(err, codes.InvalidArgument, "queries[256]")
	_, err = router.MatchExternalKvPrefix(ctx, &indexerpb.MatchExternalKvPrefixRequest{})
	wrong(err, codes.InvalidArgument, "")
	_, err = router.MatchExternalKvPrefix(ctx, &indexerpb.MatchExternalKvPrefixRequest{Hashes: make([]int64, 4097)})
	wrong(err, codes.OutOfRange, "")
	late, cancel := context.WithTimeout(ctx, time.Microsecond)
	defer cancel()
	_, err = router.MatchExternalKvPrefix(late, &indexerpb.MatchExternalKvPrefixRequest{Hashes: []int64{1}})
	wrong(err, codes.DeadlineExceeded, "")
	if code, _ := codeOf(ctx, conn, "/kv_indexer.v1.KVIndexer/ApplyExternalKvBatch"); code != codes.Unimplemented {
		t.Errorf("a method that the server lacks: %s", code)
	}

	// Health, reflection, metrics.
	health, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "kv_indexer.v1.KVIndexer"})
	must.Succeed(t, err)
	if health.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health: %v", health)
	}
	reflected, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	must.Succeed(t, err)
	must.Succeed(t, reflected.Send(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "kvconductor.v1.Conductor"},
	}))
	described, err := reflected.Recv()
	must.Succeed(t, err)
	if len(described.GetFileDescriptorResponse().GetFileDescriptorProto()) != 1 {
		t.Errorf("reflection: %v", described)
	}
	for _, line := range []string{`conductor_grpc_requests_total{code="OK",rpc="/kvconductor.v1.Conductor/Query"} 3`,
		`conductor_grpc_request_seconds_count{rpc="/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix"}`} {
		eventually(t, "the metrics lack "+line, func() (string, bool) { // a call is counted after its answer
			_, metrics := get(p.url + "/metrics")
			return metrics, strings.Contains(metrics, line)
		})
	}
}

// asHTTP returns an answer as POST /query writes it.
func asHTTP(ans *pb.QueryResponse) string {
	rows := make(map[string]any)
	for _, r := range ans.GetRows() {
		row := map[string]any{"longest_matched": r.LongestMatched}
		for _, m := range r.Media {
			row[m.Name] = m.Matched
		}
		dp, ranks := map[string]any{}, map[string]any{}
		for _, k := range r.Ranks {
			dp[fmt.Sprint(k.Rank)] = k.Matched
			ranks[fmt.Sprint(k.Rank)] = map[string]any{"gpu": k.Gpu, "cpu": k.Cpu, "disk": k.Disk}
		}
		row["DP"], row["rank_matches"] = dp, ranks
		rows[r.InstanceId] = row
	}
	return sorted(string(asJSON(map[string]any{ans.GetTenantId(): rows})))
}

// sorted returns JSON with the fields of objects in order.
func sorted(text string) string {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return text
	}
	return string(asJSON(v))
}

func routerAnswer(m *indexerpb.MatchExternalKvPrefixResponse) string {
	all := []any{}
	for _, w := range m.Matches {
		all = append(all, []any{w.WorkerAddress, w.MatchedPrefixBlocks, w.WorkerId})
	}
	return fmt.Sprintf("%s %d %d", asJSON(all), m.BestPrefixBlocks, m.BlocksRead)
}

// TestGRPCTenants asks as clients of one tenant.
func TestGRPCTenants(t *testing.T) {
	t.Parallel()
	a, b := newRuledEngine(t, "10.0.0.1:1", 0), newRuledEngine(t, "10.0.0.2:1", 0)
	file := credentialsFile(t, "all-a query,admin a", "all-b query b", "operator admin '*'")
	source := "  - {endpoint: 'tcp://%s', type: SGLang, modelname: m, instance_id: '%s', tenant_id: %s, block_size: 16}\n"
	p, address := grpcProcess(t, "auth: {file: "+file+"}\nsources:\n"+fmt.Sprintf(source, a.pub.Addr(), a.name, "a")+
		fmt.Sprintf(source, b.pub.Addr(), b.name, "b"))
	a.publish(ruledStored(0, 2))
	b.publish(ruledStored(0, 4))
	eventually(t, "the engines never settled", func() (string, bool) {
		_, answer := askAs(t, "GET", p.url+"/services", "operator", "", nil)
		return answer, strings.Count(answer, `"LastSeq":0`) == 2
	})
	ctx := inTime(t)
	query := func(token, tenant string) (*pb.QueryResponse, error) {
		return pb.NewConductorClient(dialed(t, address, token, nil)).Query(ctx,
			&pb.QueryRequest{TenantId: tenant, Model: "m", BlockSize: 16,
				Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: recordedTokens(4)}}})
	}
	one, errOne := query("all-a", "b")
	two, errTwo := query("all-a", "z")
	if grpcstatus.Code(errOne) != codes.PermissionDenied || errOne.Error() != errTwo.Error() || one != nil || two != nil {
		t.Errorf("tenants can be told apart: %v, %v", errOne, errTwo)
	}
	if ans, err := query("all-b", "b"); err != nil || len(ans.Rows) != 1 || ans.Rows[0].LongestMatched != 64 {
		t.Errorf("the client of b gets %v, %v", ans, err)
	}
	for token, want := range map[string]string{
		"all-a":    `[["http://10.0.0.1:1",2,"10.0.0.1:1"]] 2 4`,
		"all-b":    `[["http://10.0.0.2:1",4,"10.0.0.2:1"]] 4 4`,
		"operator": `[["http://10.0.0.2:1",4,"10.0.0.2:1"],["http://10.0.0.1:1",2,"10.0.0.1:1"]] 4 4`,
	} {
		match, err := indexerpb.NewKVIndexerClient(dialed(t, address, token, nil)).MatchExternalKvPrefix(ctx,
			&indexerpb.MatchExternalKvPrefixRequest{Hashes: []int64{1000, 1001, 1002, 1003}})
		must.Succeed(t, err)
		if got := routerAnswer(match); got != want {
			t.Errorf("%s gets %s, want %s", token, got, want)
		}
	}
	watch, err := pb.NewConductorClient(dialed(t, address, "all-a", nil)).Watch(ctx,
		&pb.WatchRequest{Query: &pb.QueryRequest{TenantId: "b", Model: "m", BlockSize: 16,
			Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: []uint32{1}}}}})
	must.Succeed(t, err)
	if ans, err := watch.Recv(); grpcstatus.Code(err) != codes.PermissionDenied {
		t.Errorf("a watch of another tenant gets %v, %v", ans, err)
	}
}

// TestGRPCOverTLS shows a certificate of a client.
func TestGRPCOverTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ca")
	cert, key := ca.issue("server", 10, time.Now().Add(time.Hour))
	file := certificateEntries(t, "  - {name: router, subject: 'spiffe://fleet/router', roles: [query], tenants: ['*']}")
	_, address := grpcProcess(t, fmt.Sprintf("tls: {cert: %s, key: %s, client_ca: %s}\nauth: {file: %s}\n", cert, key, ca.file, file))
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	ask := func(settings *tls.Config) error {
		settings.RootCAs = pool
		_, err := indexerpb.NewKVIndexerClient(dialed(t, address, "", credentials.NewTLS(settings))).MatchExternalKvPrefix(inTime(t),
			&indexerpb.MatchExternalKvPrefixRequest{Hashes: []int64{1}})
		return err
	}
	pair, err := tls.LoadX509KeyPair(ca.issue("router", 11, time.Now().Add(time.Hour)))
	must.Succeed(t, err)
	stranger, err := tls.LoadX509KeyPair(ca.issue("stranger", 12, time.Now().Add(time.Hour)))
	must.Succeed(t, err)
	if err := ask(&tls.Config{Certificates: []tls.Certificate{pair}}); err != nil {
		t.Errorf("the router's certificate: %v", err)
	}
	if err := ask(&tls.Config{Certificates: []tls.Certificate{stranger}}); grpcstatus.Code(err) != codes.Unauthenticated {
		t.Errorf("another certificate: %v", err)
	}
	if err := ask(new(tls.Config)); grpcstatus.Code(err) != codes.Unauthenticated {
		t.Errorf("no certificate: %v", err)
	}
	if err := ask(&tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"},
		MaxVersion: tls.VersionTLS11}); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("TLS 1.1: %v", err)
	}
}

// TestGRPCLimits holds that messages, calls of one client and watches are bounded.
func TestGRPCLimits(t *testing.T) {
	t.Parallel()
	_, address := grpcProcess(t, "limits: {max_body: 64KiB, client_requests: 8, query_wait: 10m}\n# fixed: {watches: 5}\nauth: {file: "+
		credentialsFile(t, "a query a", "b query b", "c query c")+"}\n")
	ctx := inTime(t)
	request := func(tenant string, n int) *pb.QueryRequest {
		return &pb.QueryRequest{TenantId: tenant, Model: "m", BlockSize: 16,
			Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: make([]uint32, n)}}}
	}
	a := pb.NewConductorClient(dialed(t, address, "a", nil))
	if _, err := a.Query(ctx, request("a", 17_000)); grpcstatus.Code(err) != codes.ResourceExhausted {
		t.Errorf("68 KB: %v", err)
	}
	watch := func(token string) error {
		stream, err := pb.NewConductorClient(dialed(t, address, token, nil)).Watch(ctx, &pb.WatchRequest{Query: request(token, 16)})
		must.Succeed(t, err)
		_, err = stream.Recv()
		return err
	}
	for i, c := range []struct{ token, limit string }{{"a", ""}, {"a", ""}, {"a", "one client"}, {"b", ""}, {"b", ""}, {"c", ""},
		{"c", "are open"}} {
		err := watch(c.token)
		if c.limit == "" && err != nil || c.limit != "" &&
			(grpcstatus.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), c.limit)) {
			t.Errorf("watch %d of %s: %v", i, c.token, err)
		}
	}
	c := pb.NewConductorClient(dialed(t, address, "c", nil))
	seen := untilRefused(codes.OK, func(int) codes.Code {
		_, err := c.Query(ctx, request("c", 16))
		return grpcstatus.Code(err)
	})
	if seen[codes.OK] < 6 || seen[codes.ResourceExhausted] == 0 || len(seen) != 2 { // its two watches have counted as two of the eight
		t.Errorf("calls: %v", seen)
	}
	for _, c := range []struct {
		in    *pb.WatchRequest
		field string
	}{
		{&pb.WatchRequest{}, "query"}, {&pb.WatchRequest{Query: request("a", 16), IntervalMs: 1}, "interval_ms"},
		{&pb.WatchRequest{Query: &pb.QueryRequest{Model: "m", BlockSize: 16}}, "query.prompt"},
	} {
		stream, err := a.Watch(ctx, c.in)
		must.Succeed(t, err)
		_, err = stream.Recv()
		if st := grpcstatus.Convert(err); st.Code() != codes.InvalidArgument || len(st.Details()) != 1 ||
			st.Details()[0].(*errdetails.BadRequest).FieldViolations[0].Field != c.field {
			t.Errorf("%v: %v %v", c.in, err, st.Details())
		}
	}
}

// TestGRPCDrain holds that a server which leaves says so, answers on, and ends watches.
func TestGRPCDrain(t *testing.T) {
	t.Parallel()
	p, address := grpcProcess(t, "", "--shutdown-drain", "10m")
	ctx := inTime(t)
	conn := dialed(t, address, "", nil)
	client, health := pb.NewConductorClient(conn), grpc_health_v1.NewHealthClient(conn)
	request := &pb.QueryRequest{Model: "m", BlockSize: 16, Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: []uint32{1}}}}
	watch, err := client.Watch(ctx, &pb.WatchRequest{Query: request})
	must.Succeed(t, err)
	_, err = watch.Recv()
	must.Succeed(t, err)
	must.Succeed(t, p.cmd.Process.Signal(os.Interrupt))
	eventually(t, "the health does not change", func() (string, bool) {
		got, err := health.Check(ctx, new(grpc_health_v1.HealthCheckRequest))
		must.Succeed(t, err)
		return fmt.Sprint(got), got.Status == grpc_health_v1.HealthCheckResponse_NOT_SERVING
	})
	if _, err := client.Query(ctx, request); err != nil {
		t.Errorf("a query meanwhile: %v", err)
	}
	must.Succeed(t, p.cmd.Process.Signal(os.Interrupt)) // the drain is over
	if _, err := watch.Recv(); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("the watch ends with %v", err)
	}
	must.Succeed(t, p.cmd.Wait())
	if strings.Contains(p.log(), "cut off") {
		t.Errorf("calls were cut off: %s", p.log())
	}
	if _, err := http.Get(p.url); err == nil {
		t.Error("the server answers on")
	}
}
