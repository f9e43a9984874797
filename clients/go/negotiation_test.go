package baton

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Negotiations: offers, counter-offers, awards.

// bidder serves an agent of the type that makes an offer at this cost, 1 less for each counter-offer, and takes tasks over.
func bidder(t *testing.T, b *broker, kind string, cost float64) (*Agent, <-chan *OwnedTask) {
	t.Helper()
	options := b.options(t, "bidder")
	options.Card = &v1.AgentCard{AgentTypes: []string{kind}}
	agent := connected(t, options)
	owned := make(chan *OwnedTask, 1)
	serve(t, agent, Handlers{
		Bid: func(_ context.Context, wanted *OfferWanted) (*v1.TaskOffer, error) {
			if wanted.Request.GetDescription() != "the sums of march" {
				return nil, Decline(v1.RejectReason_REJECT_REASON_NO_SKILL, "only sums")
			}
			return &v1.TaskOffer{Confidence: 0.9, Cost: cost - float64(wanted.Counter.GetRound()), Conditions: "in euros"}, nil
		},
		Offer: func(ctx context.Context, offer *Offer) error {
			takeover, err := offer.Accept(ctx, nil)
			if err != nil {
				return err
			}
			task, err := takeover.Complete(ctx)
			if err == nil {
				owned <- task
			}
			return err
		},
	})
	return agent, owned
}

// silent adds an agent that does not answer, so that a negotiation stays open until its deadline.
func silent(t *testing.T, b *broker, kind string) {
	t.Helper()
	options := b.options(t, "silent")
	options.Card = &v1.AgentCard{AgentTypes: []string{kind}}
	connected(t, options)
}

func sums(deadline time.Duration) *v1.TaskRequest {
	return &v1.TaskRequest{
		Description: "the sums of march", OffersDeadline: timestamppb.New(time.Now().Add(deadline)),
		DecisionTimeout: durationpb.New(patience),
	}
}

func report() *v1.HandoffRequest { return &v1.HandoffRequest{TaskType: "report"} }

func TestAnOfferIsCounteredAndItsBidderTakesTheTask(t *testing.T) {
	alice, kind := shared.agent(t, "alice"), unique("analyst")
	bob, owned := bidder(t, shared, kind, 7)
	carol, _ := bidder(t, shared, kind, 6)
	silent(t, shared, kind)
	request, task := sums(patience), unique("report")
	n := ok[*Negotiation](t)(alice.Negotiate(patient(t), "all:"+kind, About{TaskID: task, Epoch: 1}, request))
	defer n.Close()
	var best *Bid
	costs := map[string][]float64{}
	for bid, err := range n.Offers(patient(t)) {
		if err != nil {
			t.Fatal(err)
		}
		costs[bid.AgentID] = append(costs[bid.AgentID], bid.Terms.GetCost())
		if bid.Terms.GetConditions() != "in euros" {
			t.Error(bid.Terms)
		}
		if bid.AgentID == bob.ID() && bid.Terms.GetRound() < 3 {
			ok[*v1.Receipt](t)(bid.Counter(patient(t), &v1.TaskOffer{Confidence: 1, Cost: 1}))
			_, err := bid.Counter(patient(t), &v1.TaskOffer{Confidence: 1, Cost: 1})
			if err == nil {
				t.Error("it was out of turn")
			}
		} else if bid.AgentID == bob.ID() {
			best = bid
			_, err := bid.Counter(patient(t), &v1.TaskOffer{Confidence: 1})
			refused(t, err, "ROUND_LIMIT")
		}
		if best != nil && len(costs) == 2 {
			break
		}
	}
	if !slices.Equal(costs[bob.ID()], []float64{7, 6, 5, 4}) || !slices.Equal(costs[carol.ID()], []float64{6}) {
		t.Error(costs)
	}
	handed := ok[*HandedOver](t)(n.HandOver(patient(t), best, report(), goals(t)))
	if got := await(t, owned); handed.OwnerID != bob.ID() || got.TaskID != task || got.Epoch != 2 {
		t.Error(handed, got)
	}
	ended := ok[*v1.Negotiation](t)(n.Ended(patient(t)))
	if ended.GetState() != v1.NegotiationState_NEGOTIATION_STATE_SETTLED || ended.GetWinnerId() != bob.ID() {
		t.Error(ended)
	}
	_, err := n.Cancel(patient(t))
	refused(t, err, "NEGOTIATION_CLOSED")
	_, err = n.Award(patient(t), best, "")
	refused(t, err, "NEGOTIATION_CLOSED")
}

func TestTheBrokerAwardsUnderTheMandateOverARestart(t *testing.T) {
	b := newBroker(t, "")
	alice, kind := b.agent(t, "alice"), unique("analyst")
	bidder(t, b, kind, 7)
	cheap, owned := bidder(t, b, kind, 3)
	silent(t, b, kind)
	request, task := sums(8*time.Second), unique("report")
	request.AwardRule, request.Handoff = v1.AwardRule_AWARD_RULE_LOWEST_COST, report()
	request.DecisionTimeout = nil
	n := ok[*Negotiation](t)(alice.Negotiate(patient(t), "all:"+kind, About{TaskID: task, Epoch: 1}, request))
	defer n.Close()
	heard := 0
	for _, err := range n.Offers(patient(t)) {
		if err != nil {
			t.Fatal(err)
		}
		if heard++; heard == 2 {
			break
		}
	}
	b.kill()
	b.restart(t)
	handed := ok[*HandedOver](t)(n.HandOverToWinner(patient(t), goals(t)))
	if got := await(t, owned); handed.OwnerID != cheap.ID() || got.TaskID != task || got.Epoch != 2 {
		t.Error(handed, got)
	}
	if ended := ok[*v1.Negotiation](t)(n.Ended(patient(t))); ended.GetWinnerId() != cheap.ID() {
		t.Error(ended)
	}
}

