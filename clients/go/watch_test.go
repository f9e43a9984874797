package baton

import (
	"context"
	"iter"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Lists and watches of tasks and handoffs, and what operators do with them.

// collect returns the names of what an iteration gives.
func collect[T any](t *testing.T, all iter.Seq2[T, error], name func(T) string) []string {
	t.Helper()
	var names []string
	for one, err := range all {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name(one))
	}
	return names
}

func TestALoanShowsTheReportsOfItsDelegateInOrder(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	takes(t, bob, func(ctx context.Context, task *OwnedTask) error {
		for _, details := range []string{"one", "two", "three"} {
			if _, err := task.Report(ctx, details); err != nil {
				return err
			}
		}
		update := &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_IN_PROGRESS, Progress: proto.Float64(0.5), Details: "four"}
		if _, err := task.Update(ctx, update); err != nil {
			return err
		}
		_, err := task.Finish(ctx, nil, "five")
		return err
	})
	for range 2 { // the second loan shows nothing of the first
		var shown []string
		progress := 0.0
		ctx := WithProgress(patient(t), func(update *v1.TaskStatusUpdate) {
			shown = append(shown, update.GetDetails())
			progress = update.GetProgress()
		})
		outcome := ok[*Outcome](t)(alice.Delegate(ctx, bob.ID(), unique("ticket"), 1, supportRequest(), goals(t)))
		if !slices.Equal(shown, []string{"one", "two", "three", "four"}) || progress != 0.5 || outcome.Details != "five" {
			t.Error(shown, progress, outcome)
		}
	}
}

func TestATaskIsWatchedOverARestart(t *testing.T) {
	b := newBroker(t, "")
	alice, bob, ticket := b.agent(t, "alice"), b.agent(t, "bob"), unique("ticket")
	handlers, owned := taking()
	serve(t, bob, handlers)
	ok[*HandedOver](t)(alice.HandOver(patient(t), bob.ID(), ticket, 1, supportRequest(), goals(t)))
	task := await(t, owned)
	numbers, ended := make(chan uint64, 64), make(chan error, 1)
	go func() {
		defer close(ended)
		for update, err := range alice.WatchTask(patient(t), ticket, 0) {
			if err != nil {
				ended <- err
				return
			}
			numbers <- update.GetEntry().GetEntry().GetNumber()
		}
	}()
	await(t, numbers)
	b.kill()
	b.restart(t)
	ok[*v1.Receipt](t)(task.Finish(patient(t), nil, ""))
	if err := await(t, ended); err != nil {
		t.Fatal(err)
	}
	length := ok[*v1.Task](t)(alice.GetTask(patient(t), ticket)).GetCustodyLength()
	for number := uint64(2); number <= length; number++ {
		if found := await(t, numbers); found != number {
			t.Fatal(found, number)
		}
	}
	if len(numbers) > 0 {
		t.Error(len(numbers))
	}
	for update, err := range alice.WatchTask(patient(t), ticket, length) { // nothing is left: it ends
		t.Error(update, err)
	}
}

func TestAHandoffIsWatchedToItsEndOverARestart(t *testing.T) {
	b := newBroker(t, "")
	alice, bob := b.agent(t, "alice"), b.agent(t, "bob")
	handoffID := ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), unique("ticket"), 1, supportRequest())).GetHandoffId()
	states, ended := make(chan v1.HandoffState, 64), make(chan error, 1)
	go func() {
		defer close(ended)
		for handoff, err := range alice.WatchHandoff(patient(t), handoffID) {
			if err != nil {
				ended <- err
				return
			}
			states <- handoff.GetState()
		}
	}()
	await(t, states)
	b.kill()
	b.restart(t)
	ok[*v1.Agent](t)(persistGet(patient(t), alice))
	ok[*v1.Receipt](t)(alice.Cancel(patient(t), handoffID, "enough"))
	if err := await(t, ended); err != nil {
		t.Fatal(err)
	}
	last := v1.HandoffState_HANDOFF_STATE_UNSPECIFIED
	for len(states) > 0 {
		last = <-states
	}
	if last != v1.HandoffState_HANDOFF_STATE_CANCELLED {
		t.Error(last)
	}
}

