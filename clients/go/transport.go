package baton

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

const plaintextScheme = "http://"

// watchedTransport is the TLS transport, or the plaintext one, and remembers why its latest handshake failed: gRPC
// passes on only the text of that error.
type watchedTransport struct {
	credentials.TransportCredentials
	failure *handshakeFailure
}

type handshakeFailure struct {
	mu  sync.Mutex
	err error
}

// newTransport returns the address and the transport. Plaintext is restricted to this machine, since the calls carry
// tokens.
func newTransport(options *Options) (string, *watchedTransport, error) {
	if address, isPlaintext := strings.CutPrefix(options.Target, plaintextScheme); isPlaintext {
		host, _, err := net.SplitHostPort(address)
		if err != nil || host != "localhost" && !net.ParseIP(host).IsLoopback() {
			return "", nil, fmt.Errorf("baton: %s is not on this machine: it takes TLS, without http://", options.Target)
		}
		return address, &watchedTransport{insecure.NewCredentials(), &handshakeFailure{}}, nil
	}
	config := &tls.Config{RootCAs: options.RootCAs, MinVersion: tls.VersionTLS12}
	if options.Certificate != nil {
		config.Certificates = []tls.Certificate{*options.Certificate}
	}
	return options.Target, &watchedTransport{credentials.NewTLS(config), &handshakeFailure{}}, nil
}

// ClientHandshake performs the transport's handshake and records its error.
func (t *watchedTransport) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := t.TransportCredentials.ClientHandshake(ctx, authority, raw)
	t.failure.mu.Lock()
	t.failure.err = err
	t.failure.mu.Unlock()
	return conn, info, err
}

// Clone returns a transport that shares the recorded error.
func (t *watchedTransport) Clone() credentials.TransportCredentials {
	return &watchedTransport{t.TransportCredentials.Clone(), t.failure}
}

// explain attaches the failed handshake's error to the error of a connection that could not be made.
func (t *watchedTransport) explain(err error) error {
	t.failure.mu.Lock()
	defer t.failure.mu.Unlock()
	if t.failure.err != nil && isUnavailable(err) {
		e := *err.(*Error)
		e.cause = t.failure.err
		return &e
	}
	return err
}
