package baton

import (
	"context"
	"time"

	"google.golang.org/grpc"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Invite makes an invitation: whoever has it may register one new agent, agentID or any if that is empty. The token is an
// operator's. It returns the secret.
func (a *Agent) Invite(ctx context.Context, operatorToken, agentID string, lifetime time.Duration) (string, error) {
	request := &v1.CreateInvitationRequest{AgentId: agentID, Lifetime: durationOf(lifetime)}
	answer, err := administer(ctx, a, operatorToken, a.agents.CreateInvitation, request)
	return answer.GetInvitation(), err
}

// AddKey adds a key of an agent, or rotates one: the key ids that it replaces stay good for the grace. Like the calls
// below, it is made as an operator, or as this agent if operatorToken is empty, and returns the agent as it is now known.
func (a *Agent) AddKey(
	ctx context.Context, operatorToken, agentID string, key *v1.AgentKey, replaces []string, grace time.Duration,
) (*v1.Agent, error) {
	request := &v1.AddAgentKeyRequest{AgentId: agentID, Key: key, ReplacedKeyIds: replaces, Grace: durationOf(grace)}
	answer, err := administer(ctx, a, operatorToken, a.agents.AddAgentKey, request)
	return answer.GetAgent(), err
}

// RevokeKey revokes a key of an agent for good: nothing that is signed by it is taken any more.
func (a *Agent) RevokeKey(ctx context.Context, operatorToken, agentID, keyID, reason string) (*v1.Agent, error) {
	request := &v1.RevokeAgentKeyRequest{AgentId: agentID, KeyId: keyID, ReasonText: reason}
	answer, err := administer(ctx, a, operatorToken, a.agents.RevokeAgentKey, request)
	return answer.GetAgent(), err
}

// VouchForKey adds an operator's word for a key of an agent: see Vouch.
func (a *Agent) VouchForKey(
	ctx context.Context, operatorToken, agentID, keyID string, voucher *v1.KeyVoucher,
) (*v1.Agent, error) {
	request := &v1.VouchForAgentKeyRequest{AgentId: agentID, KeyId: keyID, Voucher: voucher}
	answer, err := administer(ctx, a, operatorToken, a.agents.VouchForAgentKey, request)
	return answer.GetAgent(), err
}

// administer makes a unary call as an operator, or as this agent if there is no token of one.
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
