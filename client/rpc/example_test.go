package rpc_test

import (
	"context"
	"fmt"
	"io"
	"net"

	"google.golang.org/grpc"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/client"
	"example.com/conductor/client/rpc"
)

// oneEngine is a server that knows the instance "prefill-1".
type oneEngine struct {
	pb.UnimplementedConductorServer
}

func (oneEngine) RoutedStream(stream pb.Conductor_RoutedStreamServer) error {
	for n := uint64(1); ; n++ {
		in, err := stream.Recv()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		for i, p := range in.Prompts {
			if p.InstanceId == "prefill-1" {
				continue
			}
			text := fmt.Sprintf("no instance %q is registered", p.InstanceId)
			refused := &pb.RoutedError{Prompt: uint32(i), Error: &pb.Error{Message: text, Reason: "not_found", Field: "instance_id"}}
			if err := stream.Send(&pb.RoutedResponse{Request: n, Errors: []*pb.RoutedError{refused}}); err != nil {
				return err
			}
		}
	}
}

func ExampleClient_RoutedStream() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer()
	pb.RegisterConductorServer(server, oneEngine{})
	go server.Serve(l)
	defer server.Stop()

	c, err := rpc.New(l.Addr().String())
	if err != nil {
		panic(err)
	}
	defer c.Close()
	reports, err := c.RoutedStream(context.Background(), func(r rpc.Reply) {
		for at, err := range r.Errors {
			fmt.Printf("report %d of request %d: %v\n", at, r.Request, err)
		}
	})
	if err != nil {
		panic(err)
	}
	q := client.Query{Model: "deepseek", BlockSize: 2, Tokens: []uint32{1, 2, 3, 4}}
	for _, target := range []string{"prefill-1", "prefill-2"} {
		if _, err := reports.Send(client.Routed{Query: q, Target: target, Rank: client.AnyRank}); err != nil {
			panic(err)
		}
	}
	if err := reports.Close(); err != nil {
		panic(err)
	}
	// Output: report 0 of request 2: conductor: 404: no instance "prefill-2" is registered
}
