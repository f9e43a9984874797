package baton

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

func hello(text string) *v1.Info { return &v1.Info{Text: text} }

func supportRequest() *v1.HandoffRequest { return &v1.HandoffRequest{TaskType: "support"} }

func TestAWrongKeyIsRefused(t *testing.T) {
	options := shared.options(t, "alice")
	_ = connected(t, options).Close()
	other := shared.options(t, "other")
	options.Key, options.Card = other.Key, nil
	_, err := Connect(patient(t), options)
	refused(t, err, "CHALLENGE_FAILED")
	options.Card = &v1.AgentCard{} // nor can another key take the name over
	_, err = Connect(patient(t), options)
	refused(t, err, "CHALLENGE_FAILED")
}

func TestAWrongCAIsTold(t *testing.T) {
	options := shared.options(t, "alice")
	options.RootCAs = x509.NewCertPool()
	_, err := Connect(patient(t), options)
	if refused(t, err, "").Code != codes.Unavailable {
		t.Error(err)
	}
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) {
		t.Errorf("%v does not say that the certificate is not trusted", err)
	}
}

func TestNobodyThere(t *testing.T) {
	options := shared.options(t, "alice")
	options.Target = "127.0.0.1:1"
	_, err := Connect(patient(t), options)
	if refused(t, err, "").Code != codes.Unavailable {
		t.Error(err)
	}
}

func TestATokenWhoseTimeIsOverIsRefused(t *testing.T) {
	b := newBroker(t, "")
	options := b.options(t, "alice")
	options.Token = connected(t, options).token
	before := connected(t, options) // valid until the broker stops
	b.kill()
	b.restart(t)
	options.Card = nil
	_, err := Connect(patient(t), options)
	refused(t, err, "TOKEN_INVALID")
	select {
	case <-before.Done(): // the agent cannot renew it
		refused(t, before.Err(), "TOKEN_INVALID")
	case <-patient(t).Done():
		t.Error("an agent with an old token goes on")
	}
	_, err = before.Send(patient(t), "unknown", About{}, hello(""))
	refused(t, err, "TOKEN_INVALID")
}

func TestACardIsChangedByItsAgentAlone(t *testing.T) {
	options := shared.options(t, "alice")
	_ = connected(t, options).Close()
	options.Card = &v1.AgentCard{Description: "knows more now"}
	alice := connected(t, options)
	found := ok[*v1.Agent](t)(alice.GetAgent(patient(t), alice.ID()))
	if found.GetCard().GetDescription() != "knows more now" {
		t.Error(found)
	}
}

func TestTheProcessesOfAnAgentAreListed(t *testing.T) {
	alice, bob := connected(t, shared.options(t, "alice")), connected(t, shared.options(t, "bob"))
	listed := func() []*v1.Process { return ok[[]*v1.Process](t)(alice.ListProcesses(patient(t), bob.ID())) }
	processes := listed()
	// The first frame of a session names its process.
	for len(processes) == 1 && processes[0].GetInstanceId() == "" {
		processes = listed()
	}
	if len(processes) != 1 || !processes[0].GetListsWork() || processes[0].GetTaskCount() != 0 {
		t.Error(processes)
	}
	_, err := alice.ListProcesses(patient(t), "nobody")
	refused(t, err, "AGENT_UNKNOWN")
}

func TestEnrolmentByInvitationAndByAnOperator(t *testing.T) {
	b := newBroker(t, `enrollment = "operator"`)
	options := b.options(t, "alice")
	_, err := Connect(patient(t), options)
	if err == nil {
		t.Fatal("an unproven agent registered")
	}
	options.OperatorToken = b.operatorToken(t)
	alice := connected(t, options)
	invitation := ok[string](t)(alice.Invite(patient(t), options.OperatorToken, "", time.Minute))
	bob := b.options(t, "bob")
	bob.Invitation = invitation
	connected(t, bob)
	carol := b.options(t, "carol")
	carol.Invitation = invitation
	_, err = Connect(patient(t), carol)
	refused(t, err, "INVITATION_INVALID")
}

