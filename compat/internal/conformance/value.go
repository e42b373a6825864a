package conformance

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/vmihailenco/msgpack/v5"
)

// Object is a map whose keys keep their order on the wire.
type Object []Field

// Field is an entry of an Object.
type Field struct {
	Key   string
	Value any
}

func (o Object) EncodeMsgpack(enc *msgpack.Encoder) error {
	if err := enc.EncodeMapLen(len(o)); err != nil {
		return err
	}
	for _, f := range o {
		if err := enc.EncodeString(f.Key); err != nil {
			return err
		}
		if err := enc.Encode(f.Value); err != nil {
			return err
		}
	}
	return nil
}

// Encode writes a value as msgpack.
func Encode(v any) []byte {
	var out bytes.Buffer
	enc := msgpack.NewEncoder(&out)
	enc.UseCompactInts(true)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// EncodeJSON writes a value as JSON.
func EncodeJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// DecodeValue reads JSON as what msgpack carries: integers of 64 bits with and
// without sign, maps in their order, {"$bin": hex} as bytes.
func DecodeValue(text string) (any, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	v, err := nextValue(dec)
	if err == nil && dec.More() {
		err = fmt.Errorf("more than one value")
	}
	return v, err
}

func nextValue(dec *json.Decoder) (any, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch v := token.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n, nil
		}
		var n uint64
		if _, err := fmt.Sscan(v.String(), &n); err == nil && !strings.ContainsAny(v.String(), ".eE") {
			return n, nil
		}
		return v.Float64()
	case json.Delim:
		if v == '[' {
			list := []any{}
			for dec.More() {
				item, err := nextValue(dec)
				if err != nil {
					return nil, err
				}
				list = append(list, item)
			}
			_, err := dec.Token()
			return list, err
		}
		o := Object{}
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			value, err := nextValue(dec)
			if err != nil {
				return nil, err
			}
			o = append(o, Field{key.(string), value})
		}
		if _, err := dec.Token(); err != nil {
			return nil, err
		}
		if len(o) == 1 && o[0].Key == "$bin" {
			return hex.DecodeString(o[0].Value.(string))
		}
		return o, nil
	default:
		return v, nil
	}
}