func TestAllHandoffsAreWatchedFromACursorOverARestart(t *testing.T) {
	b := newBroker(t, "")
	alice, bob := b.agent(t, "alice"), b.agent(t, "bob")
	request := func() string {
		return ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), unique("ticket"), 1, supportRequest())).GetHandoffId()
	}
	first := request()
	ctx, stop := context.WithCancel(patient(t))
	defer stop()
	type seen struct {
		id         string
		isCaughtUp bool
		cursor     uint64
	}
	events := make(chan seen, 64)
	follow := func(ctx context.Context, after uint64) {
		for event, err := range alice.WatchHandoffs(ctx, &v1.WatchHandoffsRequest{AfterCursor: after, SenderId: alice.ID()}) {
			if err != nil {
				return
			}
			events <- seen{event.GetHandoff().GetHandoffId(), event.GetCaughtUp(), event.GetCursor()}
		}
	}
	go follow(ctx, 0)
	if one := await(t, events); one.id != first {
		t.Error(one)
	}
	if one := await(t, events); !one.isCaughtUp {
		t.Error(one)
	}
	b.kill()
	b.restart(t)
	second := request()
	var cursor uint64
	for one := (seen{}); one.id != second; {
		one = await(t, events)
		if one.isCaughtUp {
			t.Error("caught up twice")
		}
		cursor = one.cursor
	}
	stop()
	third := request()
	later, end := context.WithCancel(patient(t))
	defer end()
	go follow(later, cursor)
	for one := (seen{}); one.id != third; {
		one = await(t, events)
		if one.id == first {
			t.Error("an earlier change")
		}
	}
}

func TestListsOfTasksAndHandoffsHaveAllPages(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	var tasks, handoffs []string
	for range 5 {
		ticket := unique("ticket")
		receipt := ok[*v1.Receipt](t)(alice.RequestHandoff(patient(t), bob.ID(), ticket, 1, supportRequest()))
		tasks, handoffs = append(tasks, ticket), append(handoffs, receipt.GetHandoffId())
	}
	slices.Reverse(tasks)
	slices.Reverse(handoffs)
	taskID, handoffID := (*v1.Task).GetTaskId, (*v1.Handoff).GetHandoffId
	list := &v1.ListTasksRequest{OwnerId: alice.ID(), PageSize: 2}
	if found := collect(t, alice.ListTasks(patient(t), list), taskID); !slices.Equal(found, tasks) {
		t.Error(found)
	}
	list.Statuses = []v1.TaskStatus{v1.TaskStatus_TASK_STATUS_COMPLETED}
	if found := collect(t, alice.ListTasks(patient(t), list), taskID); len(found) > 0 {
		t.Error(found)
	}
	open := &v1.ListHandoffsRequest{SenderId: alice.ID(), OpenOnly: true, PageSize: 2}
	if found := collect(t, alice.ListHandoffs(patient(t), open), handoffID); !slices.Equal(found, handoffs) {
		t.Error(found)
	}
	one := &v1.ListHandoffsRequest{TaskId: tasks[0], DeadlineBefore: timestamppb.New(time.Now().Add(time.Hour))}
	if found := collect(t, alice.ListHandoffs(patient(t), one), handoffID); !slices.Equal(found, handoffs[:1]) {
		t.Error(found)
	}
	for _, err := range alice.ListTasks(patient(t), &v1.ListTasksRequest{OwnerId: "!"}) {
		refused(t, err, "FIELD_INVALID")
	}
}

func TestAnOperatorReassignsATask(t *testing.T) {
	alice, bob, carol := shared.agent(t, "alice"), shared.agent(t, "bob"), shared.agent(t, "carol")
	task := ownedBy(t, alice, bob.ID(), Handlers{})
	handlers, owned := taking()
	serve(t, carol, handlers)
	_, _, err := alice.ReassignTask(patient(t), "", task.TaskID, 1, carol.ID(), "")
	refused(t, err, "PERMISSION_DENIED")
	operator := shared.operatorToken(t)
	_, _, err = alice.ReassignTask(patient(t), operator, task.TaskID, 7, carol.ID(), "")
	refused(t, err, "EPOCH_AHEAD")
	seized, handoff, err := alice.ReassignTask(patient(t), operator, task.TaskID, 1, carol.ID(), "she is ill")
	if err != nil || seized.GetOwnerId() != "baton.coordinator" || handoff.GetCandidateId() != carol.ID() {
		t.Fatal(seized, handoff, err)
	}
	if one := await(t, owned); one.TaskID != task.TaskID {
		t.Error(one.TaskID)
	}
	actions := collect(t, alice.AuditLog(patient(t), operator, 0), func(entry *v1.AuditEntry) string {
		return entry.GetAction().String() + " " + entry.GetSubject()
	})
	if !slices.Contains(actions, "AUDIT_ACTION_TASK_REASSIGNED "+task.TaskID) {
		t.Error(actions)
	}
	later := collect(t, alice.AuditLog(patient(t), operator, 1), func(entry *v1.AuditEntry) string { return entry.GetActor() })
	if len(later) != len(actions)-1 {
		t.Error(len(later), len(actions))
	}
	for _, err := range alice.AuditLog(patient(t), "", 0) {
		refused(t, err, "PERMISSION_DENIED")
	}
}

