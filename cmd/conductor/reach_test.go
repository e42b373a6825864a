package main

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"kvconductor/internal/must"
)

// A client that may register cannot use the server to reach its own machine, or the addresses at
// which clouds tell secrets. Sources of the configuration may.
func TestRegisterReaches(t *testing.T) {
	t.Parallel()
	victim, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer victim.Close()
	visits := make(chan struct{}, 100)
	go func() {
		for {
			c, err := victim.Accept()
			if err != nil {
				return
			}
			visits <- struct{}{}
			c.Close()
		}
	}()
	_, port, err := net.SplitHostPort(victim.Addr().String())
	must.Succeed(t, err)
	body := func(endpoint, more string) string {
		return fmt.Sprintf(`{"endpoint":%q,"type":"vLLM","modelname":"m","instance_id":"i","block_size":16,"dp_rank":0%s}`, endpoint, more)
	}
	const source = "sources: [{endpoint: 'tcp://127.0.0.1:PORT', type: vLLM, modelname: m, instance_id: own, block_size: 16}]\n"

	open := serveProcess(t, "", "0.0.0.0:0=conductor")
	open.url = "http://127.0.0.1:" + open.url[strings.LastIndexByte(open.url, ':')+1:]
	for _, endpoint := range []string{"tcp://127.0.0.1:" + port, "tcp://localhost:" + port, "tcp://[::1]:" + port, "tcp://169.254.169.254:80", "ipc:///var/run/docker.sock", "bind:tcp://*:" + port} {
		if answer := post(t, open.url+"/register", body(endpoint, ""), 400); !strings.Contains(answer, `"field":"endpoint"`) || !strings.Contains(answer, "register.allow") {
			t.Errorf("%s: %s", endpoint, answer)
		}
	}
	if answer := post(t, open.url+"/register", body("tcp://192.0.2.1:5557", `,"replay_endpoint":"tcp://127.0.0.1:`+port+`"`), 400); !strings.Contains(answer, `"field":"replay_endpoint"`) {
		t.Errorf("a replay endpoint: %s", answer)
	}
	post(t, open.url+"/dynamo/v1/register", fmt.Sprintf(`{"instance_id":1,"endpoint":"tcp://127.0.0.1:%s","model_name":"m","block_size":16}`, port), 400)
	post(t, open.url+"/register", body("tcp://192.0.2.1:5557", ""), 200)
	if len(visits) > 0 {
		t.Errorf("the victim was visited %d times", len(visits))
	}

	ruled := serveProcess(t, strings.ReplaceAll(source, "PORT", port)+"register: {allow: ['tcp://10.0.0.0/8:5000-6000']}\n")
	<-visits // by the source of the configuration
	post(t, ruled.url+"/register", body("tcp://127.0.0.1:"+port, ""), 400)
	post(t, ruled.url+"/register", body("tcp://10.1.2.3:80", ""), 400)
	post(t, ruled.url+"/register", body("tcp://10.1.2.3:5557", ""), 200)
}
