package baton

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// The broker's notices about tasks that are taken from their owners, and questions that a later process goes on with.

// notice is a verified notice of the broker about a task.
func notice(agent *Agent, code v1.ErrorCode, step v1.NextStep, taskID string, epoch uint64) *Delivery {
	payload := &v1.ErrorNotification{ErrorCode: code, NextStep: step, ErrorMessage: "told"}
	agent.mu.Lock()
	defer agent.mu.Unlock()
	return &Delivery{
		Envelope: &v1.Envelope{MessageId: newID(), SenderId: brokerID, TaskId: taskID, Epoch: epoch},
		Payload:  payload, agent: agent, from: agent.session, id: "1",
	}
}

func TestNoticesEndTheWorkAndTheCallsThatTheyAreAbout(t *testing.T) {
	const keep, drop = v1.NextStep_NEXT_STEP_KEEP_TASK, v1.NextStep_NEXT_STEP_DROP_TASK
	for _, one := range []struct {
		code   v1.ErrorCode
		reason RecallReason
		epoch  uint64
	}{
		{v1.ErrorCode_ERROR_CODE_TASK_RECALLED, RecalledByLoanTimeout, 3},
		{v1.ErrorCode_ERROR_CODE_TASK_ABANDONED, RecalledAsAbandoned, 3},
		{v1.ErrorCode_ERROR_CODE_TASK_CANCELED, RecalledByCancel, 3},
		{v1.ErrorCode_ERROR_CODE_TASK_CANCELED, RecalledByCancel, 2}, // ended without a move
	} {
		t.Run(string(one.reason), func(t *testing.T) {
			alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
			stopped := make(chan error, 1)
			takes(t, bob, func(ctx context.Context, _ *OwnedTask) error {
				<-ctx.Done()
				stopped <- context.Cause(ctx)
				return ctx.Err()
			})
			ticket := unique("ticket")
			lending := delegate(t, context.Background(), alice, bob.ID(), ticket, supportRequest())
			untilLent(t, alice, ticket)
			alice.route(notice(alice, one.code, keep, ticket, one.epoch))
			recalled(t, await(t, lending).err, one.reason, one.epoch, true)
			bob.route(notice(bob, one.code, drop, ticket, one.epoch))
			reason := one.reason
			if reason == RecalledByLoanTimeout {
				reason = RecalledByRecall
			}
			recalled(t, await(t, stopped), reason, one.epoch, false)
			bob.mu.Lock()
			defer bob.mu.Unlock()
			for h := range bob.holds {
				if !h.task.isLost() {
					t.Error(h.task.TaskID)
				}
			}
		})
	}
}

func TestAHandlerThatLosesItsTaskDoesNotEndIt(t *testing.T) {
	alice, bob, ticket := shared.agent(t, "alice"), shared.agent(t, "bob"), unique("ticket")
	ended := make(chan bool, 1)
	takes(t, bob, func(ctx context.Context, _ *OwnedTask) error {
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	})
	ok[*HandedOver](t)(alice.HandOver(patient(t), bob.ID(), ticket, 1, supportRequest(), goals(t)))
	// At the same epoch, so that the broker would take a status.
	code := v1.ErrorCode_ERROR_CODE_TASK_CANCELED
	bob.route(notice(bob, code, v1.NextStep_NEXT_STEP_DROP_TASK, ticket, 2))
	await(t, ended)
	time.Sleep(200 * time.Millisecond) // a status would have come
	if task := ok[*v1.Task](t)(bob.GetTask(patient(t), ticket)); isFinalStatus(task.GetStatus()) {
		t.Error(task)
	}
}

func TestTheStateOfATaskShowsTheLatestAnswer(t *testing.T) {
	agent := &Agent{}
	task := &v1.Task{LastAnswer: &v1.AnsweredPrompt{
		Question: &v1.OpenPrompt{MessageId: "question", AskedAgentId: "bob"}, AnswerId: "answer",
		Answer: &v1.TaskInput{Text: "the third"},
	}}
	if agent.answerOf(task, "another") != nil || agent.answerOf(&v1.Task{}, "") != nil || agent.settled.has("answer") {
		t.Error("an answer to another question")
	}
	for _, question := range []string{"", "question"} {
		if answer := agent.answerOf(task, question); answer.AgentID != "bob" || answer.Text != "the third" {
			t.Error(answer)
		}
	}
	if !agent.settled.has("answer") {
		t.Error("the message of the answer is not known")
	}
}

