package query

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	ask "example.com/conductor/internal/request"
)

// Reports by the ids of answers. An answer is kept for some seconds, so the ids are new before each turn: all prompts are asked for
// at /candidates, outside the window that is measured.

// listedAnswers is how many answers a list reports.
const listedAnswers = 32

// newAnswerClient returns a client that reports prompts by the ids of their answers, one by one or in lists.
func (s *served) newAnswerClient(c *Config, codec string) (*client, error) {
	k, err := newClient(c, s.Address, pathRouted, JSON+routedOf, c.HTTP2) // its requests are replaced by prepare
	if err != nil {
		return nil, err
	}
	k.codec = codec
	size := 1
	if codec == answerOf+listOf {
		size = listedAnswers
	}
	k.prepare = func() error {
		bodies, err := s.askAndReport(c, size)
		if err != nil {
			return err
		}
		k.requests = k.requests[:0]
		for family, body := range bodies {
			whole, err := renderRequest("http://"+s.Address+pathRouted, JSON, body)
			if err != nil {
				return err
			}
			k.requests = append(k.requests, request{family, whole, whole[len(whole)-len(body):]})
		}
		return nil
	}
	return k, nil
}

// askAndReport asks for all prompts and returns bodies that report a number of the answers each.
func (s *served) askAndReport(c *Config, size int) (bodies [][]byte, err error) {
	var reports []string
	var tokens []uint32
	for family := range c.countPrompts() {
		tokens = c.appendPrompt(tokens[:0], family)
		body, err := c.encodeBody(JSON, tokens)
		if err != nil {
			return nil, err
		}
		status, text, err := ask.Do(context.Background(), http.DefaultClient, http.MethodPost, s.URL+pathCandidates, body)
		if err == nil {
			err = checkStatus(status, text)
		}
		if err != nil {
			return nil, err
		}
		var answer struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(text, &answer); err != nil || answer.ID == "" {
			return nil, fmt.Errorf("an answer has no id: %.200s", text)
		}
		reports = append(reports, fmt.Sprintf(`{"answer_id": %q, "instance_id": %q}`, answer.ID, c.targetOf(family)))
	}
	for i := range reports {
		if size == 1 {
			bodies = append(bodies, []byte(reports[i]))
			continue
		}
		list := []byte(`{"prompts": [`)
		for j := range size {
			if j > 0 {
				list = append(list, ", "...)
			}
			list = append(list, reports[(i+j)%len(reports)]...)
		}
		bodies = append(bodies, append(list, "]}"...))
	}
	return bodies, nil
}
