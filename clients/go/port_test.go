package baton

import (
	"net"
	"syscall"
	"testing"
)

// holdPort returns the address of a port that stays this test's own while no broker listens on it. The system gives a port in
// use to nobody who asks for any port, neither to a listener nor to a connection. A connection from the port keeps it in use,
// and a broker that names it can listen there (both with SO_REUSEADDR).
func holdPort(t *testing.T) string {
	t.Helper()
	listener := ok[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	defer listener.Close()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, Control: reuseAddress}
	near := ok[net.Conn](t)(dialer.DialContext(patient(t), "tcp", listener.Addr().String()))
	far := ok[net.Conn](t)(listener.Accept())
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near.LocalAddr().String()
}

func reuseAddress(_, _ string, connection syscall.RawConn) error {
	var failed error
	err := connection.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	})
	if err != nil {
		return err
	}
	return failed
}
