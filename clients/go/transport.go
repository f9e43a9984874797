package baton

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
)

// watchedTLS is TLS that remembers why its latest handshake failed: of that gRPC passes on the words alone.
type watchedTLS struct {
	credentials.TransportCredentials
	failure *handshakeFailure
}

type handshakeFailure struct {
	mu  sync.Mutex
	err error
}

func newWatchedTLS(options *Options) *watchedTLS {
	config := &tls.Config{RootCAs: options.RootCAs, MinVersion: tls.VersionTLS12}
	if options.Certificate != nil {
		config.Certificates = []tls.Certificate{*options.Certificate}
	}
	return &watchedTLS{credentials.NewTLS(config), &handshakeFailure{}}
}

// ClientHandshake is that of TLS.
func (t *watchedTLS) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := t.TransportCredentials.ClientHandshake(ctx, authority, raw)
	t.failure.mu.Lock()
	t.failure.err = err
	t.failure.mu.Unlock()
	return conn, info, err
}

// Clone shares the memory.
func (t *watchedTLS) Clone() credentials.TransportCredentials {
	return &watchedTLS{t.TransportCredentials.Clone(), t.failure}
}

// explain puts the failed handshake under the error of a connection that could not be made.
func (t *watchedTLS) explain(err error) error {
	t.failure.mu.Lock()
	defer t.failure.mu.Unlock()
	if t.failure.err != nil && isUnavailable(err) {
		e := *err.(*Error)
		e.cause = t.failure.err
		return &e
	}
	return err
}
