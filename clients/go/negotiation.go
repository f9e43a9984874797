package baton

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const negotiationsPerPage = 200

// Negotiation is a request of this agent for offers of a piece of work. Negotiate and ResumeNegotiation return it. It
// takes its mail also without Serve, until Close. One goroutine at a time reads it, by Offers, Closed or HandOverToWinner.
type Negotiation struct {
	// The id, the message_id of the TaskRequest.
	ID string

	agent *Agent
	// The task and its epoch at this agent; empty without a task.
	about About
	mail  *conversation
	// Held by the reader.
	reading sync.Mutex
	seen    map[string]bool
	heard   []*Bid
	closed  *v1.Negotiation
}

// Bid is an offer of a bidder. It stands until the bidder replaces or withdraws it, or one side declines.
type Bid struct {
	// The bidder.
	AgentID string
	// The message_id of the offer.
	OfferID string
	// The terms. The conditions are empty if an earlier process of this agent has read the offer.
	Terms *v1.TaskOffer

	negotiation *Negotiation
}

// NegotiationFailedError says that a negotiation ended without a handoff.
type NegotiationFailedError struct {
	// The negotiation's id.
	NegotiationID string
	// The stable code, for example NO_OFFER; CANCELLED for a cancelled negotiation, SETTLED if its work is no task.
	Reason string
	// The explanation, for people.
	Message string
}

func (e *NegotiationFailedError) Error() string {
	return fmt.Sprintf("baton: %s: %s", e.Reason, e.Message)
}

