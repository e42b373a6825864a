// Package prompt reads what a request asks an engine to compute: the model, and the prompt as token ids or as what a
// tokenizer makes token ids of.
//
// It reads the bodies of four paths of the OpenAI API, also below a prefix such as /openai:
//
//	/v1/completions       prompt: a text, token ids, or a list of either
//	/v1/embeddings        input:  the same
//	/v1/chat/completions  messages, and what the chat template sees besides: tools, documents, reasoning_effort, …
//	/v1/responses         instructions and input, if they need no earlier response
//
// Everything else has no prompt that a picker can use, and Request.Without says why. The model is read from any body that is a JSON
// object, or from the beginning of one.
package prompt

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// Why a request has no prompt to ask a cache about.
const (
	NoPrompt    = "no_prompt"   // not a POST to one of the paths above, or the body has no prompt
	BadBody     = "body"        // absent, larger than the caller's bound, or not such JSON
	Media       = "media"       // images, audio or video: an engine replaces them by tokens that depend on their content
	Unsupported = "unsupported" // the tokens depend on something that is not in the body, or that changes them after the template
)

// MaxPrompts is how many prompts of a batch are read. The others count in Request.Bytes alone.
const MaxPrompts = 16

// Request is what a body asks for.
type Request struct {
	Model string // as the client names it: a model, an alias or an adapter; "" if it names none
	Salt  string // cache_salt
	// Prompts are those of the request, in order: one, or up to MaxPrompts of a batch. It is empty if Without is set.
	Prompts []Prompt
	// Bytes is the size in JSON of all prompts of the body, or of the body of another path, from which a caller can guess how much
	// there is to compute if it gets no tokens. IDs says that they are token ids, so that a token has more bytes.
	Bytes int
	IDs   bool
	// BytesRead is how many of them those have that are in Prompts, if some are left out; else it is 0.
	BytesRead int
	// Without says why there is no prompt; "" if there is one.
	Without string
}

// Prompt has either Tokens or Text.
type Prompt struct {
	Tokens []uint32
	Text   *Text
}

// body has those fields of a body that are read, by name. They are parts of the text.
type body map[string]json.RawMessage

// read are the names of those fields.
var read = func() map[string]bool {
	names := make(map[string]bool)
	for _, name := range slices.Concat(modelFields, promptFields, chatFields, responseFields, otherFields) {
		names[name] = true
	}
	return names
}()

// The fields that decide the tokens of a text, in the order in which a tokenizer is asked.
var (
	modelFields  = []string{"model"}
	promptFields = []string{"prompt", "input", "add_special_tokens"}
	chatFields   = []string{"tools", "tool_choice", "documents", "reasoning_effort", "chat_template", "chat_template_kwargs",
		"add_generation_prompt", "continue_final_message", "add_special_tokens", "messages"}
	responseFields = []string{"instructions", "input", "tools", "tool_choice", "reasoning", "chat_template_kwargs"}
	otherFields    = []string{"cache_salt", "previous_response_id", "conversation", "truncate_prompt_tokens"}
)

// Read reads a request. Text is its body, or the beginning of one that is too large. The prompts keep no part of text.
func Read(method, path string, text []byte) Request {
	if method != http.MethodPost {
		return Request{Without: NoPrompt, Bytes: len(text)}
	}
	b, r := make(body), Request{}
	whole := fields(text, func(name string, raw json.RawMessage) {
		if read[name] {
			b[name] = raw
		}
	})
	for name, field := range map[string]*string{"model": &r.Model, "cache_salt": &r.Salt} {
		if raw := b[name]; !absent(raw) {
			var ok bool
			*field, ok = unquote(raw)
			whole = whole && ok
		}
	}
	path, _, _ = strings.Cut(path, "?")
	kind := kindOf(path)
	switch {
	case kind == "":
		return Request{Model: r.Model, Without: NoPrompt, Bytes: len(text)}
	case !whole:
		return Request{Model: r.Model, Without: BadBody}
	}
	switch kind {
	case chatPath:
		r.readChat(b)
	case responsesPath:
		r.readResponse(b)
	case embeddingsPath:
		if absent(b["input"]) {
			r.readChat(b) // vLLM embeds chats as well
			break
		}
		r.readPrompts(kind, "input", b["input"], b)
	default:
		r.readPrompts(kind, "prompt", b["prompt"], b)
	}
	if r.Without == "" && !absent(b["truncate_prompt_tokens"]) {
		r.Without = Unsupported
	}
	if r.Without != "" {
		r.Prompts = nil
	}
	return r
}