func TestACertificateProvesWhoOneIs(t *testing.T) {
	folder := t.TempDir()
	id := unique("alice")
	ca, certificate := clientCertificate(t, id)
	caPath := filepath.Join(folder, "clients.pem")
	if err := os.WriteFile(caPath, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	b := newBroker(t, fmt.Sprintf("enrollment = \"open\"\n[tls]\nclient_ca = %q", caPath))
	options := b.options(t, "alice")
	options.AgentID, options.Certificate = id, &certificate
	alice := connected(t, options)
	if alice.token != "" {
		t.Error("a token was asked for")
	}
	ok[*v1.Receipt](t)(alice.Send(patient(t), b.agent(t, "bob").ID(), About{}, hello("")))
}

func clientCertificate(t *testing.T, agentID string) ([]byte, tls.Certificate) {
	t.Helper()
	sign := func(template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) *x509.Certificate {
		template.SerialNumber = big.NewInt(time.Now().UnixNano())
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der := ok[[]byte](t)(x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey))
		return ok[*x509.Certificate](t)(x509.ParseCertificate(der))
	}
	caKey := ok[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	key := ok[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "clients"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	ca := sign(template, template, caKey, caKey)
	leaf := sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: agentID},
		URIs:        []*url.URL{ok[*url.URL](t)(url.Parse("urn:baton:agent:" + agentID))},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, key, caKey)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})
	return text, tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}
}

func TestARefusalSaysAllThatIsWrong(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	request := &v1.HandoffRequest{FallbackCandidates: []string{"not an id"}}
	_, err := alice.RequestHandoff(patient(t), bob.ID(), unique("ticket"), 1, request)
	e := refused(t, err, "FIELD_INVALID")
	if len(e.Fields) < 2 || e.Code != codes.InvalidArgument || e.ErrorCode() != v1.ErrorCode_ERROR_CODE_FIELD_INVALID {
		t.Errorf("%+v", e)
	}
}

func TestAClockThatIsOffIsTold(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		envelope := ok[*v1.Envelope](t)(NewEnvelope(alice.ID(), bob.ID(), About{}, hello("")))
		envelope.Timestamp = timestamppb.New(time.Now().Add(off))
		SignEnvelope(envelope, "k1", alice.options.Key)
		_, err := alice.SendEnvelope(patient(t), envelope)
		refused(t, err, "TIMESTAMP_OUTSIDE_WINDOW")
	}
}

func TestUnknownFieldsTravelUntouched(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	newer := protowire.AppendString(protowire.AppendTag(nil, 999, protowire.BytesType), "of a newer schema")
	envelope := ok[*v1.Envelope](t)(NewEnvelope(alice.ID(), bob.ID(), About{}, hello("hello")))
	envelope.Payload.Value = append(envelope.Payload.Value, newer...)
	envelope.ProtoReflect().SetUnknown(newer)
	SignEnvelope(envelope, "k1", alice.options.Key)
	ok[*v1.Receipt](t)(alice.SendEnvelope(patient(t), envelope))
	delivery, info := next[*v1.Info](t, bob)
	if !proto.Equal(delivery.Envelope, envelope) || string(info.ProtoReflect().GetUnknown()) != string(newer) {
		t.Errorf("%v", delivery.Envelope)
	}
	// A relayed envelope keeps alice's signature.
	passedOn := ok[[]byte](t)(proto.Marshal(delivery.Envelope))
	var again v1.Envelope
	if err := proto.Unmarshal(passedOn, &again); err != nil {
		t.Fatal(err)
	}
	if err := VerifyEnvelope(&again, &v1.AgentKey{KeyId: "k1", PublicKey: publicOf(alice.options.Key)}); err != nil {
		t.Error(err)
	}
}

func TestAnUnknownMessageType(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	envelope := ok[*v1.Envelope](t)(NewEnvelope(alice.ID(), bob.ID(), About{}, hello("")))
	envelope.MessageType = 99
	envelope.Payload = &anypb.Any{TypeUrl: "type.googleapis.com/baton.v1.Newer"}
	SignEnvelope(envelope, "k1", alice.options.Key)
	_, err := alice.SendEnvelope(patient(t), envelope)
	var e *Error
	if !errors.As(err, &e) || e.Code != codes.InvalidArgument || e.Reason == "" {
		t.Errorf("the broker takes it: %v", err)
	}
	// Stands for a type of a newer broker. An agent that does not know a type must not ack it.
	payload, err := PayloadOf(envelope)
	if payload != nil || err != nil {
		t.Errorf("%v, %v", payload, err)
	}
	err = Handlers{}.Handle(patient(t), &Delivery{Envelope: envelope})
	var nack *nackError
	if !errors.As(err, &nack) || nack.cause != v1.NackCause_NACK_CAUSE_POISON {
		t.Errorf("%v", err)
	}
}

