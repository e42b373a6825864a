package freeport

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMain is also another process that looks for addresses: it prints those that it gets.
func TestMain(m *testing.M) {
	if os.Getenv("FIND_ADDRESSES") != "1" {
		os.Exit(m.Run())
	}
	for range 300 {
		fmt.Println(Address())
	}
}

// TestAddress: nothing listens on an address, and it comes once.
func TestAddress(t *testing.T) {
	known := make(map[string]bool)
	for range 100 {
		address, err := Address()
		if err != nil || known[address] || !strings.HasPrefix(address, "127.0.0.1:1") {
			t.Fatalf("%q: %v, given %t", address, err, known[address])
		}
		known[address] = true
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
}

// TestAddressOfProcesses: no other process gets an address of this one before its server listens there.
func TestAddressOfProcesses(t *testing.T) {
	known := make(map[string]bool)
	for range 300 {
		address, err := Address()
		if err != nil {
			t.Fatal(err)
		}
		known[address] = true
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FIND_ADDRESSES=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for _, line := range lines {
		address, ok := strings.CutSuffix(line, " <nil>")
		if !ok || known[address] {
			t.Errorf("another process gets %s, and this one has it: %t", line, known[address])
		}
	}
	if len(lines) != 300 {
		t.Errorf("another process gets %d addresses", len(lines))
	}
}