// Negotiate asks agents for offers: one agent, "type:NAME" for one agent of the type, or "all:NAME" for all of them. With
// a task, about names it and its epoch, and an award moves it. It fails with an Error if the broker refuses the request:
// RECEIVER_UNKNOWN if no agent can be asked.
func (a *Agent) Negotiate(
	ctx context.Context, receiverID string, about About, request *v1.TaskRequest,
) (*Negotiation, error) {
	envelope, err := a.newEnvelope(ctx, receiverID, about, request)
	if err != nil {
		return nil, err
	}
	// Registered before the request is sent, for an offer may arrive before the receipt.
	n, err := a.negotiation(ctx, envelope.GetMessageId())
	if err != nil {
		return nil, err
	}
	n.about = About{TaskID: about.TaskID, Epoch: about.Epoch}
	if _, err := a.signAndSend(ctx, envelope); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// ResumeNegotiation continues a negotiation that an earlier process of this agent began: the offers that stand are heard
// again. epoch is that of the negotiation's task at this agent, 0 without a task.
func (a *Agent) ResumeNegotiation(ctx context.Context, negotiationID string, epoch uint64) (*Negotiation, error) {
	n, err := a.negotiation(ctx, negotiationID)
	if err != nil {
		return nil, err
	}
	state, err := n.State(ctx)
	if err == nil && state.GetRequesterId() != a.ID() {
		err = fmt.Errorf("baton: negotiation %s is not one that %s asked for", negotiationID, a.ID())
	}
	if err != nil {
		n.Close()
		return nil, err
	}
	n.about = About{TaskID: state.GetTaskId(), Epoch: epoch}
	n.hearStanding(state)
	if state.GetState() != v1.NegotiationState_NEGOTIATION_STATE_OPEN {
		n.closed = state
	}
	return n, nil
}

func (a *Agent) negotiation(ctx context.Context, id string) (*Negotiation, error) {
	mail, err := a.converse(ctx, ofNegotiation(id), 0)
	return &Negotiation{ID: id, agent: a, mail: mail, seen: map[string]bool{}}, err
}

// Close ends the reading of offers. The negotiation goes on at the broker.
func (n *Negotiation) Close() { n.mail.close() }

// State returns the negotiation as it is now.
func (n *Negotiation) State(ctx context.Context) (*v1.Negotiation, error) {
	return n.agent.GetNegotiation(ctx, n.ID)
}

// Offers iterates over the offers in the order of their arrival, until the negotiation accepts no further ones. A bidder
// that changes its offer appears once for each version.
// It ends with an error if the agent ends, ctx ends, or the broker refuses to show the negotiation.
func (n *Negotiation) Offers(ctx context.Context) iter.Seq2[*Bid, error] {
	return func(yield func(*Bid, error) bool) {
		for {
			bid, err := n.next(ctx)
			if err != nil {
				yield(nil, err)
				return
			}
			if bid == nil || !yield(bid, nil) {
				return
			}
		}
	}
}

// Closed waits until no further offers are taken, and returns the negotiation: DECIDING if this agent is to decide,
// AWARDED or SETTLED after an award, FAILED with the reason, or CANCELLED. Offers returns the offers before it later too.
func (n *Negotiation) Closed(ctx context.Context) (*v1.Negotiation, error) {
	n.reading.Lock()
	defer n.reading.Unlock()
	for n.closed == nil {
		if err := n.hear(ctx); err != nil {
			return nil, err
		}
	}
	return n.closed, nil
}

// Ended waits for the final state: an agent has the work (SETTLED), or none has it (FAILED, CANCELLED).
func (n *Negotiation) Ended(ctx context.Context) (*v1.Negotiation, error) {
	var last *v1.Negotiation
	for state, err := range n.agent.WatchNegotiation(ctx, n.ID) {
		if err != nil {
			return nil, err
		}
		last = state
	}
	return last, nil
}

// Award awards the work to an offer, as mail: no task moves. It fails with an Error: OFFER_NOT_STANDING if the bidder has
// replaced or withdrawn the offer, NEGOTIATION_CLOSED after the time for the decision.
func (n *Negotiation) Award(ctx context.Context, bid *Bid, details string) (*v1.Receipt, error) {
	receipt, err := n.tell(ctx, bid.AgentID, &v1.TaskAccept{OfferId: bid.OfferID, Details: clipped(details)})
	n.look(err)
	return receipt, err
}

// HandOver awards the task of the negotiation to an offer, and hands it over as Agent.HandOver: to the bidder, then to the
// fallback candidates of the terms. It fails as Agent.HandOver and Award.
func (n *Negotiation) HandOver(
	ctx context.Context, bid *Bid, terms *v1.HandoffRequest, sections ...*v1.ContextSection,
) (*HandedOver, error) {
	if err := checkContext(sections); err != nil {
		return nil, err
	}
	about := About{TaskID: n.about.TaskID, Epoch: n.about.Epoch, CorrelationID: n.ID}
	envelope, err := n.agent.newEnvelope(ctx, bid.AgentID, about, &v1.TaskAccept{OfferId: bid.OfferID, Handoff: terms})
	if err != nil {
		return nil, err
	}
	isLoan := terms.GetMode() == v1.HandoffMode_HANDOFF_MODE_DELEGATE
	done, err := n.agent.handOver(ctx, envelope, sections, isLoan)
	n.look(err)
	return done, err
}

// HandOverToWinner waits for the broker's award by the rule of the request, sends the context to the agent that accepts,
// and waits for the end of the handoff. It fails with a NegotiationFailedError if the negotiation ends without a handoff,
// NO_OFFER if no offer counts, and otherwise as Agent.HandOver.
func (n *Negotiation) HandOverToWinner(ctx context.Context, sections ...*v1.ContextSection) (*HandedOver, error) {
	if err := checkContext(sections); err != nil {
		return nil, err
	}
	closed, err := n.Closed(ctx)
	if err != nil {
		return nil, err
	}
	if closed.GetState() == v1.NegotiationState_NEGOTIATION_STATE_FAILED && closed.GetHandoffId() == "" {
		return nil, &NegotiationFailedError{n.ID, codeName(closed.GetErrorCode()), closed.GetErrorMessage()}
	}
	if closed.GetHandoffId() == "" {
		state := strings.TrimPrefix(closed.GetState().String(), "NEGOTIATION_STATE_")
		return nil, &NegotiationFailedError{n.ID, state, "the broker has opened no handoff"}
	}
	return n.agent.ResumeHandOver(ctx, closed.GetHandoffId(), sections...)
}

// Cancel cancels the negotiation, and returns it. The bidders are told. It fails with an Error, NEGOTIATION_CLOSED, after
// an award or the end: Agent.Cancel cancels the handoff of an award.
func (n *Negotiation) Cancel(ctx context.Context) (*v1.Negotiation, error) {
	state, err := n.agent.CancelNegotiation(ctx, n.ID)
	n.look(err)
	return state, err
}

// look lets the reader look at a negotiation that this agent has closed, about which no mail comes.
func (n *Negotiation) look(err error) {
	var failed *HandoffFailedError
	if err == nil || errors.As(err, &failed) {
		n.mail.fail(errNoMail)
	}
}

// Counter makes a counter-offer, which begins the next round, and sets its round. The bidder's answer is a further offer.
// It fails with an Error: ROUND_LIMIT after three rounds, OFFER_NOT_STANDING while the bidder is on turn,
// NEGOTIATION_CLOSED.
func (b *Bid) Counter(ctx context.Context, counter *v1.TaskOffer) (*v1.Receipt, error) {
	counter = proto.CloneOf(counter)
	counter.Round = b.Terms.GetRound() + 1
	return b.negotiation.tell(ctx, b.AgentID, counter)
}

// Decline declines the offer, which ends the bidder's part. It fails as Counter.
func (b *Bid) Decline(ctx context.Context, reason v1.RejectReason, text string) (*v1.Receipt, error) {
	return b.negotiation.tell(ctx, b.AgentID, &v1.TaskDecline{Reason: reason, ReasonText: clipped(text)})
}

func (n *Negotiation) tell(ctx context.Context, agentID string, payload proto.Message) (*v1.Receipt, error) {
	return n.agent.Send(ctx, agentID, About{CorrelationID: n.ID}, payload)
}

// next returns the next offer, or nil after the close.
func (n *Negotiation) next(ctx context.Context) (*Bid, error) {
	n.reading.Lock()
	defer n.reading.Unlock()
	for len(n.heard) == 0 && n.closed == nil {
		if err := n.hear(ctx); err != nil {
			return nil, err
		}
	}
	if len(n.heard) == 0 {
		return nil, nil
	}
	bid := n.heard[0]
	n.heard = n.heard[1:]
	return bid, nil
}

// hear takes one letter, or looks at the negotiation after a silence: another process may have had the mail.
func (n *Negotiation) hear(ctx context.Context) error {
	l, err := n.mail.nextWithin(ctx, n.agent.lookAfter)
	if err != nil && !errors.Is(err, errNoMail) {
		return err
	}
	if err == nil {
		if offer, isOffer := l.Payload.(*v1.TaskOffer); isOffer && !offer.GetWithdrawn() {
			n.offered(&Bid{l.Envelope.GetSenderId(), l.Envelope.GetMessageId(), offer, n})
		}
		l.tell(nil)
		switch l.Payload.(type) {
		case *v1.NegotiationClosed, *v1.ErrorNotification:
		default:
			return nil
		}
	}
	state, err := n.State(ctx)
	switch {
	case isPassing(err):
		return sleep(ctx, reconnectFirst)
	case err != nil:
		return err
	case state.GetState() != v1.NegotiationState_NEGOTIATION_STATE_OPEN:
		n.hearStanding(state)
		n.closed, n.mail.isOver = state, true
	}
	return nil
}

func (n *Negotiation) offered(bid *Bid) {
	if !n.seen[bid.OfferID] {
		n.seen[bid.OfferID] = true
		n.heard = append(n.heard, bid)
	}
}

// hearStanding hears the offers that stand, without their conditions, unless they were heard before.
func (n *Negotiation) hearStanding(state *v1.Negotiation) {
	for _, bid := range state.GetBids() {
		if bid.GetState() != v1.BidState_BID_STATE_OFFERED && bid.GetState() != v1.BidState_BID_STATE_COUNTERED {
			continue
		}
		n.offered(&Bid{bid.GetAgentId(), bid.GetOfferId(), &v1.TaskOffer{
			Confidence: bid.GetConfidence(), EstimatedDuration: bid.GetEstimatedDuration(), Cost: bid.GetCost(),
			Round: bid.GetRound(), ValidUntil: bid.GetValidUntil(),
		}, n})
	}
}

// GetNegotiation returns a negotiation. A bidder sees its own bid alone. It fails with an Error: NEGOTIATION_UNKNOWN, or
// PERMISSION_DENIED.
func (a *Agent) GetNegotiation(ctx context.Context, negotiationID string) (*v1.Negotiation, error) {
	request := &v1.GetNegotiationRequest{NegotiationId: negotiationID}
	answer, err := call(ctx, a, a.negotiations.GetNegotiation, request)
	return answer.GetNegotiation(), err
}

// Negotiations iterates over the negotiations that match the request's filters, newest first and without their bids. It
// sets the request's page_token, reads page by page, and ends with an error if a page cannot be read.
func (a *Agent) Negotiations(ctx context.Context, request *v1.ListNegotiationsRequest) iter.Seq2[*v1.Negotiation, error] {
	asked := &v1.ListNegotiationsRequest{
		AgentId: request.GetAgentId(), States: request.GetStates(),
		PageSize: orElse(request.GetPageSize(), negotiationsPerPage),
	}
	return pages(func(token string) ([]*v1.Negotiation, string, error) {
		asked.PageToken = token
		page, err := call(ctx, a, a.negotiations.ListNegotiations, asked)
		return page.GetNegotiations(), page.GetNextPageToken(), err
	})
}

// CancelNegotiation cancels a negotiation of this agent in state OPEN or DECIDING, and returns it. It fails with an Error:
// NEGOTIATION_CLOSED after an award or the end, NOT_ASKED for a bidder.
func (a *Agent) CancelNegotiation(ctx context.Context, negotiationID string) (*v1.Negotiation, error) {
	request := &v1.CancelNegotiationRequest{NegotiationId: negotiationID}
	answer, err := call(ctx, a, a.negotiations.CancelNegotiation, request)
	return answer.GetNegotiation(), err
}

// WatchNegotiation follows a negotiation: its present state, then its state after each step, until it is final, also over
// lost connections and restarts of the broker. After one the states between are missing. The iteration ends after the
// final state, or with an error: the cause of ctx, Agent.Err, or the broker's refusal.
func (a *Agent) WatchNegotiation(ctx context.Context, negotiationID string) iter.Seq2[*v1.Negotiation, error] {
	return func(yield func(*v1.Negotiation, error) bool) {
		request := &v1.WatchNegotiationRequest{NegotiationId: negotiationID}
		var last *v1.Negotiation
		err := follow(ctx, a, stream[v1.WatchNegotiationResponse]{
			open: func(ctx context.Context) (grpc.ServerStreamingClient[v1.WatchNegotiationResponse], error) {
				return a.negotiations.WatchNegotiation(a.Authorize(ctx), request)
			},
			take: func(update *v1.WatchNegotiationResponse) (bool, error) {
				if proto.Equal(last, update.GetNegotiation()) {
					return true, nil // a call that was opened again
				}
				last = update.GetNegotiation()
				return yield(last, nil) && !isFinalNegotiation(last), nil
			},
			isOver: func(context.Context) (bool, error) { return isFinalNegotiation(last), nil },
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

func isFinalNegotiation(negotiation *v1.Negotiation) bool {
	switch negotiation.GetState() {
	case v1.NegotiationState_NEGOTIATION_STATE_SETTLED, v1.NegotiationState_NEGOTIATION_STATE_FAILED,
		v1.NegotiationState_NEGOTIATION_STATE_CANCELLED:
		return true
	}
	return false
}

// isNegotiationOver reports whether the broker refuses because the negotiation, or this agent's part in it, has ended.
func isNegotiationOver(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && slices.Contains(
		[]string{"NEGOTIATION_CLOSED", "NEGOTIATION_UNKNOWN", "OFFER_NOT_STANDING", "NOT_ASKED", "PERMISSION_DENIED"},
		refused.Reason)
}

// mandateOf returns the request under whose mandate the broker awards; nil without a mandate.
func mandateOf(closed *v1.NegotiationClosed) *v1.TaskRequest {
	if closed.GetTaskRequest() == nil {
		return nil
	}
	payload, err := PayloadOf(closed.GetTaskRequest())
	if err != nil {
		return nil // verifyMandate refuses it
	}
	request, _ := payload.(*v1.TaskRequest)
	return request
}

// verifyMandate verifies the requester's mandate in an award. Without it the broker could ask in any agent's name.
func (a *Agent) verifyMandate(ctx context.Context, award *v1.Envelope, closed *v1.NegotiationClosed) error {
	mandate := closed.GetTaskRequest()
	if mandate == nil {
		return nil
	}
	if err := a.verifySender(ctx, mandate); err != nil {
		return err
	}
	isOfAward := mandate.GetMessageId() == award.GetCorrelationId() && mandate.GetTaskId() == award.GetTaskId() &&
		mandate.GetEpoch() == award.GetEpoch() && mandateOf(closed).GetHandoff() != nil
	if !isOfAward {
		return &VerificationError{"FIELD_INVALID", "the mandate of an award is of another negotiation or task"}
	}
	return nil
}
