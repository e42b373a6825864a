package query

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/lab/harness"
)

// Bounds of the prompts that are asked in turn. Their bytes are more than processors
// cache, and no more than a client needs to have at hand.
const (
	mostPrompts = 2048
	fewPrompts  = 64
	mostBytes   = 64 << 20
)

// countPrompts returns how many different prompts are asked, of those that families begin.
func (l *Load) countPrompts() int {
	const bytesOfToken = 8 // of JSON, the longest codec
	return min(l.families(), mostPrompts, max(fewPrompts, mostBytes/(bytesOfToken*l.Tokens)))
}

// contentType is that of a codec's bodies, and of the answers to them.
func contentType(codec string) string {
	if strings.HasPrefix(codec, "msgpack") {
		return "application/msgpack"
	}
	return "application/json"
}

// encodeBody encodes a prompt.
func (l *Load) encodeBody(codec string, tokens []uint32) ([]byte, error) {
	switch codec {
	case JSON:
		return l.jsonBody("token_ids", func(dst []byte) []byte {
			dst = append(dst, '[')
			for i, t := range tokens {
				if i > 0 {
					dst = append(dst, ',', ' ')
				}
				dst = strconv.AppendUint(dst, uint64(t), 10)
			}
			return append(dst, ']')
		}), nil
	case JSONBase64:
		return l.jsonBody("token_ids_b64", func(dst []byte) []byte {
			dst = base64.StdEncoding.AppendEncode(append(dst, '"'), littleEndian(tokens))
			return append(dst, '"')
		}), nil
	case MsgpackBin:
		return l.msgpackBody(littleEndian(tokens))
	case MsgpackArray:
		return l.msgpackBody(harness.Compact[uint32](tokens))
	}
	return nil, fmt.Errorf("codec is %q, must be one of %q", codec, codecs)
}

// bodyOf encodes the prompt of a family, by its tokens or its hashes.
func (l *Load) bodyOf(codec string, family int, tokens []uint32) ([]byte, error) {
	if one, ok := strings.CutSuffix(codec, listOf); ok {
		list := []byte(`{"prompts": [`)
		for i := range listed {
			f := (family + i) % l.families()
			tokens = l.appendPrompt(tokens[:0], f)
			report, err := l.bodyOf(one, f, tokens)
			if err != nil {
				return nil, err
			}
			if i > 0 {
				list = append(list, ", "...)
			}
			list = append(list, report...)
		}
		return append(list, "]}"...), nil
	}
	if plain, ok := strings.CutSuffix(codec, routedOf); ok {
		body, err := l.encodeBody(plain, tokens)
		return l.addTarget(body, plain, family), err
	}
	if codec == candidates {
		return l.encodeBody(JSON, tokens)
	}
	if !isGRPC(codec) && codec != jsonHashes {
		return l.encodeBody(strings.TrimSuffix(codec, expectedOf), tokens)
	}
	hashes := make([]uint64, l.Tokens/l.BlockSize)
	for i := range hashes {
		hashes[i] = ^uint64(i) // of blocks that no instance holds
		if i < l.heldBlocks() {
			hashes[i] = l.engineHash(family, i)
		}
	}
	if codec == jsonHashes {
		body := l.jsonBody("seq_hashes", func(dst []byte) []byte {
			text, _ := json.Marshal(hashes) // numbers always encode
			return append(dst, text...)
		})
		return append(body[:len(body)-1], `, "hash": "engine"}`...), nil
	}
	return l.encodeMessage(codec, tokens, hashes)
}

// listed is how many reports a list has.
const listed = 8

// targetOf returns where a prompt goes: to an instance that has nothing of it, where there is one.
func (l *Load) targetOf(family int) string {
	return instanceName((l.holdersOf(family)[l.Holders-1] + 1) % l.Workers)
}

// addTarget says in a query's body where the prompt goes.
func (l *Load) addTarget(body []byte, codec string, family int) []byte {
	to := l.targetOf(family)
	if codec == JSON {
		return append(fmt.Appendf(nil, `{"instance_id": %q, `, to), body[1:]...)
	}
	body[0]++ // a short map
	name, _ := msgpack.Marshal("instance_id")
	value, _ := msgpack.Marshal(to)
	return append(append(body, name...), value...)
}

// jsonBody writes spaces where Python's encoder does, which most clients use, and the
// prompt last.
func (l *Load) jsonBody(name string, prompt func([]byte) []byte) []byte {
	dst := fmt.Appendf(nil, `{"model": %q, "block_size": %d, %q: `, model, l.BlockSize, name)
	return append(prompt(dst), '}')
}

func (l *Load) msgpackBody(prompt any) ([]byte, error) {
	return msgpack.Marshal(&struct {
		Model     string `msgpack:"model"`
		BlockSize int    `msgpack:"block_size"`
		TokenIDs  any    `msgpack:"token_ids"`
	}{model, l.BlockSize, prompt})
}

func littleEndian(tokens []uint32) []byte {
	raw := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		raw = binary.LittleEndian.AppendUint32(raw, t)
	}
	return raw
}

// answer is the part of an answer that the bench reads: tokens matched, by instance.
type answer map[string]struct {
	Longest int `json:"longest_matched" msgpack:"longest_matched"`
}

// checkAnswer returns an error if an answer differs from the correct one of a prompt.
func (l *Load) checkAnswer(codec string, family int, body []byte) error {
	var got answer
	if isGRPC(codec) {
		var err error
		if got, err = l.grpcAnswer(codec, body); err != nil {
			return err
		}
	} else if contentType(codec) == "application/json" {
		var tenants struct {
			Default    answer `json:"default"`
			Candidates answer `json:"candidates"`
		}
		if err := json.Unmarshal(body, &tenants); err != nil {
			return fmt.Errorf("an answer is not JSON: %w", err)
		}
		if got = tenants.Default; codec == candidates {
			got = tenants.Candidates
		}
	} else {
		var root struct {
			Instances answer `msgpack:"instances"`
		}
		if err := msgpack.Unmarshal(body, &root); err != nil {
			return fmt.Errorf("an answer is not msgpack: %w", err)
		}
		got = root.Instances
	}
	if len(got) != l.Workers {
		return fmt.Errorf("an answer has %d instances, want %d", len(got), l.Workers)
	}
	want := make(map[string]int, l.Holders)
	for _, i := range l.holdersOf(family) {
		want[instanceName(i)] = l.heldBlocks() * l.BlockSize
	}
	for name, row := range got {
		if row.Longest != want[name] {
			return fmt.Errorf("prompt %d: instance %q has longest_matched %d, want %d", family, name, row.Longest, want[name])
		}
		delete(want, name)
	}
	for name, n := range want {
		if n > 0 {
			return fmt.Errorf("prompt %d: instance %q is missing", family, name)
		}
	}
	return nil
}
