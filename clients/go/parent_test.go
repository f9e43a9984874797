package baton

import (
	"context"
	"errors"
	"testing"
	"time"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Tasks that a handler creates are parts of the handler's task.

func parentOf(t *testing.T, agent *Agent, taskID string) string {
	t.Helper()
	return ok[*v1.Task](t)(agent.GetTask(patient(t), taskID)).GetParentTaskId()
}

func TestARequestOfAHandlerCreatesAPartOfItsTask(t *testing.T) {
	alice, bob, carol := shared.agent(t, "alice"), shared.agent(t, "bob"), shared.agent(t, "carol")
	carols, _ := taking()
	serve(t, carol, carols)
	existing := ""
	ticket, parts := unique("ticket"), map[string]string{}
	done := make(chan error, 1)
	handlers := Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		takeover, err := offer.Accept(ctx, nil)
		if err != nil {
			return err
		}
		task, err := takeover.Complete(ctx)
		if err != nil {
			return err
		}
		named := supportRequest()
		named.ParentTaskId = existing
		finished := func() error { _, err := task.Finish(ctx, nil, ""); return err }
		steps := []struct {
			name    string
			ctx     context.Context
			request *v1.HandoffRequest
			parent  string
			taskID  string
			before  func() error
		}{
			{name: "of the handler", ctx: ctx, request: supportRequest(), parent: ticket},
			{name: "of the context", ctx: WithParent(ctx, existing), request: supportRequest(), parent: existing},
			{name: "of the request", ctx: ctx, request: named, parent: existing},
			{name: "none", ctx: WithParent(ctx, ""), request: supportRequest()},
			{name: "without the handler's context", ctx: context.Background(), request: supportRequest()},
			{name: "a task that exists", ctx: ctx, request: supportRequest(), taskID: existing},
			{name: "after the end of the task", ctx: ctx, request: supportRequest(), before: finished},
		}
		for _, step := range steps {
			if step.before != nil {
				if err := step.before(); err != nil {
					done <- err
					return err
				}
			}
			taskID := orElse(step.taskID, unique("part"))
			if _, err := bob.HandOver(step.ctx, carol.ID(), taskID, 1, step.request); err != nil {
				done <- errors.Join(errors.New(step.name), err)
				return err
			}
			parts[taskID] = step.parent
		}
		done <- nil
		return nil
	}}
	existing = ownedBy(t, bob, shared.agent(t, "dave").ID(), handlers).TaskID
	ok[*HandedOver](t)(alice.HandOver(patient(t), bob.ID(), ticket, 1, supportRequest(), goals(t)))
	if err := await(t, done); err != nil {
		t.Fatal(err)
	}
	for taskID, parent := range parts {
		if found := parentOf(t, bob, taskID); found != parent {
			t.Errorf("%s: %q, expected %q", taskID, found, parent)
		}
	}
}

func TestTheEndOfATaskEndsTheLoanOfItsPart(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	owned, stopped := make(chan *OwnedTask, 1), make(chan error, 1)
	takes(t, bob, func(ctx context.Context, task *OwnedTask) error {
		owned <- task
		<-ctx.Done()
		stopped <- context.Cause(ctx)
		return ctx.Err()
	})
	parent := ownedBy(t, alice, shared.agent(t, "dave").ID(), Handlers{})
	part := unique("part")
	lending := delegate(t, WithParent(context.Background(), parent.TaskID), alice, bob.ID(), part, supportRequest())
	await(t, owned)
	ok[*v1.Receipt](t)(parent.Cancel(patient(t), "no longer wanted", false))
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		one := ok[*v1.Task](t)(alice.GetTask(patient(t), part))
		if one.GetStatus() == v1.TaskStatus_TASK_STATUS_CANCELED && one.GetParentTaskId() == parent.TaskID {
			break
		}
		if time.Since(began) > 2*time.Second {
			t.Skip("this broker leaves the parts")
		}
	}
	task := ok[*v1.Task](t)(alice.GetTask(patient(t), part))
	lost := &HandedOver{TaskID: part, HandoffID: task.GetHops()[0].GetHandoffId(), Epoch: 2}
	_, read := alice.endOfLoan(patient(t), lost, task)
	for _, err := range []error{await(t, lending).err, await(t, stopped), read} {
		var back *TaskRecalledError
		if !errors.As(err, &back) || back.Reason != RecalledByCancel {
			t.Error(err)
		}
	}
}

func TestAnAgentBeginsATaskWithoutAHandoff(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	whole, part, chat := unique("whole"), unique("part"), unique("chat 7")
	create := &v1.TaskCreate{TaskType: "bug", Summary: "it crashes", ConversationId: chat}
	task := ok[*OwnedTask](t)(alice.CreateTask(patient(t), whole, create))
	if task.Epoch != 1 || task.Status != v1.TaskStatus_TASK_STATUS_CREATED {
		t.Fatalf("the new task: %+v", task)
	}
	if _, err := task.Checkpoint(patient(t), goals(t)); err != nil {
		t.Fatal(err)
	}
	ok[*OwnedTask](t)(alice.CreateTask(WithParent(patient(t), whole), part, create))
	if parent := parentOf(t, alice, part); parent != whole {
		t.Fatalf("the part is of %q", parent)
	}
	var listed []string
	for one, err := range alice.ListTasks(patient(t), &v1.ListTasksRequest{ConversationId: chat}) {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, one.GetTaskId())
	}
	if len(listed) != 2 || listed[0] != part || listed[1] != whole {
		t.Fatalf("tasks of the conversation: %v", listed)
	}
	_, err := alice.CreateTask(patient(t), whole, create)
	refused(t, err, "TASK_EXISTS")
	_, err = bob.CreateTask(patient(t), whole, create)
	refused(t, err, "NOT_OWNER")
}
