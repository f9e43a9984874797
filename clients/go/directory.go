package baton

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const agentsPerPage = 200

// ListProcesses returns the processes of an agent that have an open session, in the order in which they came, at most 100.
// Each names at most 20 tasks that it works on, without those that this agent may not see. The error is an Error,
// AGENT_UNKNOWN, for an id that is not registered.
func (a *Agent) ListProcesses(ctx context.Context, agentID string) ([]*v1.Process, error) {
	answer, err := call(ctx, a, a.agents.ListProcesses, &v1.ListProcessesRequest{AgentId: agentID})
	return answer.GetProcesses(), err
}

// FindAgents iterates over the agents that fit a piece of work, best first. It asks no agent. It sets the request's
// page_token, reads page by page, and ends with an error if a page cannot be read: FIELD_INVALID for a field out of its
// bounds, SENDER_MISMATCH if the agent searches as another one. The order may change between two pages; an agent that
// moves back then occurs twice. Explain returns the reasons for a rank.
func (a *Agent) FindAgents(ctx context.Context, request *v1.FindAgentsRequest) iter.Seq2[*v1.AgentMatch, error] {
	asked := proto.CloneOf(request)
	asked.PageSize = orElse(asked.GetPageSize(), agentsPerPage)
	return pages(func(token string) ([]*v1.AgentMatch, string, error) {
		asked.PageToken = token
		page, err := call(ctx, a, a.agents.FindAgents, asked)
		return page.GetMatches(), page.GetNextPageToken(), err
	})
}

// Explain returns the reasons for the rank of an agent, for a person to read: one line for the agent, and one for each
// factor of its score.
func Explain(match *v1.AgentMatch) string {
	full := ""
	if match.GetLoad().GetIsFull() {
		full = ", full"
	}
	var text strings.Builder
	presence := strings.TrimPrefix(match.GetPresence().String(), "PRESENCE_")
	fmt.Fprintf(&text, "%d. %s: %.3f, %s%s", match.GetRank(), match.GetAgentId(), match.GetScore(), presence, full)
	for _, factor := range match.GetFactors() {
		part := factor.GetValue() * factor.GetWeight()
		fmt.Fprintf(&text, "\n   %-14s %.2f x %.2f = %.3f  %s",
			factor.GetName(), factor.GetValue(), factor.GetWeight(), part, factor.GetText())
	}
	return text.String()
}

// ListAgents iterates over the agents that match the request's filters, in the order of their ids. It sets the request's
// page_token, reads page by page, and ends with an error if a page cannot be read.
func (a *Agent) ListAgents(ctx context.Context, request *v1.ListAgentsRequest) iter.Seq2[*v1.Agent, error] {
	asked := proto.CloneOf(request)
	asked.PageSize = orElse(asked.GetPageSize(), agentsPerPage)
	return pages(func(token string) ([]*v1.Agent, string, error) {
		asked.PageToken = token
		page, err := call(ctx, a, a.agents.ListAgents, asked)
		return page.GetAgents(), page.GetNextPageToken(), err
	})
}

// UpdateAgent replaces fields of an agent's card: agent_types, description, skills, capacity, metadata or decides_within;
// all of them if none is named. card.agent_id names the agent. With an etag, that of GetAgent, the call fails with an Error, CONFLICT,
// if the agent has changed since; an empty one applies to any version. Another field is refused with FIELD_INVALID. The
// call authenticates as an operator, or as this agent if operatorToken is empty, and returns the updated registration.
func (a *Agent) UpdateAgent(
	ctx context.Context, operatorToken string, card *v1.AgentCard, etag string, fields ...string,
) (*v1.Agent, error) {
	request := &v1.UpdateAgentRequest{Card: card, Etag: etag}
	if len(fields) > 0 {
		request.UpdateMask = &fieldmaskpb.FieldMask{Paths: fields}
	}
	answer, err := administer(ctx, a, operatorToken, a.agents.UpdateAgent, request)
	return answer.GetAgent(), err
}

// DeregisterAgent removes an agent permanently: its keys are revoked, its sessions end, and its id is never used again.
// It fails with an Error, AGENT_BUSY, if the agent owns open tasks or takes part in open handoffs, unless force is true.
// reason has at most 1024 bytes, for the audit log. It authenticates as UpdateAgent does. A repetition has no effect.
func (a *Agent) DeregisterAgent(
	ctx context.Context, operatorToken, agentID, reason string, force bool,
) (*v1.Agent, error) {
	request := &v1.DeregisterAgentRequest{AgentId: agentID, Force: force, ReasonText: reason}
	answer, err := administer(ctx, a, operatorToken, a.agents.DeregisterAgent, request)
	return answer.GetAgent(), err
}

// WatchAgents follows the directory: the agents that changed after the request's cursor, or all of them for 0, then one
// caught_up, then each change. It opens the watch again after a lost connection and a restart of the broker, and goes on
// after the last cursor, so that no change is missed; of several changes of one agent the last may come alone. A later
// process goes on from the cursor of the last event that it handled. The iteration has no end of its own: it ends with
// the cause of ctx, with Agent.Err, or with the broker's refusal.
func (a *Agent) WatchAgents(ctx context.Context, request *v1.WatchAgentsRequest) iter.Seq2[*v1.WatchAgentsResponse, error] {
	asked := proto.CloneOf(request)
	open := func(ctx context.Context) (grpc.ServerStreamingClient[v1.WatchAgentsResponse], error) {
		return a.agents.WatchAgents(a.Authorize(ctx), asked)
	}
	return followChanges(ctx, a, &asked.AfterCursor, open)
}
