package main

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/conductor/internal/must"
	"example.com/conductor/internal/redistest"
)

// securedStore is a store with two users: an administrator, and the user of docs/store.md.
type securedStore struct {
	*redistest.Server
	admin    *redis.Client
	ca       *authority // nil: the store has no TLS
	password string     // file
	mine     string     // settings of a replica: certificates
}

// admins are the settings of a store that only its administrator can use at first.
var admins = []string{"--user", "default", "off", "--user", "admin", "on", ">admin", "~*", "&*", "+@all"}

// newSecuredStore starts a store.
func newSecuredStore(t *testing.T, secured bool) *securedStore {
	t.Helper()
	s := &securedStore{password: redistest.File(t, "first\n")}
	options := &redis.Options{Username: "admin", Password: "admin"}
	if secured {
		s.ca = newAuthority(t, "store")
		cert, key := s.ca.issue("server", 2, time.Now().Add(time.Hour))
		s.Server = redistest.StartTLS(t, cert, key, s.ca.file, admins...)
		options.TLSConfig = s.ca.client(cert, key).Transport.(*http.Transport).TLSClientConfig
		cert, key = s.ca.issue("replica", 3, time.Now().Add(time.Hour))
		s.mine = fmt.Sprintf(", cacert: %s, cert: %s, key: %s", s.ca.file, cert, key)
	} else {
		s.Server = redistest.Start(t, admins...)
	}
	options.Addr = s.Addr
	s.admin = redis.NewClient(options)
	t.Cleanup(func() { s.admin.Close() })
	s.acl(t, documentedACL(t, 0, "first")...)
	return s
}

// documentedACL returns a command of docs/store.md: the first makes the user of replicas, the second
// adds what replicas need in a cluster.
func documentedACL(t *testing.T, n int, password string) (args []any) {
	t.Helper()
	text, err := os.ReadFile("../../docs/store.md")
	must.Succeed(t, err)
	lines := regexp.MustCompile(`(?m)^ACL SETUSER conductor .*$`).FindAllString(string(text), -1)
	if len(lines) != 2 {
		t.Fatalf("docs/store.md has %d commands about the user", len(lines))
	}
	for _, word := range strings.Fields(strings.NewReplacer("PASSWORD", password, "NAME", "default").Replace(lines[n])) {
		args = append(args, word)
	}
	return args
}

func (s *securedStore) acl(t *testing.T, args ...any) {
	t.Helper()
	must.Succeed(t, s.admin.Do(t.Context(), args...).Err())
}

// refusesNothing requires that a store has refused no command. A connection that read the password
// before it was replaced may come too late, which does not count.
func refusesNothing(t *testing.T, admin *redis.Client) {
	t.Helper()
	entries, err := admin.Do(t.Context(), "ACL", "LOG").Slice()
	must.Succeed(t, err)
	for _, e := range entries {
		if text := fmt.Sprint(e); !strings.Contains(text, "reason:auth") {
			t.Errorf("the store has refused a command: %s", text)
		}
	}
}

// url is where replicas reach the store as a user.
func (s *securedStore) url(user string) string {
	return strings.Replace(s.URL(), "://", "://"+user+"@", 1)
}

// settings are those of a replica.
func (s *securedStore) settings() string {
	return fmt.Sprintf("store: {url: '%s', password_file: %s%s}\nsnapshot: {interval: 200ms}\n", s.url("conductor"), s.password, s.mine)
}

// stored publishes blocks until replicas have all up to the last. The engine replays nothing: a replica
// that connects late lacks what was published before.
func stored(t *testing.T, engine *ruledEngine, from, to int, replicas ...*process) {
	t.Helper()
	for _, p := range replicas {
		eventually(t, "a replica lacks blocks", func() (string, bool) {
			engine.publish(ruledStored(from, to))
			_, text := get(p.url + "/services")
			return text + p.log(), strings.Contains(text, fmt.Sprintf(`"Blocks":%d,`, to))
		})
	}
}