func TestPayloadsThatAreNotWhatTheySay(t *testing.T) {
	envelope := ok[*v1.Envelope](t)(NewEnvelope("a", "b", About{}, hello("hello")))
	envelope.MessageType = v1.MessageType_MESSAGE_TYPE_DELEGATION
	_, err := PayloadOf(envelope)
	refusedHere(t, err, "PAYLOAD_TYPE_MISMATCH")
	envelope.MessageType = v1.MessageType_MESSAGE_TYPE_INFO
	envelope.Payload.Value = []byte{0xff}
	_, err = PayloadOf(envelope)
	refusedHere(t, err, "MALFORMED")
	if _, err := NewEnvelope("a", "b", About{}, &v1.Envelope{}); err == nil {
		t.Error("an envelope is no payload")
	}
}

func TestWhatDoesNotVerifyIsNotGivenOut(t *testing.T) {
	alice, options := shared.agent(t, "alice"), shared.options(t, "bob")
	other := shared.options(t, "other")
	options.PinnedKeys = map[string][]*v1.AgentKey{alice.ID(): {{KeyId: "k1", PublicKey: publicOf(other.Key)}}}
	bob, carol := connected(t, options), shared.agent(t, "carol")
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("forged, for all that bob knows")))
	ok[*v1.Receipt](t)(carol.Send(patient(t), bob.ID(), About{}, hello("hello")))
	if _, info := next[*v1.Info](t, bob); info.GetText() != "hello" {
		t.Errorf("%v", info)
	}
	letters := v1.NewDeadLetterServiceClient(bob.Conn())
	answer := ok[*v1.ListDeadLettersResponse](t)(letters.ListDeadLetters(bob.Authorize(patient(t)), &v1.ListDeadLettersRequest{
		Filter: &v1.DeadLetterFilter{AgentId: bob.ID()},
	}))
	if len(answer.GetDeadLetters()) != 1 || answer.GetDeadLetters()[0].GetReason() != v1.DeadLetterReason_DEAD_LETTER_REASON_POISON {
		t.Errorf("%v", answer)
	}
}

func TestOnlyVouchedKeysAreGoodWhereOperatorsAreKnown(t *testing.T) {
	operator, options := ok[ed25519.PrivateKey](t)(GenerateKey()), shared.options(t, "alice")
	key := &v1.AgentKey{KeyId: "k1", PublicKey: publicOf(options.Key)}
	alice, mallory := connected(t, options), shared.agent(t, "mallory")
	voucher := Vouch(alice.ID(), key, "ops", operator, time.Now().Add(time.Hour))
	ok[*v1.Agent](t)(alice.VouchForKey(patient(t), shared.operatorToken(t), alice.ID(), "k1", voucher))
	bobs := shared.options(t, "bob")
	bobs.OperatorKeys = map[string]ed25519.PublicKey{"ops": publicOf(operator)}
	bob := connected(t, bobs)
	ok[*v1.Receipt](t)(mallory.Send(patient(t), bob.ID(), About{}, hello("I am not vouched for")))
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("hello")))
	if _, info := next[*v1.Info](t, bob); info.GetText() != "hello" {
		t.Errorf("%v", info)
	}
}

func TestKeysAreAddedAndRevoked(t *testing.T) {
	options, key := shared.options(t, "alice"), ok[ed25519.PrivateKey](t)(GenerateKey())
	alice := connected(t, options)
	second := &v1.AgentKey{KeyId: "k2", PublicKey: publicOf(key)}
	added := ok[*v1.Agent](t)(alice.AddKey(patient(t), "", alice.ID(), second, []string{"k1"}, time.Hour))
	if keys := added.GetCard().GetKeys(); keys[0].GetNotAfterTime() == nil || keys[1].GetNotAfterTime() != nil {
		t.Errorf("%v", keys)
	}
	options.Key, options.KeyID, options.Card = key, "k2", nil
	later := connected(t, options)
	revoked := ok[*v1.Agent](t)(later.RevokeKey(patient(t), "", alice.ID(), "k1", "rotated"))
	if keys := revoked.GetCard().GetKeys(); keys[0].GetRevokeTime() == nil {
		t.Errorf("%v", keys)
	}
	if _, err := alice.Send(patient(t), later.ID(), About{}, hello("")); err == nil {
		t.Error("a revoked key is good")
	}
}

