package mooncake_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/compat/internal/conformance"
	"example.com/conductor/conductor/scripttest"
	"example.com/conductor/internal/must"
)

const msgpackType = "application/msgpack"

// post sends a value and returns status and answer.
func (s *script) post(path string, body any) (int, map[string]any) {
	s.T.Helper()
	status, _, answer := s.do("POST", path, msgpackType, conformance.Encode(body))
	return status, s.unpack(answer)
}

// unpack reads a map.
func (s *script) unpack(answer []byte) (m map[string]any) {
	s.T.Helper()
	if err := msgpack.Unmarshal(answer, &m); err != nil {
		s.T.Fatalf("%x is no map: %v", answer, err)
	}
	return m
}

// request runs a step that is an HTTP request.
func (s *script) request(st *scripttest.Step, want []string) (string, error) {
	headers, lines := s.Headers(st.Input)
	contentType, set := headers["Content-Type"]
	if !set {
		contentType = msgpackType
	}
	var body []byte
	if text := strings.Join(lines, "\n"); strings.HasPrefix(text, "hex ") {
		var err error
		if body, err = hex.DecodeString(text[len("hex "):]); err != nil {
			s.T.Fatalf("line %d: %v", st.Line, err)
		}
	} else if text != "" {
		body = conformance.Encode(s.Value(st, text))
	}
	status, header, answer := s.do(st.Name, s.Word(st, 0), contentType, body)
	text := string(answer)
	if header.Get("Content-Type") == msgpackType {
		text = conformance.EncodeJSON(s.unpack(answer))
	}
	got := fmt.Sprintf("%d\n%s", status, text)
	return got, s.CompareAnswer(want, status, header, text)
}

// do sends one request and returns status, headers and body.
func (s *script) do(method, path, contentType string, body []byte) (int, http.Header, []byte) {
	s.T.Helper()
	headers := map[string]string{"Accept": contentType}
	if contentType != "" {
		headers["Content-Type"] = contentType
	}
	return s.Do(method, path, headers, body)
}

// refusal prints status, reason, field and text of an error.
func refusal(status int, m map[string]any) string {
	words := []string{strconv.Itoa(status)}
	for _, name := range []string{"reason", "field"} {
		if v, ok := m[name]; ok {
			words = append(words, fmt.Sprint(v))
		}
	}
	return fmt.Sprintf("%s: %v", strings.Join(words, " "), m["error"])
}

func (s *script) register(st *scripttest.Step) string {
	instance := s.Word(st, 0)
	body := conformance.Object{
		{Key: "endpoint", Value: s.Vars[s.Key(st, "at", instance)+".live"]}, {Key: "type", Value: s.Key(st, "type", "vLLM")},
		{Key: "modelname", Value: s.Key(st, "model", s.Vars["M"])}, {Key: "instance_id", Value: instance},
		{Key: "block_size", Value: s.size(st)}, {Key: "dp_rank", Value: s.Number(st, "rank", 0)},
	}
	if profile := s.Key(st, "profile", profile0); profile != "none" {
		p := s.settings(profile)
		body = append(body, conformance.Field{Key: "hash_profile", Value: conformance.Object{
			{Key: "strategy", Value: p.Strategy}, {Key: "algorithm", Value: p.Algorithm},
			{Key: "python_hash_seed", Value: p.PythonHashSeed}, {Key: "index_projection", Value: p.IndexProjection},
		}})
	}
	if at := s.Key(st, "at", instance); st.Has("replay") {
		body = append(body, conformance.Field{Key: "replay_endpoint", Value: s.Vars[at+".replay"]})
	}
	for key, name := range map[string]string{"tenant": "tenant_id", "lora": "lora_name"} {
		if v, ok := st.Keys[key]; ok {
			body = append(body, conformance.Field{Key: name, Value: s.Expand(v)})
		}
	}
	for _, line := range st.Input {
		for _, f := range s.Value(st, line).(conformance.Object) {
			body = replace(body, f.Key, f.Value, false, false)
		}
	}
	status, m := s.post("/register", body)
	if status == 200 && len(m) == 2 && m["status"] == "registered successfully" && m["instance_id"] == instance {
		return "ok"
	}
	return refusal(status, m)
}

func (s *script) unregister(st *scripttest.Step) string {
	body := map[string]any{"instance_id": s.Word(st, 0), "dp_rank": s.Number(st, "rank", 0)}
	if v, ok := st.Keys["tenant"]; ok {
		body["tenant_id"] = s.Expand(v)
	}
	status, m := s.post("/unregister", body)
	if status == 200 && len(m) == 2 && m["status"] == "unregistered successfully" {
		return fmt.Sprint(m["removed_instances"])
	}
	return refusal(status, m)
}