// TestReplicasShareASecuredStore runs replicas as the user that the docs make, over TLS where both
// sides show certificates, and without TLS. The store refuses none of their commands.
func TestReplicasShareASecuredStore(t *testing.T) {
	t.Parallel()
	for name, secured := range map[string]bool{"TLS": true, "plain": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSecuredStore(t, secured)
			documented := func() {}
			if !secured {
				documented = usesDocumentedKeys(t, s.Addr, "admin", "admin")
			}
			engine := newRuledEngine(t, "engine", 0)
			one, other := serveProcess(t, s.settings()), serveProcess(t, s.settings())
			both := []*process{one, other}
			post(t, one.url+"/register", registered("engine", engine.pub.Addr().String()), 200)
			follow(t, both, "engine")
			stored(t, engine, 0, 4, both...)

			// The password is replaced, and all connections end.
			s.acl(t, "ACL", "SETUSER", "conductor", ">second")
			must.Succeed(t, os.WriteFile(s.password, []byte("second\n"), 0o600))
			s.acl(t, "ACL", "SETUSER", "conductor", "<first")
			s.acl(t, "CLIENT", "KILL", "USER", "conductor")
			for _, p := range both {
				metricFrom(t, p, "conductor_store_beats_total", metric(p, "conductor_store_beats_total")+2)
			}
			post(t, other.url+"/register", registered("second", "127.0.0.1:9"), 200)
			follow(t, both, "engine", "second")
			post(t, one.url+"/unregister", `{"instance_id":"second","dp_rank":0}`, 200)
			follow(t, both, "engine")
			stored(t, engine, 4, 8, both...)
			documented()

			// The store is emptied; one replica ends after the other, and another one has the blocks from the shelf.
			must.Succeed(t, s.admin.FlushAll(t.Context()).Err())
			metricFrom(t, one, "conductor_store_lost_total", 1)
			eventually(t, "the shelf stays empty", func() (string, bool) {
				m := s.admin.HGetAll(t.Context(), "kvconductor:{default}:shelf").Val()
				return fmt.Sprint(m, one.log()), len(m) == 1 && strings.Contains(fmt.Sprint(m), `"blocks":8`)
			})
			for _, p := range both {
				must.Succeed(t, p.cmd.Process.Signal(syscall.SIGTERM))
				must.Succeed(t, p.cmd.Wait())
			}
			third := serveProcess(t, s.settings())
			eventually(t, "the blocks of the shelf are not there", func() (string, bool) {
				_, text := get(third.url + "/services")
				return text + third.log(), strings.Contains(text, `"Blocks":8,`) && strings.Contains(text, `"HistoryFrom":"shelf"`)
			})

			refusesNothing(t, s.admin)
		})
	}
}

// TestReplicasShareASecuredCluster runs replicas as the user that the docs make on each node.
func TestReplicasShareASecuredCluster(t *testing.T) {
	t.Parallel()
	s := &securedStore{password: redistest.File(t, "first\n"), mine: ", cluster: true"}
	var nodes []*redis.Client
	for _, n := range redistest.StartCluster(t, nil) {
		s.Server, s.admin = n, redis.NewClient(&redis.Options{Addr: n.Addr})
		t.Cleanup(func() { s.admin.Close() })
		s.acl(t, documentedACL(t, 0, "first")...)
		s.acl(t, documentedACL(t, 1, "")...)
		nodes = append(nodes, s.admin)
	}
	engine := newRuledEngine(t, "engine", 0)
	both := []*process{serveProcess(t, s.settings()), serveProcess(t, s.settings())}
	post(t, both[0].url+"/register", registered("engine", engine.pub.Addr().String()), 200)
	follow(t, both, "engine")
	stored(t, engine, 0, 4, both...)
	eventually(t, "no shelf", func() (string, bool) {
		written := metric(both[0], "conductor_shelf_written_total") + metric(both[1], "conductor_shelf_written_total")
		return both[0].log() + both[1].log(), written > 2
	})
	for _, node := range nodes {
		refusesNothing(t, node)
	}
}

