package server

import (
	"fmt"
	"net"
	"syscall"
)

// holdPort binds a socket to an address and does not listen. Connections are refused then, and the
// system gives the port to no other program. letGo ends that.
func holdPort(addr *net.TCPAddr) (letGo func(), err error) {
	family, to := syscall.AF_INET6, syscall.Sockaddr(&syscall.SockaddrInet6{Port: addr.Port, Addr: [16]byte(addr.IP.To16())})
	if ip := addr.IP.To4(); ip != nil {
		family, to = syscall.AF_INET, &syscall.SockaddrInet4{Port: addr.Port, Addr: [4]byte(ip)}
	}
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, err
	}
	if addr.IP.Equal(net.IPv6unspecified) { // it takes IPv4 too, as the listener does
		err = syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 0)
	}
	if err == nil {
		err = syscall.Bind(fd, to)
	}
	if err != nil {
		syscall.Close(fd)
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	return func() { syscall.Close(fd) }, nil
}
