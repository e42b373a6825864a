package extproc

import (
	"crypto/rand"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	httptype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/conductor/integrations/envoy/pick"
)

// headerValue returns the value of a header. Envoy sends it as bytes, others may send it as text.
func headerValue(h *core.HeaderValue) string {
	if raw := h.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return h.GetValue()
}

// statusOf returns the status of a response, 0 if it has none.
func statusOf(h *extproc.HttpHeaders) int {
	for _, header := range h.GetHeaders().GetHeaders() {
		if header.GetKey() == ":status" {
			code, _ := strconv.Atoi(headerValue(header))
			return code
		}
	}
	return 0
}

// newID makes up the ID of a request that has none.
func newID() string { return rand.Text() }

// subsetOf returns the endpoints that the data plane allows: nil if it does not say, empty if it allows none. Anything but a list or a
// text allows none, because an endpoint outside of the subset must never be chosen.
func subsetOf(m *core.Metadata) []string {
	hint := m.GetFilterMetadata()[subsetNS].GetFields()[subsetKey]
	endpoints := []string{}
	add := func(list string) {
		for endpoint := range strings.SplitSeq(list, ",") {
			if endpoint = strings.TrimSpace(endpoint); endpoint != "" {
				endpoints = append(endpoints, endpoint)
			}
		}
	}
	switch kind := hint.GetKind().(type) {
	case nil, *structpb.Value_NullValue:
		return nil
	case *structpb.Value_StringValue:
		add(kind.StringValue)
	case *structpb.Value_ListValue:
		for _, v := range kind.ListValue.GetValues() {
			add(v.GetStringValue())
		}
	}
	return endpoints
}

// servedOf returns the endpoint that a response comes from, "" if the data plane does not say.
func servedOf(m *core.Metadata) string {
	return strings.TrimSpace(m.GetFilterMetadata()[metadataNS].GetFields()[servedKey].GetStringValue())
}

// requestMutation sets the headers that the choice asks for, if there is one yet, and removes those of the picker that came from outside.
func requestMutation(c *pick.Choice, foreign []string) *extproc.HeaderMutation {
	m := &extproc.HeaderMutation{}
	if c != nil {
		m.SetHeaders = setHeader(m.SetHeaders, EndpointHeader, strings.Join(c.Endpoints, ","))
		for name, value := range c.Headers {
			m.SetHeaders = setHeader(m.SetHeaders, strings.ToLower(name), value)
		}
	}
	// Setting a header replaces all its values. It is not removed as well, because the protocol does not say
	// whether values are removed or set first.
	for _, name := range foreign {
		if !slices.ContainsFunc(m.SetHeaders, func(h *core.HeaderValueOption) bool { return h.GetHeader().GetKey() == name }) {
			m.RemoveHeaders = append(m.RemoveHeaders, name)
		}
	}
	return m
}

func setHeader(to []*core.HeaderValueOption, name, value string) []*core.HeaderValueOption {
	return append(to, &core.HeaderValueOption{
		Header:       &core.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	})
}

// printable returns text as a header may have it: printable ASCII, at most 1 KiB.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	return text[:min(len(text), 1024)]
}

// refusalResponse answers the client in the data plane's stead, with a body as OpenAI's servers send it.
func refusalResponse(r *pick.Refusal) *extproc.ImmediateResponse {
	code := r.Status
	if _, known := httptype.StatusCode_name[int32(code)]; !known || code < 400 {
		code = 503
	}
	kind := "service_unavailable"
	if code == 429 {
		kind = "rate_limit_exceeded"
	}
	type apiError struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	body, err := json.Marshal(map[string]apiError{"error": {Message: r.Message, Type: kind, Code: code}})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return &extproc.ImmediateResponse{
		Status:  &httptype.HttpStatus{Code: httptype.StatusCode(code)},
		Headers: &extproc.HeaderMutation{SetHeaders: setHeader(nil, "content-type", "application/json")},
		Body:    body,
		Details: "conductor_picker_" + kind,
	}
}
