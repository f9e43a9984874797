package baton

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// A real broker for tests; BATON_BIN names the program.

// patience is the time limit of a wait for something that must happen. It only ends a test that hangs.
const patience = 2 * time.Minute

// shared is one broker for all the tests that do not change its state.
var shared *broker

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getenv("BATON_BIN") == "" {
		fmt.Fprintln(os.Stderr, "BATON_BIN must name the baton program that the tests start")
		return 1
	}
	data, err := os.MkdirTemp("", "baton-go-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(data)
	shared = &broker{data: data}
	if err := shared.start("dev", "--data", data, "--listen", "127.0.0.1:0"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer shared.kill()
	return m.Run()
}

type broker struct {
	data    string
	address string
	toml    string // the path of its configuration file, if any
	process *exec.Cmd
}

// newBroker starts a broker for one test. settings, if any, are the text of a configuration file. Its last section is
// [tls], to which the test may append.
func newBroker(t *testing.T, settings string) *broker {
	t.Helper()
	b := &broker{data: t.TempDir(), address: holdPort(t)}
	t.Cleanup(b.kill)
	arguments := []string{"dev", "--data", b.data, "--listen", b.address}
	if settings != "" {
		arguments = []string{"serve", "--config", b.config(t, settings)}
	}
	if err := b.start(arguments...); err != nil {
		t.Fatal(err)
	}
	return b
}

// config writes a configuration with the certificates of the shared broker.
func (b *broker) config(t *testing.T, settings string) string {
	t.Helper()
	path := filepath.Join(b.data, "baton.toml")
	text := fmt.Sprintf("listen = %q\ndata = %q\n%s\n", b.address, filepath.Join(b.data, "data"), settings)
	if !strings.Contains(text, "[tls]") {
		text += "[tls]\n"
	}
	tls := filepath.Join(shared.data, "tls")
	text += fmt.Sprintf("certificate = %q\nkey = %q\n", filepath.Join(tls, "server.pem"), filepath.Join(tls, "server.key"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b.data, b.toml = filepath.Join(b.data, "data"), path
	return path
}

func (b *broker) start(arguments ...string) error {
	address := filepath.Join(b.data, "address")
	_ = os.Remove(address)
	b.process = exec.Command(os.Getenv("BATON_BIN"), arguments...)
	b.process.Env = append(os.Environ(), "BATON_LOG=error")
	b.process.Stderr = os.Stderr
	if err := b.process.Start(); err != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < patience; time.Sleep(5 * time.Millisecond) {
		if text, err := os.ReadFile(address); err == nil && len(text) > 0 {
			b.address = strings.TrimSpace(string(text))
			return nil
		}
	}
	return errors.New("the broker does not start")
}

// kill ends the broker as by a crash.
func (b *broker) kill() {
	_ = b.process.Process.Kill()
	_ = b.process.Wait()
}

// stop ends the broker in order.
func (b *broker) stop() {
	_ = b.process.Process.Signal(syscall.SIGTERM)
	_ = b.process.Wait()
}

// restart starts it again on its folder and port.
func (b *broker) restart(t *testing.T) {
	t.Helper()
	arguments := []string{"dev", "--data", b.data, "--listen", b.address}
	if b.toml != "" {
		arguments = []string{"serve", "--config", b.toml}
	}
	if err := b.start(arguments...); err != nil {
		t.Fatal(err)
	}
}

func (b *broker) operatorToken(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(b.data, "operator.token"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// options returns the options of a new agent with this name; its id is made unique.
func (b *broker) options(t *testing.T, name string) Options {
	t.Helper()
	key, err := GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	roots, err := LoadCA(filepath.Join(shared.data, "tls/ca.pem"))
	if b.data != shared.data {
		if own, ownErr := LoadCA(filepath.Join(b.data, "tls/ca.pem")); ownErr == nil {
			roots, err = own, nil
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Target: b.address, AgentID: unique(name), Key: key, RootCAs: roots, Card: &v1.AgentCard{},
		Logger: slog.New(slog.DiscardHandler),
	}
}

// agent returns a connected agent.
func (b *broker) agent(t *testing.T, name string) *Agent {
	t.Helper()
	return connected(t, b.options(t, name))
}

func connected(t *testing.T, options Options) *Agent {
	t.Helper()
	agent, err := Connect(patient(t), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Close() })
	return agent
}

// patient returns the context of one test.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	t.Cleanup(cancel)
	return ctx
}

var uniqueCount atomic.Int64

func unique(name string) string {
	return fmt.Sprintf("%s-%d-%d", name, os.Getpid(), uniqueCount.Add(1))
}

// refused checks that an error is the broker's, with this reason.
func refused(t *testing.T, err error, reason string) *Error {
	t.Helper()
	var refused *Error
	if !errors.As(err, &refused) || refused.Reason != reason {
		t.Fatalf("%v, expected %s", err, reason)
	}
	return refused
}

func ok[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// next receives and acks one delivery, whose payload must be a P.
func next[P any](t *testing.T, agent *Agent) (*Delivery, P) {
	t.Helper()
	delivery := ok[*Delivery](t)(agent.Receive(patient(t)))
	payload, is := delivery.Payload.(P)
	if !is {
		t.Fatalf("a %T came: %v", delivery.Payload, delivery.Payload)
	}
	if err := delivery.Ack(patient(t)); err != nil {
		t.Fatal(err)
	}
	return delivery, payload
}

func publicOf(key ed25519.PrivateKey) []byte { return key.Public().(ed25519.PublicKey) }