func TestPlaintextIsForThisMachineAlone(t *testing.T) {
	b := newBroker(t, "enrollment = \"open\"\n[tls]\nallow_plaintext = true")
	options := b.options(t, "alice")
	options.Target, options.RootCAs = "http://broker.example:22866", nil
	if _, err := Connect(patient(t), options); err == nil || !strings.Contains(err.Error(), "not on this machine") {
		t.Errorf("%v", err)
	}
	options.Target = "http://" + b.address
	alice := connected(t, options)
	ok[*v1.Receipt](t)(alice.Send(patient(t), alice.ID(), About{}, hello("plain")))
	if _, info := next[*v1.Info](t, alice); info.GetText() != "plain" {
		t.Errorf("%v", info)
	}
}

func TestAReceiptMustBeForTheMessage(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	first := ok[*v1.Envelope](t)(NewEnvelope(alice.ID(), bob.ID(), About{}, hello("")))
	SignEnvelope(first, "k1", alice.options.Key)
	receipt := ok[*v1.Receipt](t)(alice.SendEnvelope(patient(t), first))
	s := ok[*session](t)(alice.current(patient(t)))
	_, err := checkedReceipt(receipt, &v1.Envelope{MessageId: "another"}, s.welcome.GetBrokerKey())
	refusedHere(t, err, "SIGNATURE_INVALID")
	receipt.Sequence++
	_, err = checkedReceipt(receipt, first, s.welcome.GetBrokerKey())
	refusedHere(t, err, "SIGNATURE_INVALID")
}

func TestReceiptsAreVerifiedWithThePinnedKeysOfTheBroker(t *testing.T) {
	options, bob, task := shared.options(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	alice := connected(t, options)
	ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), task, 1, &v1.HandoffRequest{TaskType: "support"}))
	brokers := ok[*session](t)(alice.current(patient(t))).welcome.GetBrokerKey()
	pinned := func(keys ...*v1.AgentKey) (error, error) {
		options.PinnedKeys = map[string][]*v1.AgentKey{brokerID: keys}
		alice := connected(t, options)
		_, sent := alice.Send(patient(t), bob.ID(), About{}, hello(""))
		_, audited := alice.AuditTask(patient(t), task)
		return sent, audited
	}
	other := &v1.AgentKey{KeyId: "other", PublicKey: publicOf(options.Key)}
	if sent, audited := pinned(other, brokers); sent != nil || audited != nil {
		t.Error(sent, audited)
	}
	sent, audited := pinned(&v1.AgentKey{KeyId: brokers.GetKeyId(), PublicKey: other.GetPublicKey()})
	refusedHere(t, sent, "SIGNATURE_INVALID")
	refusedHere(t, audited, "SIGNATURE_INVALID")
	sent, audited = pinned(other)
	refusedHere(t, sent, "KEY_UNKNOWN")
	refusedHere(t, audited, "KEY_UNKNOWN")
}

func TestHeartbeatsComeAtTheBrokersInterval(t *testing.T) {
	b := newBroker(t, "enrollment = \"open\"\n[session]\nheartbeat_interval_ms = 100\npresence_lease_ms = 1000")
	alice := b.agent(t, "alice")
	alice.SetHeartbeat(&v1.Heartbeat{Status: "busy", ActiveTasks: 3})
	ctx := patient(t)
	for {
		found := ok[*v1.Agent](t)(alice.GetAgent(ctx, alice.ID()))
		if found.GetLastHeartbeat().GetStatus() == "busy" && found.GetLastHeartbeat().GetActiveTasks() == 3 {
			return
		}
	}
}

func TestAfterCloseNothingGoes(t *testing.T) {
	alice := shared.agent(t, "alice")
	if err := alice.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := alice.Send(patient(t), "bob", About{}, hello("")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := alice.Receive(patient(t)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := alice.Serve(patient(t), Handlers{}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestAContextEndsACall(t *testing.T) {
	alice := shared.agent(t, "alice")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := alice.Send(ctx, "bob", About{}, hello("")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := alice.GetTask(ctx, "ticket"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestKeyFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "alice.pem")
	options := shared.options(t, "alice")
	if err := SaveKey(path, options.Key); err != nil {
		t.Fatal(err)
	}
	if loaded, err := LoadKey(path); err != nil || !loaded.Equal(options.Key) {
		t.Error(err)
	}
	if err := SaveKey(path, options.Key); !errors.Is(err, os.ErrExist) {
		t.Error(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	if _, err := LoadKey(filepath.Join(shared.data, "tls/server.pem")); err == nil {
		t.Error("a certificate is no key")
	}
}