// boundaries are how far three tiers reach.
type boundaries struct {
	GPU  int `msgpack:"gpu"`
	CPU  int `msgpack:"cpu"`
	Disk int `msgpack:"disk"`
}

// row is an instance in an answer.
type row struct {
	Longest int                   `msgpack:"longest_matched"`
	DP      map[string]int        `msgpack:"dp"`
	Ranks   map[string]boundaries `msgpack:"rank_matches"`
	GPU     int                   `msgpack:"gpu"`
	CPU     int                   `msgpack:"cpu"`
	Disk    int                   `msgpack:"disk"`
	AtMost  bool                  `msgpack:"upper_bound"` // not in Mooncake's form, and only there if it is true
}

// String prints what each rank reaches, "0 gpu 32 cpu 48 disk 48", or what contradicts
// itself.
func (r *row) String() string {
	var best boundaries
	var ranks []string
	for rank, b := range r.Ranks {
		best = boundaries{max(best.GPU, b.GPU), max(best.CPU, b.CPU), max(best.Disk, b.Disk)}
		ranks = append(ranks, fmt.Sprintf("%s: gpu %d cpu %d disk %d", rank, b.GPU, b.CPU, b.Disk))
		if dp, ok := r.DP[rank]; !ok || dp != b.GPU || b.GPU > b.CPU || b.CPU > b.Disk {
			return fmt.Sprintf("contradicts itself: %+v", *r)
		}
	}
	if len(r.DP) != len(r.Ranks) || best != (boundaries{r.GPU, r.CPU, r.Disk}) || r.Longest != r.Disk {
		return fmt.Sprintf("contradicts itself: %+v", *r)
	}
	sort.Strings(ranks)
	return strings.Join(ranks, ", ")
}

