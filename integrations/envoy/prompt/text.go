package prompt

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Text is a prompt that a tokenizer has to make tokens of: the fields of a body that decide which.
type Text struct {
	path   string  // one of the four
	fields []field // in an order that depends on the path alone
}

// field is a field of a body, as it came.
type field struct {
	name string
	raw  json.RawMessage
}

// newText copies the fields.
func newText(path string, all ...[]field) *Text {
	t := &Text{path: path}
	for _, f := range slices.Concat(all...) {
		t.fields = append(t.fields, field{f.name, bytes.Clone(f.raw)})
	}
	return t
}

// Key names the text: equal keys have equal tokens.
func (t *Text) Key() [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%q", t.path)
	for _, f := range t.fields {
		fmt.Fprintf(h, "%q%d:", f.name, len(f.raw))
		h.Write(f.raw)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// Bytes is the size of the text in JSON.
func (t *Text) Bytes() (n int) {
	for _, f := range t.fields {
		n += len(f.raw)
	}
	return n
}

// RenderPath is the path of vLLM's render service that makes tokens of the text, "" if it has none.
func (t *Text) RenderPath() string {
	if t.path == embeddingsPath {
		return ""
	}
	return t.path + "/render"
}

// Render is the body for RenderPath: that of the request, without the fields that are about the answer.
func (t *Text) Render() []byte { return object(t.fields) }

// Tokenize is the body for POST /tokenize, as vLLM and SGLang take it. It reports false if there is none for this text.
//
// A completion and the input of an embedding are its prompt. A chat is its messages, where vLLM knows documents and
// reasoning_effort only as arguments of the template, which is how its chats pass them on. An input of the Responses API
// becomes the messages that vLLM makes of it, if it has nothing but messages of text, and no tools.
func (t *Text) Tokenize() ([]byte, bool) {
	switch t.path {
	case chatPath:
		return object(t.withKwargs()), true
	case responsesPath:
		fields, ok := t.asChat()
		return object(fields), ok
	}
	fields := make([]field, len(t.fields))
	for i, f := range t.fields {
		if f.name == "input" {
			f.name = "prompt"
		}
		fields[i] = f
	}
	return object(fields), true
}

// withKwargs returns the fields of a chat with documents and reasoning_effort also as arguments of the template. As in vLLM they
// win over chat_template_kwargs, and an effort switches thinking on or off where the client does not.
func (t *Text) withKwargs() []field {
	extra := make(map[string]json.RawMessage)
	var kwargs map[string]json.RawMessage
	for _, f := range t.fields {
		switch f.name {
		case "documents", "reasoning_effort":
			extra[f.name] = f.raw
		case "chat_template_kwargs":
			if json.Unmarshal(f.raw, &kwargs) != nil {
				return t.fields // the tokenizer refuses it
			}
		}
	}
	if len(extra) == 0 {
		return t.fields
	}
	if effort, ok := extra["reasoning_effort"]; ok && kwargs["enable_thinking"] == nil {
		extra["enable_thinking"] = json.RawMessage("true")
		if string(effort) == `"none"` {
			extra["enable_thinking"] = json.RawMessage("false")
		}
	}
	if kwargs == nil {
		kwargs = extra
	} else {
		maps.Copy(kwargs, extra)
	}
	raw, err := json.Marshal(kwargs)
	if err != nil {
		return t.fields // it is no JSON, and the tokenizer says so
	}
	fields := make([]field, 0, len(t.fields)+1)
	for _, f := range t.fields {
		if f.name != "chat_template_kwargs" {
			fields = append(fields, f)
		}
	}
	return append(fields, field{"chat_template_kwargs", raw})
}

// asChat returns the fields of a chat for those of a response.
func (t *Text) asChat() (fields []field, ok bool) {
	messages := []byte{'['}
	for _, f := range t.fields { // instructions come before input
		switch f.name {
		case "model", "chat_template_kwargs":
			fields = append(fields, f)
		case "instructions":
			if string(f.raw) != `""` {
				messages = appendMessage(messages, json.RawMessage(`"system"`), f.raw)
			}
		case "input":
			if f.raw[0] == '"' {
				messages = appendMessage(messages, json.RawMessage(`"user"`), f.raw)
			} else if messages, ok = appendItems(messages, f.raw); !ok {
				return nil, false
			}
		default:
			return nil, false
		}
	}
	// vLLM adds special tokens to a rendered response, and not to a rendered chat.
	return append(fields, field{"add_special_tokens", json.RawMessage("true")}, field{"messages", append(messages, ']')}), true
}

// appendMessage appends a message to a list that is not closed.
func appendMessage(list []byte, role, content json.RawMessage) []byte {
	if len(list) > 1 {
		list = append(list, ',')
	}
	return append(list, object([]field{{"role", role}, {"content", content}})...)
}

// appendItems appends the items of an input to a list of messages. It reports false if they are not all messages of text: vLLM
// makes calls of tools and reasoning a part of the messages around them.
func appendItems(list []byte, input json.RawMessage) (out []byte, ok bool) {
	ok = true
	some := elements(input, func(item json.RawMessage) {
		var role, kind, content json.RawMessage
		fields(item, func(name string, raw json.RawMessage) {
			switch name {
			case "role":
				role = raw
			case "type":
				kind = raw
			case "content":
				content = raw
			}
		})
		if role == nil || kind != nil && string(kind) != `"message"` {
			ok = false
			return
		}
		if len(content) > 0 && content[0] == '[' {
			content = textOf(content)
		}
		if len(content) == 0 || content[0] != '"' && content[0] != '[' {
			ok = false
			return
		}
		list = appendMessage(list, role, content)
	})
	return list, some && ok && len(list) > 1
}

// textOf returns the content of a chat's message for that of an item: parts of text for parts of input_text, the text itself for
// one output_text, nil for all else.
func textOf(content json.RawMessage) json.RawMessage {
	parts := []byte{'['}
	inputs, outputs, others := 0, 0, 0
	var text json.RawMessage
	elements(content, func(part json.RawMessage) {
		var kind json.RawMessage
		text = nil
		fields(part, func(name string, raw json.RawMessage) {
			switch name {
			case "type":
				kind = raw
			case "text":
				text = raw
			}
		})
		switch {
		case text == nil:
			others++
		case string(kind) == `"input_text"`:
			if inputs++; inputs > 1 {
				parts = append(parts, ',')
			}
			parts = append(parts, object([]field{{"type", json.RawMessage(`"text"`)}, {"text", text}})...)
		case string(kind) == `"output_text"`:
			outputs++
		default:
			others++
		}
	})
	switch {
	case others == 0 && outputs == 0 && inputs > 0:
		return append(parts, ']')
	case others == 0 && outputs == 1 && inputs == 0:
		return text
	}
	return nil
}

// object writes fields as one object.
func object(fields []field) []byte {
	size := 2
	for _, f := range fields {
		size += len(f.name) + len(f.raw) + 4
	}
	out := append(make([]byte, 0, size), '{')
	for i, f := range fields {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(append(out, '"'), f.name...), '"', ':'), f.raw...)
	}
	return append(out, '}')
}
