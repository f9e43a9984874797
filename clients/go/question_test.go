package baton

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Questions about a task, and their answers.

var routerSchema = json.RawMessage(`{"type":"object","properties":{"router":{"type":"integer"}},"required":["router"]}`)

// ownedBy returns a new task of an agent, which serves: a handoff that was cancelled created it, and the news of that
// comes before the mail of the task.
func ownedBy(t *testing.T, agent *Agent, candidateID string, handlers Handlers) *OwnedTask {
	t.Helper()
	serve(t, agent, handlers)
	ticket := unique("ticket")
	receipt := ok[*v1.Receipt](t)(agent.RequestHandoff(patient(t), candidateID, ticket, 1, supportRequest()))
	// The candidate may have rejected it already.
	if _, err := agent.Cancel(patient(t), receipt.GetHandoffId(), "enough"); err != nil && !HasGoneOn(err) {
		t.Fatal(err)
	}
	return &OwnedTask{TaskID: ticket, Epoch: 1, agent: agent}
}

// asked serves an agent that leaves questions open, and returns them.
func asked(t *testing.T, agent *Agent) <-chan *Question {
	t.Helper()
	questions := make(chan *Question, 4)
	serve(t, agent, Handlers{Prompt: func(_ context.Context, q *Question) error {
		questions <- q
		return nil
	}})
	return questions
}

type answered struct {
	answer *Answer
	err    error
}

func ask(ctx context.Context, task *OwnedTask, prompt Prompt) <-chan answered {
	done := make(chan answered, 1)
	go func() {
		answer, err := task.Ask(ctx, prompt)
		done <- answered{answer, err}
	}()
	return done
}

func noAnswer(t *testing.T, err error, reason NoAnswerReason) *NoAnswerError {
	t.Helper()
	var none *NoAnswerError
	if !errors.As(err, &none) || none.Reason != reason {
		t.Fatalf("%v, expected %s", err, reason)
	}
	return none
}

func TestAQuestionIsAnsweredOnceAndByItsSchema(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	questions, refusals := make(chan *Question, 1), make(chan error, 1)
	serve(t, bob, Handlers{Prompt: func(ctx context.Context, q *Question) error {
		_, err := q.Answer(ctx, "the third", map[string]any{"router": "three"})
		refusals <- err
		_, err = q.Answer(ctx, "the one in the hall", map[string]any{"router": 3})
		questions <- q
		return err
	}})
	task := ownedBy(t, alice, bob.ID(), Handlers{})
	answer := ok[*Answer](t)(task.Ask(patient(t), Prompt{
		Text: "Which router?", AnswerBy: bob.ID(), Schema: routerSchema, Details: "there are four",
	}))
	expected := &Answer{bob.ID(), "the one in the hall", map[string]any{"router": json.Number("3")}}
	if !reflect.DeepEqual(answer, expected) {
		t.Errorf("%+v", answer)
	}
	refused(t, await(t, refusals), "FIELD_INVALID")
	q := await(t, questions)
	if q.Text != "Which router?" || q.Details != "there are four" || q.OwnerID != alice.ID() || q.TaskID != task.TaskID {
		t.Errorf("%+v", q)
	}
	if string(q.Schema) != string(routerSchema) || !q.AnswerBefore.IsZero() {
		t.Errorf("%+v", q)
	}
	_, err := q.Answer(patient(t), "another one", map[string]any{"router": 4})
	refused(t, err, "INPUT_TAKEN")
	ok[*v1.Receipt](t)(task.Finish(patient(t), nil, ""))
}

func TestAQuestionWithoutAnAnswerExpires(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	questions := asked(t, bob)
	task := ownedBy(t, alice, bob.ID(), Handlers{})
	_, err := task.Ask(patient(t), Prompt{Text: "Which router?", AnswerBy: bob.ID(), Within: 2 * time.Second})
	q := await(t, questions)
	if none := noAnswer(t, err, QuestionExpired); none.QuestionID != q.QuestionID || q.AnswerBefore.IsZero() {
		t.Errorf("%+v, %+v", none, q)
	}
	_, err = q.Answer(patient(t), "too late", nil)
	refused(t, err, "INPUT_EXPIRED")
	if !HasGoneOn(err) {
		t.Error(err)
	}
}

func TestALaterStatusWithdrawsAQuestion(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	alice.lookAfter = 200 * time.Millisecond
	questions := asked(t, bob)
	task := ownedBy(t, alice, bob.ID(), Handlers{})
	asking := ask(patient(t), task, Prompt{Text: "Which router?", AnswerBy: bob.ID()})
	await(t, questions)
	ok[*v1.Receipt](t)(task.Report(patient(t), "found it"))
	noAnswer(t, await(t, asking).err, QuestionWithdrawn)
}

func TestAQuestionOutlivesItsCallAndItsBroker(t *testing.T) {
	b := newBroker(t, "")
	alice, bob := b.agent(t, "alice"), b.agent(t, "bob")
	inputs := make(chan *v1.TaskInput, 1)
	questions := asked(t, bob)
	task := ownedBy(t, alice, bob.ID(), Handlers{TaskInput: func(_ context.Context, _ *Delivery, input *v1.TaskInput) error {
		inputs <- input
		return nil
	}})
	ctx, cancel := context.WithCancel(patient(t))
	asking := ask(ctx, task, Prompt{Text: "Which router?", AnswerBy: bob.ID()})
	q := await(t, questions)
	b.kill()
	cancel()
	if err := await(t, asking).err; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	b.restart(t)
	ok[*v1.Receipt](t)(q.Answer(patient(t), "the third", nil))
	if input := await(t, inputs); input.GetText() != "the third" {
		t.Error(input)
	}
}

func TestAnAnswerArrivesAfterTheBrokersRestart(t *testing.T) {
	b := newBroker(t, "")
	alice, bob := b.agent(t, "alice"), b.agent(t, "bob")
	questions := asked(t, bob)
	task := ownedBy(t, alice, bob.ID(), Handlers{})
	asking := ask(patient(t), task, Prompt{Text: "Which router?", AnswerBy: bob.ID()})
	q := await(t, questions)
	b.kill()
	b.restart(t)
	ok[*v1.Receipt](t)(q.Answer(patient(t), "the third", nil))
	if got := await(t, asking); got.err != nil || got.answer.Text != "the third" {
		t.Error(got)
	}
}

func TestNoAgentCanBeAsked(t *testing.T) {
	alice, bob := shared.agent(t, "alice"), shared.agent(t, "bob")
	task := ownedBy(t, alice, bob.ID(), Handlers{})
	_, err := task.Ask(patient(t), Prompt{Text: "Which router?", AnswerBy: "type:" + unique("plumber")})
	refused(t, err, "RECEIVER_UNKNOWN")
	_, err = task.Ask(patient(t), Prompt{AnswerBy: bob.ID()})
	refused(t, err, "FIELD_INVALID")
}