// query asks and prints a line per instance, "I rank 0: gpu 32 cpu 48 disk 48, ...".
func (s *script) query(st *scripttest.Step) string {
	tokens := s.Key(st, "tokens", "")
	list := []any{}
	if len(st.Words) > 0 {
		list = s.Value(st, s.Vars[s.Word(st, 0)]).([]any)
		size := s.size(st)
		if n := int(s.Number(st, "blocks", uint64(len(list)))); n*size < len(list) {
			list = list[:n*size]
		}
	} else {
		for _, n := range conformance.Numbers(tokens) {
			v, err := n.Int64()
			must.Succeed(s.T, err)
			list = append(list, v)
		}
	}
	q := map[string]any{"model": s.Key(st, "model", s.Vars["M"]), "block_size": s.size(st), "token_ids": list}
	for key, name := range map[string]string{"tenant": "tenant_id", "lora": "lora_name", "salt": "cache_salt", "instance": "instance_id"} {
		if v, ok := st.Keys[key]; ok {
			q[name] = s.Expand(v)
		}
	}
	if s.Key(st, "salt", "") == "nil" {
		q["cache_salt"] = nil
	}
	status, _, answer := s.do("POST", "/query", msgpackType, conformance.Encode(q))
	if status != 200 {
		return refusal(status, s.unpack(answer))
	}
	var a struct {
		Instances map[string]*row `msgpack:"instances"`
	}
	d := msgpack.NewDecoder(bytes.NewReader(answer))
	d.DisallowUnknownFields(true)
	if err := d.Decode(&a); err != nil {
		return fmt.Sprintf("%v: %x", err, answer)
	}
	var lines []string
	for name, r := range a.Instances {
		lines = append(lines, name+" rank "+r.String())
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// profileOf prints a resolved profile.
func profileOf(v any) string {
	m, ok := v.(map[string]any)
	if !ok {
		return "none"
	}
	if m["strategy"] != "vllm_v1" || m["index_projection"] != "low64_be" || len(m) != 5 {
		return fmt.Sprint(m)
	}
	return fmt.Sprintf("%v/%v root %.8v", m["algorithm"], m["python_hash_seed"], m["root_digest"])
}

// services prints a line per service of the script's models, "I|tenant|rank vLLM
// block 4 group <nil> profile sha256_cbor/0 root 4e1195df".
func (s *script) services() string {
	var lines []string
	for _, m := range s.list("/services", "services", "ModelName") {
		lora := ""
		if m["LoraName"] != "" {
			lora = fmt.Sprintf(" lora %v", m["LoraName"])
		}
		lines = append(lines, fmt.Sprintf("%v|%v|%v %v block %v%s group %v profile %s",
			m["InstanceID"], m["TenantID"], m["DPRank"], m["Type"], m["BlockSize"], lora, m["CacheGroup"], profileOf(m["HashProfile"])))
	}
	return strings.Join(lines, "\n")
}

// view prints a line per context of the script's models, "default block 4 blocks 2
// profile sha256_cbor/0 root 4e1195df instances a [0 2], b [1]". Contexts without instances and
// blocks are left out: theirs never go.
func (s *script) view() string {
	var lines []string
	for _, m := range s.list("/global_view", "contexts", "model_name") {
		var instances []string
		for name, ranks := range m["instances"].(map[string]any) {
			instances = append(instances, fmt.Sprintf("%s %v", name, ranks))
		}
		if len(instances) == 0 && fmt.Sprint(m["prefix_count"]) == "0" {
			continue
		}
		sort.Strings(instances)
		lora := ""
		if m["lora_name"] != "" {
			lora = fmt.Sprintf(" lora %v", m["lora_name"])
		}
		model, _ := strings.CutPrefix(m["model_name"].(string), s.Vars["M"])
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %v block %v%s blocks %v profile %s instances %s", model,
			m["tenant_id"], m["block_size"], lora, m["prefix_count"], profileOf(m["hash_profile"]), strings.Join(instances, ", "))))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// list returns the maps of a document that are about the script's models, or all of
// them on a server it has started.
func (s *script) list(path, root, model string) (out []map[string]any) {
	s.T.Helper()
	status, _, answer := s.do("GET", path, msgpackType, nil)
	if status != 200 {
		s.T.Fatalf("GET %s: %d %x", path, status, answer)
	}
	all := s.unpack(answer)[root].([]any)
	for _, v := range all {
		m := v.(map[string]any)
		if strings.HasPrefix(m[model].(string), s.Vars["M"]) {
			out = append(out, m)
		}
	}
	if s.u.shared == "" && len(out) != len(all) {
		s.T.Fatalf("GET %s: others among them: %v", path, all)
	}
	return out
}

// told returns what ours tells of the source at an endpoint, in the other dialect.
func (s *script) told(endpoint string) map[string]any {
	s.T.Helper()
	status, _, answer := s.do("GET", "/conductor/v1/services", "application/json", nil)
	var all struct {
		Services []map[string]any `json:"services"`
	}
	d := json.NewDecoder(bytes.NewReader(answer))
	d.UseNumber()
	if err := d.Decode(&all); status != 200 || err != nil {
		s.T.Fatalf("services: %d %v %s", status, err, answer)
	}
	for _, row := range all.Services {
		if row["Endpoint"] == endpoint {
			return row
		}
	}
	return nil
}

// source prints fields of the source at a publisher.
func (s *script) source(st *scripttest.Step) string {
	row := s.told(s.At(st).Live)
	if row == nil {
		return "none"
	}
	var words []string
	for name := range strings.SplitSeq(s.Key(st, "show", "DroppedBy"), ",") {
		if name == "Findings" {
			for _, f := range row[name].([]any) {
				words = append(words, fmt.Sprint(f.(map[string]any)["Code"]))
			}
			continue
		}
		text := strings.TrimPrefix(fmt.Sprint(row[name]), "map")
		words = append(words, name+" "+text)
	}
	return strings.Join(words, " ")
}

// settle waits until a batch is applied, and the replay that it began is over.
func (s *script) settle(st *scripttest.Step, e *conformance.Engine, seq uint64) {
	want := strconv.FormatUint(seq, 10)
	var row map[string]any
	if !scripttest.Until(func() bool {
		row = s.told(e.Live)
		return row == nil || fmt.Sprint(row["LastSeq"]) == want && row["State"] != "replaying"
	}) {
		s.T.Fatalf("line %d: batch %d is not applied: %v", st.Line, seq, row)
	}
	if row == nil {
		s.T.Fatalf("line %d: nobody is registered at %s", st.Line, st.Words[0])
	}
}

// clean unregisters what the script left, so that a shared server is as before.
func (s *script) clean() {
	if s.u.shared == "" || s.Base != s.u.shared {
		return
	}
	req, err := http.NewRequest("GET", s.Base+"/services", nil)
	if err != nil {
		return
	}
	req.Header.Set("Accept", msgpackType)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	var all struct {
		Services []struct {
			ModelName, TenantID, InstanceID string
			DPRank                          int
		} `msgpack:"services"`
	}
	if msgpack.NewDecoder(resp.Body).Decode(&all) != nil {
		return
	}
	for _, r := range slices.Backward(all.Services) {
		if strings.HasPrefix(r.ModelName, s.Vars["M"]) {
			body := conformance.Encode(map[string]any{"instance_id": r.InstanceID, "tenant_id": r.TenantID, "dp_rank": r.DPRank})
			if resp, err := http.Post(s.Base+"/unregister", msgpackType, bytes.NewReader(body)); err == nil {
				resp.Body.Close()
			}
		}
	}
}
