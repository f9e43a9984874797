package baton

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// skilled returns an agent of this type with this skill.
func skilled(t *testing.T, b *broker, name, agentType, skill string) *Agent {
	t.Helper()
	options := b.options(t, name)
	options.Card = &v1.AgentCard{AgentTypes: []string{agentType}, Skills: []*v1.AgentSkill{{Name: skill}}, Capacity: 4}
	return connected(t, options)
}

func TestAgentsAreFoundBestFirstAndWithReasons(t *testing.T) {
	kind := unique("support")
	router := skilled(t, shared, "router", kind, "network.routers")
	printer := skilled(t, shared, "printer", kind, "office.printers")
	alice := shared.agent(t, "alice")
	find := func(request *v1.FindAgentsRequest) (ids []string, explained string) {
		for match, err := range alice.FindAgents(patient(t), request) {
			if err != nil {
				t.Fatal(err)
			}
			ids, explained = append(ids, match.GetAgentId()), explained+Explain(match)+"\n"
		}
		return ids, explained
	}
	request := &v1.FindAgentsRequest{AgentType: kind, PreferredSkills: []string{"network.routers"}, PageSize: 1}
	ids, explained := find(request)
	if !slices.Equal(ids, []string{router.ID(), printer.ID()}) || !strings.Contains(explained, "skill cover") {
		t.Errorf("%v\n%s", ids, explained)
	}
	if request.GetPageToken() != "" {
		t.Error("the request was changed")
	}
	if ids, _ := find(&v1.FindAgentsRequest{AgentType: kind, RequiredSkills: []string{"office.scanners"}}); len(ids) > 0 {
		t.Error(ids)
	}
	for _, err := range alice.FindAgents(patient(t), &v1.FindAgentsRequest{AsSenderId: router.ID()}) {
		refused(t, err, "SENDER_MISMATCH")
	}
	for _, err := range alice.FindAgents(patient(t), &v1.FindAgentsRequest{RequiredSkills: make([]string, 33)}) {
		refused(t, err, "FIELD_INVALID")
	}
}

func TestAnExplanationHasALineForEachFactor(t *testing.T) {
	match := &v1.AgentMatch{
		AgentId: "bob", Rank: 1, Score: 0.5875, Presence: v1.Presence_PRESENCE_ALIVE,
		Factors: []*v1.MatchFactor{
			{Name: "skill cover", Value: 1, Weight: 0.4, Text: "1 of 1 skills"},
			{Name: "free capacity", Value: 0.75, Weight: 0.25, Text: "1 of 4 in use"},
		},
		Load: &v1.AgentLoad{IsFull: true},
	}
	expected := "1. bob: 0.588, ALIVE, full\n" +
		"   skill cover    1.00 x 0.40 = 0.400  1 of 1 skills\n" +
		"   free capacity  0.75 x 0.25 = 0.188  1 of 4 in use"
	if text := Explain(match); text != expected {
		t.Errorf("%s", text)
	}
}

func TestACardChangesByFieldAndEtag(t *testing.T) {
	kind := unique("support")
	bob := skilled(t, shared, "bob", kind, "network.routers")
	before := ok[*v1.Agent](t)(bob.GetAgent(patient(t), bob.ID()))
	card := &v1.AgentCard{AgentId: bob.ID(), Description: "knows routers"}
	after := ok[*v1.Agent](t)(bob.UpdateAgent(patient(t), "", card, before.GetEtag(), "description"))
	if after.GetCard().GetDescription() != "knows routers" || !slices.Equal(after.GetCard().GetAgentTypes(), []string{kind}) {
		t.Error(after)
	}
	_, err := bob.UpdateAgent(patient(t), "", card, before.GetEtag(), "description")
	refused(t, err, "CONFLICT")
	slow := &v1.AgentCard{AgentId: bob.ID(), DecidesWithin: durationpb.New(8 * time.Hour)}
	after = ok[*v1.Agent](t)(bob.UpdateAgent(patient(t), "", slow, "", "decides_within"))
	if after.GetCard().GetDecidesWithin().AsDuration() != 8*time.Hour {
		t.Error(after)
	}
	slow.DecidesWithin = durationpb.New(8 * 24 * time.Hour)
	_, err = bob.UpdateAgent(patient(t), "", slow, "", "decides_within")
	refused(t, err, "FIELD_INVALID")
	_, err = bob.UpdateAgent(patient(t), "", card, "", "keys")
	refused(t, err, "FIELD_INVALID")
	alice := shared.agent(t, "alice")
	_, err = alice.UpdateAgent(patient(t), "", card, "", "description")
	refused(t, err, "PERMISSION_DENIED")
	ok[*v1.Agent](t)(alice.UpdateAgent(patient(t), shared.operatorToken(t), card, "", "description"))
}

