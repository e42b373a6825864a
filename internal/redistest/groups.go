package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/conductor/internal/must"
)

// settles is how long nodes of a group may take to agree.
const settles = 2 * time.Minute

// client returns a connection to one server, which ends with the test.
func (s *Server) client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr, DialTimeout: settles, ReadTimeout: settles, WriteTimeout: settles})
	s.t.Cleanup(func() { c.Close() })
	return c
}

// await asks until the answer is right.
func await(t testing.TB, what string, right func() bool) {
	t.Helper()
	deadline := time.After(settles)
	for !right() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			t.Fatal(what)
		}
	}
}

// Front puts something in front of a server at an address, and returns where it listens. Clients and
// the other servers of the group find the server there.
type Front func(addr string) string

// StartCluster starts a cluster of three nodes without replicas, which share the slots. front is nil
// if nothing stands in front of nodes.
func StartCluster(t testing.TB, front Front) (nodes []*Server) {
	t.Helper()
	const slots, size = 16384, 3
	for range size {
		n := newServer(t, freeNode(t), front)
		host, port, _ := net.SplitHostPort(n.Front)
		n.start("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-announce-ip", host, "--cluster-announce-port",
			port)
		nodes = append(nodes, n)
	}
	ctx := t.Context()
	for i, n := range nodes {
		c := n.client()
		must.Succeed(t, c.ClusterAddSlotsRange(ctx, i*slots/size, (i+1)*slots/size-1).Err())
		for _, other := range nodes {
			host, port, _ := net.SplitHostPort(other.Addr)
			must.Succeed(t, c.ClusterMeet(ctx, host, port).Err())
		}
	}
	for _, n := range nodes {
		c := n.client()
		await(t, "the cluster never forms", func() bool {
			all, err := c.Do(ctx, "CLUSTER", "SLOTS").Slice()
			state := c.ClusterInfo(ctx).Val()
			return err == nil && len(all) == size && len(state) > 16 && state[:16] == "cluster_state:ok"
		})
	}
	return nodes
}

// busAbove is how far the port of a node's bus is above the port of its clients. Redis 6.2 has no setting for it.
const busAbove = 10_000

// freeNode returns an address that no server has. The port of its bus is free too.
func freeNode(t testing.TB) string {
	t.Helper()
	for {
		addr := freeAddr(t)
		host, port, _ := net.SplitHostPort(addr)
		n, _ := strconv.Atoi(port)
		if l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(n+busAbove))); err == nil {
			l.Close()
			return addr
		}
	}
}

// Master is the name of the store that Sentinels of StartSentinels watch.
const Master = "shared"

// StartSentinels starts a server with a replica, and three Sentinels that make the replica the
// master once the other is dead for half a second. front is nil if nothing stands in front of servers.
func StartSentinels(t testing.TB, front Front) (master, replica *Server, sentinels []*Server) {
	t.Helper()
	master, replica = newServer(t, freeAddr(t), front), newServer(t, freeAddr(t), front)
	host, port, _ := net.SplitHostPort(master.Front)
	_, second, _ := net.SplitHostPort(replica.Front)
	master.start("--replica-announce-ip", host, "--replica-announce-port", port)
	replica.start("--replicaof", host, port, "--replica-announce-ip", host, "--replica-announce-port", second)
	for range 3 {
		s := newServer(t, freeAddr(t), front)
		file := filepath.Join(s.dir, "sentinel.conf")
		_, own, _ := net.SplitHostPort(s.Addr)
		_, told, _ := net.SplitHostPort(s.Front)
		must.Succeed(t, os.WriteFile(file, fmt.Appendf(nil, `bind %s
port %s
sentinel announce-ip %[1]s
sentinel announce-port %[3]s
sentinel monitor %[4]s %[1]s %[5]s 2
sentinel down-after-milliseconds %[4]s 500
sentinel failover-timeout %[4]s 3000
`, host, own, told, Master, port), 0o600))
		s.args = nil
		s.start(file, "--sentinel")
		sentinels = append(sentinels, s)
	}
	for _, s := range sentinels {
		c := s.client()
		await(t, "the Sentinels never know each other", func() bool {
			about, err := redis.NewSentinelClient(c.Options()).Master(t.Context(), Master).Result()
			return err == nil && about["num-slaves"] == "1" && about["num-other-sentinels"] == strconv.Itoa(len(sentinels)-1)
		})
	}
	return master, replica, sentinels
}

// Role returns what a server is to the others, "master" or "slave", "" if it does not answer.
func (s *Server) Role() string {
	s.t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, ReadTimeout: time.Second})
	defer c.Close()
	all, _ := c.Do(s.t.Context(), "ROLE").Slice()
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprint(all[0])
}