// TestSecuredStoreRefuses starts replicas that a store does not let in, or not let do all, and one that
// does not trust the store. Each says why in its log, and goes on.
func TestSecuredStoreRefuses(t *testing.T) {
	t.Parallel()
	s := newSecuredStore(t, true)
	for user, but := range map[string]string{"nokeys": "resetkeys", "noscripts": "-evalsha"} {
		args := append(documentedACL(t, 0, "first"), but, "~kvconductor:{default}:*")
		args[2] = user
		s.acl(t, args...)
	}
	f := func(name, setting, wrong, why string, up float64) {
		t.Helper()
		settings := strings.Replace(s.settings(), setting, wrong, 1)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := newRuledEngine(t, name, 0)
			p := serveProcess(t, settings)
			post(t, p.url+"/register", registered(name, engine.pub.Addr().String()), 200)
			said := regexp.MustCompile(`"level":"error".*(` + why + `).*"message":"the store (cannot be used|refuses commands)`)
			eventually(t, "the log does not say why", func() (string, bool) {
				engine.publish(ruledStored(0, 4)) // without a batch, no snapshot is written
				log := p.log()
				return log, said.MatchString(log)
			})
			eventually(t, "the engine is not followed", func() (string, bool) {
				engine.publish(ruledStored(0, 4)) // the one before may have come before the replica
				type row struct {
					InstanceID string
					Blocks     int
				}
				rows, body := servicesOf[row](t, p.url)
				return body + p.log(), slices.Contains(rows, row{name, 4})
			})
			eventually(t, "conductor_store_up is another", func() (string, bool) { // a call may have been too slow
				got := metric(p, "conductor_store_up")
				return fmt.Sprintf("%v, want %v", got, up), got == up
			})
			if status, body := get(p.url + "/ready"); status != 200 {
				t.Errorf("/ready: %d %s", status, body)
			}
		})
	}
	f("authority", "cacert: "+s.ca.file, "cacert: "+newAuthority(t, "other").file, "signed by unknown authority", 0)
	f("host", "127.0.0.1:", "localhost:", "localhost", 0)
	f("no certificate", ", cert: ", "} #", "certificate required|store.cert", 0)
	f("password", s.password, redistest.File(t, "second"), "WRONGPASS", 0)
	f("no password", "password_file: "+s.password+",", "", "NOAUTH", 0)
	f("no TLS", s.settings(), strings.NewReplacer("rediss:", "redis:", s.mine, "").Replace(s.settings()), "begins with rediss://", 0)
	f("no scripts", "conductor@", "noscripts@", "NOPERM.*evalsha", 0)
	f("no keys of the shelf", "conductor@", "nokeys@", "NOPERM", 1)
}

// TestDocumentedACLHasEveryCommand holds that the user of the docs may run the commands of all scripts
// and those that Go sends, and no others.
func TestDocumentedACLHasEveryCommand(t *testing.T) {
	t.Parallel()
	sent := []string{"eval", "evalsha", "client|setname", "get", "set", "unlink", "hgetall"}
	call := regexp.MustCompile(`redis\.call\('([A-Z]+)'`)
	for _, dir := range []string{"../../store", "../../conductor", "../../history"} {
		must.Succeed(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range call.FindAllStringSubmatch(string(text), -1) {
				sent = append(sent, strings.ToLower(m[1]))
			}
			return err
		}))
	}
	var allowed []string
	for _, word := range documentedACL(t, 0, "")[2:] {
		if command, ok := strings.CutPrefix(word.(string), "+"); ok {
			allowed = append(allowed, command)
		}
	}
	slices.Sort(sent)
	slices.Sort(allowed)
	if sent = slices.Compact(sent); !slices.Equal(sent, allowed) {
		t.Errorf("replicas send %v, the docs allow %v", sent, allowed)
	}
}