func TestTheNextProcessWaitsForTheAnswerToAnOpenQuestion(t *testing.T) {
	options, bob := shared.options(t, "alice"), shared.agent(t, "bob")
	questions := asked(t, bob)
	before := connected(t, options)
	task := ownedBy(t, before, bob.ID(), Handlers{})
	ctx, cancel := context.WithCancel(patient(t))
	asking := ask(ctx, task, Prompt{Text: "Which router?", AnswerBy: bob.ID()})
	q := await(t, questions)
	cancel()
	await(t, asking)
	_ = before.Close()
	alice, resumed := connected(t, options), make(chan answered, 1)
	stop := serve(t, alice, Handlers{})
	go func() {
		answer, err := alice.ResumeAsk(patient(t), task.TaskID)
		resumed <- answered{answer, err}
	}()
	for isAsking := false; !isAsking; time.Sleep(time.Millisecond) {
		alice.mu.Lock()
		isAsking = len(alice.waiting) > 0
		alice.mu.Unlock()
	}
	ok[*v1.Receipt](t)(q.Answer(patient(t), "the third", nil))
	if one := await(t, resumed); one.err != nil || one.answer.Text != "the third" {
		t.Error(one)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	_, err := alice.ResumeAsk(patient(t), ownedBy(t, alice, bob.ID(), Handlers{}).TaskID)
	noAnswer(t, err, QuestionWithdrawn)
	_, err = alice.ResumeAsk(patient(t), unique("missing"))
	refused(t, err, "TASK_UNKNOWN")
}

func TestAnAnswerThatAnEarlierProcessAckedIsFound(t *testing.T) {
	options, bob := shared.options(t, "alice"), shared.agent(t, "bob")
	questions := asked(t, bob)
	alice := connected(t, options)
	inputs := make(chan *v1.TaskInput, 1)
	task := ownedBy(t, alice, bob.ID(), Handlers{TaskInput: func(_ context.Context, _ *Delivery, input *v1.TaskInput) error {
		inputs <- input
		return nil
	}})
	ctx, cancel := context.WithCancel(patient(t))
	asking := ask(ctx, task, Prompt{Text: "Which router?", AnswerBy: bob.ID()})
	q := await(t, questions)
	cancel()
	await(t, asking)
	ok[*v1.Receipt](t)(q.Answer(patient(t), "the third", map[string]any{"router": 3}))
	await(t, inputs)
	if ok[*v1.Task](t)(alice.GetTask(patient(t), task.TaskID)).GetLastAnswer() == nil {
		t.Skip("this broker does not show the last answer")
	}
	answer := ok[*Answer](t)(connected(t, options).ResumeAsk(patient(t), task.TaskID))
	if answer.AgentID != bob.ID() || answer.Text != "the third" || answer.Data["router"] != json.Number("3") {
		t.Error(answer)
	}
}

func TestMailIsLookedAtWithoutAnAttempt(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	for _, text := range []string{"one", "two"} {
		ok[*v1.Receipt](t)(alice.Send(patient(t), bob.ID(), About{}, hello(text)))
	}
	for range 2 {
		var texts []string
		for d, err := range bob.Peek(patient(t)) {
			var refusal *Error
			if errors.As(err, &refusal) && refusal.Code == codes.Unimplemented {
				t.Skip("this broker gives it out")
			}
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, d.Payload.(*v1.Info).GetText())
			if d.Ack(patient(t)) == nil || d.Envelope.GetSenderId() != alice.ID() {
				t.Error(d.Envelope)
			}
		}
		if !slices.Equal(texts, []string{"one", "two"}) {
			t.Error(texts)
		}
	}
	for _, text := range []string{"one", "two"} {
		if d, info := next[*v1.Info](t, bob); info.GetText() != text || d.Attempt != 1 {
			t.Error(d.Attempt, info)
		}
	}
}

// lastRequest returns the payload of the last request of a kind that an agent has sent.
func sentBy[P proto.Message](t *testing.T, r *recorder) P {
	t.Helper()
	for {
		payload, err := PayloadOf(orElse(await(t, r.frames).GetEnvelope(), &v1.Envelope{}))
		if one, is := payload.(P); err == nil && is {
			return one
		}
	}
}

func TestOptionsOfRequestsAndStatusesAreSent(t *testing.T) {
	options := shared.options(t, "alice")
	r := record(&options)
	alice, bob := connected(t, options), shared.agent(t, "bob")
	request := supportRequest()
	request.WaitForAgent, request.SilenceTimeout = true, durationpb.New(5*time.Second)
	request.LoanTimeoutMax = durationpb.New(time.Hour)
	ctx, cancel := context.WithTimeout(patient(t), 2*time.Second)
	defer cancel()
	// A broker that does not know them refuses them or not: they are on their way here.
	_, err := alice.Delegate(ctx, bob.ID(), unique("ticket"), 1, request)
	if err == nil {
		t.Error("nobody took it")
	}
	sent := sentBy[*v1.HandoffRequest](t, r)
	if !sent.GetWaitForAgent() || sent.GetSilenceTimeout().AsDuration() != 5*time.Second ||
		sent.GetLoanTimeoutMax().AsDuration() != time.Hour || sent.GetLoanTimeout() == nil {
		t.Error(sent)
	}
	task := &OwnedTask{TaskID: unique("ticket"), Epoch: 1, agent: alice}
	_, err = task.Extend(patient(t), time.Minute)
	var refusal *Error
	if !errors.As(err, &refusal) {
		t.Error(err)
	}
	if update := sentBy[*v1.TaskStatusUpdate](t, r); update.GetExtendBy().AsDuration() != time.Minute {
		t.Error(update)
	}
	_, _ = task.Cancel(patient(t), "enough", true)
	update := sentBy[*v1.TaskStatusUpdate](t, r)
	if !update.GetKeepParts() || update.GetStatus() != v1.TaskStatus_TASK_STATUS_CANCELED || update.GetDetails() != "enough" {
		t.Error(update)
	}
}

func TestWithoutTheLogTheTaskShowsTheResult(t *testing.T) {
	alice := &Agent{options: Options{AgentID: "alice"}}
	lent := &HandedOver{TaskID: "ticket", HandoffID: "handoff", Epoch: 2}
	refusal := &Error{Code: codes.PermissionDenied, Reason: "PERMISSION_DENIED"}
	task := &v1.Task{OwnerId: "alice", Epoch: 3, Status: v1.TaskStatus_TASK_STATUS_IN_PROGRESS, ResultJson: `{"cause":"a plug"}`}
	outcome := ok[*Outcome](t)(alice.endWithoutLog(lent, task, refusal))
	if outcome.Epoch != 3 || outcome.Result["cause"] != "a plug" || outcome.Status != v1.TaskStatus_TASK_STATUS_COMPLETED {
		t.Error(outcome)
	}
	task.OwnerId = "carol"
	_, err := alice.endWithoutLog(lent, task, refusal)
	refused(t, err, "PERMISSION_DENIED")
}