func TestANegotiationWithoutAnOfferFails(t *testing.T) {
	alice, kind := shared.agent(t, "alice"), unique("analyst")
	bidder(t, shared, kind, 7)
	request := sums(patience)
	request.Description, request.AwardRule = "a poem", v1.AwardRule_AWARD_RULE_LOWEST_COST
	request.Handoff, request.DecisionTimeout = report(), nil
	about := About{TaskID: unique("poem"), Epoch: 1}
	n := ok[*Negotiation](t)(alice.Negotiate(patient(t), "all:"+kind, about, request))
	defer n.Close()
	_, err := n.HandOverToWinner(patient(t), goals(t))
	var failed *NegotiationFailedError
	if !errors.As(err, &failed) || failed.Reason != "NO_OFFER" {
		t.Error(err)
	}
	_, err = alice.Negotiate(patient(t), "all:"+unique("poet"), About{}, sums(patience))
	refused(t, err, "RECEIVER_UNKNOWN")
}

func TestANegotiationIsResumedAwardedAsMailAndCancelled(t *testing.T) {
	alice, kind := shared.agent(t, "alice"), unique("analyst")
	bob, _ := bidder(t, shared, kind, 7)
	silent(t, shared, kind)
	begun := ok[*Negotiation](t)(alice.Negotiate(patient(t), "all:"+kind, About{}, sums(patience)))
	for bid, err := range begun.Offers(patient(t)) {
		if err != nil || bid.AgentID != bob.ID() {
			t.Fatal(bid, err)
		}
		break
	}
	begun.Close()
	n := ok[*Negotiation](t)(alice.ResumeNegotiation(patient(t), begun.ID, 0))
	defer n.Close()
	for bid, err := range n.Offers(patient(t)) {
		if err != nil || bid.Terms.GetCost() != 7 {
			t.Fatal(bid, err)
		}
		ok[*v1.Receipt](t)(n.Award(patient(t), bid, "thank you"))
		break
	}
	if ended := ok[*v1.Negotiation](t)(n.Ended(patient(t))); ended.GetWinnerId() != bob.ID() {
		t.Error(ended)
	}
	_, err := bob.ResumeNegotiation(patient(t), n.ID, 0)
	if err == nil {
		t.Error("bob did not ask for it")
	}
	other := ok[*Negotiation](t)(alice.Negotiate(patient(t), "all:"+kind, About{}, sums(patience)))
	defer other.Close()
	if state := ok[*v1.Negotiation](t)(other.Cancel(patient(t))); state.GetState() != v1.NegotiationState_NEGOTIATION_STATE_CANCELLED {
		t.Error(state)
	}
	if closed := ok[*v1.Negotiation](t)(other.Closed(patient(t))); closed.GetState() != v1.NegotiationState_NEGOTIATION_STATE_CANCELLED {
		t.Error(closed)
	}
	var ids []string
	for one, err := range alice.Negotiations(patient(t), &v1.ListNegotiationsRequest{AgentId: alice.ID()}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, one.GetNegotiationId())
	}
	if !slices.Equal(ids, []string{other.ID, n.ID}) {
		t.Error(ids)
	}
	_, err = alice.GetNegotiation(patient(t), newID())
	if err == nil {
		t.Error("there is none")
	}
}

func TestTheMandateOfAnAwardIsVerified(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	request := sums(patience)
	request.Handoff = report()
	mandate := ok[*v1.Envelope](t)(NewEnvelope(alice.ID(), bob.ID(), About{TaskID: "report-1", Epoch: 1}, request))
	SignEnvelope(mandate, alice.options.KeyID, alice.options.Key)
	award := &v1.Envelope{CorrelationId: mandate.GetMessageId(), TaskId: "report-1", Epoch: 1}
	check := func(award, mandate *v1.Envelope) error {
		return bob.verifyMandate(patient(t), award, &v1.NegotiationClosed{TaskRequest: mandate})
	}
	if err := check(award, mandate); err != nil {
		t.Error(err)
	}
	refusedHere(t, check(&v1.Envelope{CorrelationId: mandate.GetMessageId(), TaskId: "report-2", Epoch: 1}, mandate), "FIELD_INVALID")
	refusedHere(t, check(&v1.Envelope{CorrelationId: newID(), TaskId: "report-1", Epoch: 1}, mandate), "FIELD_INVALID")
	forged := proto.CloneOf(mandate)
	SignEnvelope(forged, alice.options.KeyID, bob.options.Key)
	refusedHere(t, check(award, forged), "SIGNATURE_INVALID")
	request.Handoff = nil
	bare := ok[*v1.Envelope](t)(NewEnvelope(alice.ID(), bob.ID(), About{TaskID: "report-1", Epoch: 1}, request))
	SignEnvelope(bare, alice.options.KeyID, alice.options.Key)
	award.CorrelationId = bare.GetMessageId()
	refusedHere(t, check(award, bare), "FIELD_INVALID")
}