func TestABusyAgentIsDeregisteredByForceOnly(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), unique("ticket"), 1, supportRequest()))
	token := shared.operatorToken(t)
	_, err := alice.DeregisterAgent(patient(t), token, bob.ID(), "gone", false)
	refused(t, err, "AGENT_BUSY")
	gone := ok[*v1.Agent](t)(alice.DeregisterAgent(patient(t), token, bob.ID(), "gone", true))
	if gone.GetDeregisterTime() == nil {
		t.Error(gone)
	}
	again := ok[*v1.Agent](t)(alice.DeregisterAgent(patient(t), token, bob.ID(), "gone", false))
	if !proto.Equal(again.GetDeregisterTime(), gone.GetDeregisterTime()) {
		t.Error(again)
	}
	var ids []string
	for agent, err := range alice.ListAgents(patient(t), &v1.ListAgentsRequest{PageSize: 3}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, agent.GetCard().GetAgentId())
	}
	if !slices.Contains(ids, alice.ID()) || slices.Contains(ids, bob.ID()) || !slices.IsSorted(ids) {
		t.Error(ids)
	}
}

// cards follows the cards of the agents, and sends each event.
func cards(t *testing.T, ctx context.Context, agent *Agent, request *v1.WatchAgentsRequest) (<-chan *v1.WatchAgentsResponse, <-chan error) {
	t.Helper()
	events, ended := make(chan *v1.WatchAgentsResponse, 64), make(chan error, 1)
	go func() {
		for event, err := range agent.WatchAgents(ctx, request) {
			if err != nil {
				ended <- err
				return
			}
			events <- event
		}
	}()
	return events, ended
}

func TestAWatchOfTheDirectoryGoesOnAfterARestart(t *testing.T) {
	b, kind := newBroker(t, ""), unique("support")
	alice, bob := b.agent(t, "alice"), skilled(t, b, "bob", kind, "network.routers")
	ctx, cancel := context.WithCancel(patient(t))
	events, ended := cards(t, ctx, alice, &v1.WatchAgentsRequest{AgentType: kind, CardsOnly: true})
	if first := await(t, events); first.GetAgent().GetCard().GetAgentId() != bob.ID() {
		t.Fatal(first)
	}
	if second := await(t, events); !second.GetCaughtUp() {
		t.Fatal(second)
	}
	b.kill()
	b.restart(t)
	carol := skilled(t, b, "carol", kind, "network.routers")
	third := await(t, events)
	if third.GetAgent().GetCard().GetAgentId() != carol.ID() { // neither bob nor caught_up again
		t.Fatal(third)
	}
	card := &v1.AgentCard{AgentId: bob.ID(), AgentTypes: []string{"other"}}
	_, err := bob.UpdateAgent(patient(t), "", card, "", "agent_types")
	for isPassing(err) { // bob may not have noticed the restart
		time.Sleep(20 * time.Millisecond)
		_, err = bob.UpdateAgent(patient(t), "", card, "", "agent_types")
	}
	if err != nil {
		t.Fatal(err)
	}
	if left := await(t, events); left.GetLeftAgentId() != bob.ID() {
		t.Fatal(left)
	}
	cancel()
	if err := await(t, ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	later, _ := cards(t, patient(t), carol, &v1.WatchAgentsRequest{AgentType: kind, CardsOnly: true, AfterCursor: third.GetCursor()})
	if left := await(t, later); left.GetLeftAgentId() != bob.ID() {
		t.Fatal(left)
	}
}

func TestAWatchEndsWithItsAgent(t *testing.T) {
	alice := shared.agent(t, "alice")
	events, ended := cards(t, patient(t), alice, &v1.WatchAgentsRequest{CardsOnly: true})
	await(t, events)
	time.AfterFunc(0, func() { _ = alice.Close() })
	if err := await(t, ended); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
