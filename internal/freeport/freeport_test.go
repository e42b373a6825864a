package freeport

import (
	"net"
	"strings"
	"testing"
)

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
