package baton

import (
	"context"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Invite creates an invitation and returns its secret. The secret registers one new agent: agentID, or any id if
// agentID is empty. operatorToken is an operator's token.
func (a *Agent) Invite(ctx context.Context, operatorToken, agentID string, lifetime time.Duration) (string, error) {
	request := &v1.CreateInvitationRequest{AgentId: agentID, Lifetime: durationOf(lifetime)}
	answer, err := administer(ctx, a, operatorToken, a.agents.CreateInvitation, request)
	return answer.GetInvitation(), err
}

// AddKey adds a key to an agent. The keys in replaces stay valid for the grace. Like the calls below, it authenticates
// as an operator, or as this agent if operatorToken is empty, and returns the agent's updated registration.
func (a *Agent) AddKey(
	ctx context.Context, operatorToken, agentID string, key *v1.AgentKey, replaces []string, grace time.Duration,
) (*v1.Agent, error) {
	request := &v1.AddAgentKeyRequest{AgentId: agentID, Key: key, ReplacedKeyIds: replaces, Grace: durationOf(grace)}
	answer, err := administer(ctx, a, operatorToken, a.agents.AddAgentKey, request)
	return answer.GetAgent(), err
}

// RevokeKey revokes a key of an agent permanently: the broker refuses every signature made with it.
func (a *Agent) RevokeKey(ctx context.Context, operatorToken, agentID, keyID, reason string) (*v1.Agent, error) {
	request := &v1.RevokeAgentKeyRequest{AgentId: agentID, KeyId: keyID, ReasonText: reason}
	answer, err := administer(ctx, a, operatorToken, a.agents.RevokeAgentKey, request)
	return answer.GetAgent(), err
}

// VouchForKey adds an operator's voucher for a key of an agent: see Vouch.
func (a *Agent) VouchForKey(
	ctx context.Context, operatorToken, agentID, keyID string, voucher *v1.KeyVoucher,
) (*v1.Agent, error) {
	request := &v1.VouchForAgentKeyRequest{AgentId: agentID, KeyId: keyID, Voucher: voucher}
	answer, err := administer(ctx, a, operatorToken, a.agents.VouchForAgentKey, request)
	return answer.GetAgent(), err
}

// administer makes a unary call as an operator, or as this agent if the operator's token is empty.
func administer[Q, A any](
	ctx context.Context, a *Agent, operatorToken string,
	method func(context.Context, Q, ...grpc.CallOption) (A, error), request Q,
) (A, error) {
	if operatorToken == "" {
		return call(ctx, a, method, request)
	}
	answer, err := method(withToken(ctx, operatorToken), request)
	if err != nil {
		return answer, errorOf(ctx, err)
	}
	return answer, nil
}