const (
	completionsPath = "/v1/completions"
	embeddingsPath  = "/v1/embeddings"
	chatPath        = "/v1/chat/completions"
	responsesPath   = "/v1/responses"
)

// kindOf returns which of the four paths a path ends with, "" for none.
func kindOf(path string) string {
	for _, kind := range []string{completionsPath, chatPath, responsesPath, embeddingsPath} {
		if strings.HasSuffix(path, kind) {
			return kind
		}
	}
	return ""
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// readPrompts reads the prompts of a completion, or the input of an embedding, which have the same four forms.
func (r *Request) readPrompts(kind, name string, raw json.RawMessage, b body) {
	if absent(raw) {
		r.Without = NoPrompt
		return
	}
	r.Bytes = len(raw)
	all := []json.RawMessage{raw}
	if first := bytes.TrimLeft(raw[min(1, len(raw)-1):], space); raw[0] == '[' && len(first) > 0 {
		switch first[0] {
		case '"', '[':
			all = nil
			elementsRead, count := 0, 0
			if !elements(raw, func(one json.RawMessage) {
				if count++; len(all) < MaxPrompts {
					all = append(all, one)
					elementsRead += len(one)
				}
			}) {
				r.Without = BadBody
				return
			}
			if count > len(all) {
				r.BytesRead = elementsRead
			}
		case ']':
			r.Without = NoPrompt
			return
		}
	}
	for _, one := range all {
		switch one[0] {
		case '"':
			r.Prompts = append(r.Prompts, Prompt{Text: newText(kind, b.some(modelFields), []field{{name, one}},
				b.some([]string{"add_special_tokens"}))})
			continue
		case '[':
			if ids, ok := IDs(one); ok && len(ids) > 0 {
				r.Prompts, r.IDs = append(r.Prompts, Prompt{Tokens: ids}), true
				continue
			}
		}
		r.Without = BadBody
		return
	}
}

// readChat reads the messages of a chat.
func (r *Request) readChat(b body) {
	r.Bytes = len(b["messages"]) + len(b["tools"])
	switch {
	case absent(b["messages"]):
		r.Without = NoPrompt
		return
	case b["messages"][0] != '[':
		r.Without = BadBody
		return
	}
	var media bool
	if media, r.Without = hasMedia(b["messages"]); media {
		r.Without = Media
	}
	r.Prompts = []Prompt{{Text: newText(chatPath, b.some(modelFields), b.some(chatFields))}}
}

// readResponse reads a request of the Responses API. One that goes on from an earlier response has a part of its prompt in the
// engine that computed it.
func (r *Request) readResponse(b body) {
	r.Bytes = len(b["input"]) + len(b["instructions"]) + len(b["tools"])
	switch {
	case absent(b["input"]):
		r.Without = NoPrompt
		return
	case !absent(b["previous_response_id"]) || !absent(b["conversation"]):
		r.Without = Unsupported
		return
	case b["input"][0] != '"' && b["input"][0] != '[':
		r.Without = BadBody
		return
	}
	if b["input"][0] == '[' {
		var media bool
		if media, r.Without = hasMedia(b["input"]); media {
			r.Without = Media
		}
	}
	r.Prompts = []Prompt{{Text: newText(responsesPath, b.some(modelFields), b.some(responseFields))}}
}

// some returns the named fields that are there, in this order.
func (b body) some(names []string) (some []field) {
	for _, name := range names {
		if raw := b[name]; !absent(raw) {
			some = append(some, field{name, raw})
		}
	}
	return some
}

// hasMedia reports whether messages have a part that is no text, and why they cannot be read otherwise.
func hasMedia(messages json.RawMessage) (media bool, without string) {
	objects := true
	list := elements(messages, func(message json.RawMessage) {
		var content json.RawMessage
		objects = fields(message, func(name string, raw json.RawMessage) {
			if name == "content" {
				content = raw
			}
		}) && objects
		elements(content, func(part json.RawMessage) { // if it is a list
			fields(part, func(name string, raw json.RawMessage) {
				if name == "type" && !isText[string(raw)] {
					media = true
				}
			})
		})
	})
	if !list || !objects {
		return false, BadBody
	}
	return media, ""
}

// isText has the types of parts that vLLM's chat_utils take as text.
var isText = map[string]bool{`"text"`: true, `"input_text"`: true, `"output_text"`: true, `"refusal"`: true, `"thinking"`: true}
