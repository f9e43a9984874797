package baton

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// The number of requests for offers that an agent remembers for later counter-offers.
const requestsRemembered = 1024

// OfferWanted is a request for an offer of this agent, or a counter-offer to the offer it has made. Handlers.Bid gets it.
type OfferWanted struct {
	// The negotiation's id.
	NegotiationID string
	// The agent that asks.
	RequesterID string
	// The request; nil for a counter-offer whose request an earlier process of this agent received.
	Request *v1.TaskRequest
	// The requester's counter-offer; nil for the request itself.
	Counter *v1.TaskOffer

	agent *Agent
}

// Offer makes an offer, in place of the one before, and sets its round. It fails with an Error: NEGOTIATION_CLOSED after
// the close, OFFER_NOT_STANDING if this agent is not on turn.
func (w *OfferWanted) Offer(ctx context.Context, offer *v1.TaskOffer) (*v1.Receipt, error) {
	offer = proto.CloneOf(offer)
	offer.Round = w.Counter.GetRound()
	return w.agent.Send(ctx, w.RequesterID, About{CorrelationID: w.NegotiationID}, offer)
}

// Withdraw withdraws this agent's offer, which ends its part. It fails as Offer.
func (w *OfferWanted) Withdraw(ctx context.Context) (*v1.Receipt, error) {
	return w.Offer(ctx, &v1.TaskOffer{Withdrawn: true})
}

type declineError struct{ *v1.TaskDecline }

func (e *declineError) Error() string {
	return fmt.Sprintf("baton: %s: %s", e.GetReason(), e.GetReasonText())
}

// Decline returns the error by which Handlers.Bid makes no offer. It ends this agent's part in the negotiation.
func Decline(reason v1.RejectReason, text string) error {
	return &declineError{&v1.TaskDecline{Reason: reason, ReasonText: clipped(text)}}
}

// requests are the latest requests for offers, by negotiation.
type requests struct {
	mu    sync.Mutex
	known map[string]*v1.TaskRequest
	order []string
}

func (r *requests) put(id string, request *v1.TaskRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known = map[string]*v1.TaskRequest{}
	}
	if r.known[id] == nil {
		r.order = append(r.order, id)
	}
	r.known[id] = request
	if len(r.order) > requestsRemembered {
		delete(r.known, r.order[0])
		r.order = r.order[1:]
	}
}

func (r *requests) get(id string) *v1.TaskRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[id]
}

// bid answers a request for offers, or a counter-offer, by the handler's offer or decline.
func (a *Agent) bid(ctx context.Context, d *Delivery, make func(context.Context, *OfferWanted) (*v1.TaskOffer, error)) error {
	id := negotiationOf(d)
	wanted := &OfferWanted{NegotiationID: id, RequesterID: d.Envelope.GetSenderId(), agent: a}
	if request, isRequest := d.Payload.(*v1.TaskRequest); isRequest {
		a.requests.put(id, request)
	} else {
		wanted.Counter = d.Payload.(*v1.TaskOffer)
	}
	wanted.Request = a.requests.get(id)
	if isAnswered, err := a.isBidAnswered(ctx, d, id); isAnswered || err != nil {
		return err
	}
	offer, err := make(ctx, wanted)
	var declined *declineError
	switch {
	case errors.As(err, &declined):
		_, err = a.Send(ctx, wanted.RequesterID, About{CorrelationID: id}, declined.TaskDecline)
	case err == nil && offer != nil:
		_, err = wanted.Offer(ctx, offer)
	}
	if isNegotiationOver(err) {
		a.options.Logger.Info("the negotiation has gone on without an offer", "negotiation_id", id, "error", err)
		return nil
	}
	return err
}

// isBidAnswered reports whether an earlier delivery was answered, or needs no answer any more.
func (a *Agent) isBidAnswered(ctx context.Context, d *Delivery, id string) (bool, error) {
	if d.Attempt < 2 {
		return false, nil
	}
	state, err := a.GetNegotiation(ctx, id)
	if isNegotiationOver(err) {
		return true, nil
	}
	if err != nil || state.GetState() != v1.NegotiationState_NEGOTIATION_STATE_OPEN {
		return err == nil, err
	}
	for _, bid := range state.GetBids() {
		if bid.GetAgentId() != a.ID() {
			continue
		}
		if _, isRequest := d.Payload.(*v1.TaskRequest); isRequest {
			return bid.GetState() != v1.BidState_BID_STATE_ASKED && bid.GetState() != v1.BidState_BID_STATE_UNREACHABLE, nil
		}
		isOpen := bid.GetState() == v1.BidState_BID_STATE_COUNTERED && bid.GetCounterOfferId() == d.Envelope.GetMessageId()
		return !isOpen, nil
	}
	return false, nil
}

// isCountered reports whether a TaskOffer counters an offer of this agent: then it has the round of the answer, 1 to 3, and
// its sender is the requester.
func (a *Agent) isCountered(ctx context.Context, d *Delivery) bool {
	if d.Payload.(*v1.TaskOffer).GetRound() == 0 {
		return false
	}
	id := negotiationOf(d)
	if a.requests.get(id) != nil {
		return true
	}
	state, err := a.GetNegotiation(ctx, id)
	return err == nil && state.GetRequesterId() != a.ID()
}

func (a *Agent) declineRequest(ctx context.Context, d *Delivery, decline *v1.TaskDecline) error {
	_, err := a.Send(ctx, d.Envelope.GetSenderId(), About{CorrelationID: negotiationOf(d)}, decline)
	if isNegotiationOver(err) {
		return nil
	}
	return err
}

// unclaimedOffer settles an offer that no call of this process waits for.
func (a *Agent) unclaimedOffer(ctx context.Context, d *Delivery) error {
	state, err := a.GetNegotiation(ctx, negotiationOf(d))
	isGone := err != nil && !isPassing(err)
	if isGone || err == nil && state.GetState() != v1.NegotiationState_NEGOTIATION_STATE_OPEN {
		return nil
	}
	return later(laterAfter, "no code of this agent waits for offers")
}

func negotiationOf(d *Delivery) string {
	if _, isRequest := d.Payload.(*v1.TaskRequest); isRequest {
		return d.Envelope.GetMessageId()
	}
	return d.Envelope.GetCorrelationId()
}
