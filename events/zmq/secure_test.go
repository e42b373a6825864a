package zmq

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// securePublisher is a publisher of libzmq that wants the mechanism of its argument. It prints its port.
const securePublisher = `
import sys, zmq
pub = zmq.Context().socket(zmq.PUB)
pub.linger = 0
if sys.argv[1] == "curve":
    pub.curve_publickey, pub.curve_secretkey = zmq.curve_keypair()
    pub.curve_server = True
else:
    pub.plain_server = True
print(pub.bind_to_random_port("tcp://127.0.0.1"), flush=True)
sys.stdin.read()
`

// TestInteropSecurePublisher holds that publishers that want CURVE or PLAIN refuse us, and that the
// error says so: see docs/security.md.
func TestInteropSecurePublisher(t *testing.T) {
	python := ""
	for _, name := range []string{os.Getenv("CONDUCTOR_PYTHON"), "/usr/bin/python3", "python3"} {
		if name != "" && exec.Command(name, "-c", "import zmq; assert zmq.has('curve')").Run() == nil {
			python = name
			break
		}
	}
	if python == "" {
		must.Skip(t, "no python3 with zmq and CURVE (Debian: python3-zmq; or set CONDUCTOR_PYTHON)")
	}
	for _, mechanism := range []string{"curve", "plain"} {
		cmd := exec.CommandContext(t.Context(), python, "-c", securePublisher, mechanism)
		stdin, err := cmd.StdinPipe()
		must.Succeed(t, err)
		stdout, err := cmd.StdoutPipe()
		must.Succeed(t, err)
		must.Succeed(t, cmd.Start())
		port, err := bufio.NewReader(stdout).ReadString('\n')
		must.Succeed(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		sub, err := Transport{HandshakeTimeout: time.Minute}.Subscribe(ctx, "tcp://127.0.0.1:"+strings.TrimSpace(port))
		if err == nil {
			sub.Close()
			t.Errorf("a publisher with %s takes a follower without", mechanism)
		} else if !strings.Contains(err.Error(), strings.ToUpper(mechanism)) {
			t.Errorf("%s: the error does not name the mechanism: %v", mechanism, err)
		}
		cancel()
		stdin.Close()
		cmd.Wait()
	}
}
