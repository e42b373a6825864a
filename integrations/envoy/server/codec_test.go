package server

import (
	"bytes"
	"testing"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

func TestCodec(t *testing.T) {
	c := newCodec()
	for _, size := range []int{0, 1, 1000, 50_000, 1 << 20, 17 << 20} {
		in := &extproc.HttpBody{Body: bytes.Repeat([]byte("x"), size), EndOfStream: true}
		data, err := c.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		out := &extproc.HttpBody{}
		if err := c.Unmarshal(data, out); err != nil || !bytes.Equal(out.GetBody(), in.GetBody()) || !out.GetEndOfStream() {
			t.Errorf("%d bytes came back as %d: %v", size, len(out.GetBody()), err)
		}
		data.Free()
	}
	if _, err := c.Marshal("text"); err == nil {
		t.Error("a text was taken for a message")
	}
	if err := c.Unmarshal(nil, "text"); err == nil {
		t.Error("a text was taken for a message")
	}
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer("\xff\xff")}, &extproc.HttpBody{}); err == nil {
		t.Error("nonsense was read as a message")
	}
}

// BenchmarkCodec passes a request of 8,192 tokens through our codec, and through gRPC's.
func BenchmarkCodec(b *testing.B) {
	in, out := &extproc.HttpBody{Body: make([]byte, 50_000)}, &extproc.HttpBody{}
	for name, c := range map[string]encoding.CodecV2{"ours": newCodec(), "grpc": encoding.GetCodecV2("proto")} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				data, err := c.Marshal(in)
				if err == nil {
					err = c.Unmarshal(data, out)
				}
				if err != nil {
					b.Fatal(err)
				}
				data.Free()
			}
		})
	}
}
