//go:build !linux

package zmq

import "net"

// boundUnacknowledged does nothing: the option is Linux's.
func boundUnacknowledged(net.Conn) {}
