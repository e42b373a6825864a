package reach

import (
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

func TestCheckHost(t *testing.T) {
	f := func(host, want string) {
		t.Helper()
		if err := CheckHost(host); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", host, err, want)
		}
	}
	for _, host := range []string{"10.0.0.1", "engine-0.engines.svc", "::1", "fe80::1%eth0", "localhost", "000host", "0x0", "my_engine",
		"motor-ü"} {
		f(host, "")
	}
	for _, host := range []string{"*", "0.0.0.0", "::", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0", "::%eth0", "0", "0.0", "000.0.0.0"} {
		f(host, "wildcard to bind to: write the host to connect to instead of")
	}
	f("${POD_IP}", "the variable ${POD_IP}, which")
	f("${POD_IP", "the variable ${POD_IP, which")
	f("${POD_IP:-10.0.0.1}", "the variable ${POD_IP:-10.0.0.1}, which")
	f("$(POD_IP)", "the variable $(POD_IP), which")
	f("engine-$ORDINAL.engines", "the variable $ORDINAL, which")
	f("", "names no host")
	f("{{ .Values.host }}", "no valid host")
	f("<engine>", "no valid host")
	f("a b", "no valid host")
	f("user@host", "no valid host")
}

func TestCheckPort(t *testing.T) {
	must.Report(t, CheckPort("1"))
	must.Report(t, CheckPort("65535"))
	for port, want := range map[string]string{"0": "pick", "": "valid", "65536": "valid", "-1": "valid", "kv": "valid", "*": "valid"} {
		if err := CheckPort(port); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", port, err)
		}
	}
}