func TestAChangedAuditLogIsNoticed(t *testing.T) {
	var chain auditChain
	chain.head = make([]byte, 32)
	entry := func(number uint64, head []byte) *v1.AuditLogEntry {
		text := ok[[]byte](t)(proto.Marshal(&v1.AuditEntry{Number: number, Actor: "the broker"}))
		return &v1.AuditLogEntry{EntryBytes: text, ChainHash: AuditHash(head, text)}
	}
	first := entry(1, chain.head)
	ok[*v1.AuditEntry](t)(chain.next(first))
	for _, wrong := range []*v1.AuditLogEntry{entry(3, first.GetChainHash()), entry(2, make([]byte, 32)), {EntryBytes: []byte{1}}} {
		if _, err := chain.next(wrong); err == nil {
			t.Error(wrong)
		}
	}
	ok[*v1.AuditEntry](t)(chain.next(entry(2, first.GetChainHash())))
}

func TestDeadLettersAreReadRedrivenAndDiscarded(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	operator, isPoison := shared.operatorToken(t), make(chan bool, 1)
	isPoison <- true
	came := make(chan string, 8)
	serve(t, bob, Handlers{Info: func(_ context.Context, _ *Delivery, info *v1.Info) error {
		select {
		case <-isPoison:
			return Poison(context.Canceled)
		default:
			came <- info.GetText()
			return nil
		}
	}})
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("one")))
	filter := &v1.DeadLetterFilter{AgentId: bob.ID()}
	letterID := (*v1.DeadLetter).GetDeadLetterId
	parked := func(count int) []string {
		for {
			if ids := collect(t, bob.ListDeadLetters(patient(t), "", filter), letterID); len(ids) == count {
				return ids
			}
		}
	}
	ids := parked(1)
	letter := ok[*v1.DeadLetter](t)(bob.GetDeadLetter(patient(t), "", ids[0]))
	if letter.GetSenderId() != alice.ID() {
		t.Error(letter)
	}
	_, err := bob.RedriveDeadLetter(patient(t), "", ids[0], "")
	refused(t, err, "PERMISSION_DENIED")
	ok[*v1.DeadLetter](t)(bob.RedriveDeadLetter(patient(t), operator, ids[0], ""))
	if text := await(t, came); text != "one" {
		t.Error(text)
	}
	isPoison <- true
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("two")))
	parked(1)
	exported := collect(t, bob.ExportDeadLetters(patient(t), "", filter), func(letter *v1.DeadLetter) string {
		return letter.GetSenderId()
	})
	if !slices.Equal(exported, []string{alice.ID()}) {
		t.Error(exported)
	}
	all := &v1.RedriveDeadLettersRequest{Filter: filter}
	for answer, err := range bob.RedriveDeadLetters(patient(t), operator, all) {
		if err != nil || answer.GetError() != nil {
			t.Error(answer, err)
		}
	}
	if text := await(t, came); text != "two" {
		t.Error(text)
	}
	for _, err := range bob.RedriveDeadLetters(patient(t), operator, all) {
		refused(t, err, "NOTHING_MATCHES")
	}
	isPoison <- true
	ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello("three")))
	discarded := ok[*v1.DeadLetter](t)(bob.DiscardDeadLetter(patient(t), operator, parked(1)[0], "old"))
	if discarded.GetState() != v1.DeadLetterState_DEAD_LETTER_STATE_DISCARDED {
		t.Error(discarded)
	}
	parked(0)
}
