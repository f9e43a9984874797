package baton

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Several processes of one agent, and what each of them tells the broker about its work.

// recorder notes the frames that an agent sends, and answers ResumeTasks in the broker's place if tasks is set.
type recorder struct {
	grpc.ClientStream
	frames chan *v1.ConnectRequest
	tasks  func(*v1.ResumeTasksRequest) []*v1.Task
}

func (r *recorder) SendMsg(message any) error {
	if frame, is := message.(*v1.ConnectRequest); is {
		select {
		case r.frames <- proto.CloneOf(frame):
		default:
		}
	}
	return r.ClientStream.SendMsg(message)
}

func (r *recorder) stream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer,
	options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, conn, method, options...)
	return &recorder{ClientStream: stream, frames: r.frames}, err
}

func (r *recorder) unary(
	ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	asked, is := request.(*v1.ResumeTasksRequest)
	if !is || r.tasks == nil {
		return invoker(ctx, method, request, answer, conn, options...)
	}
	proto.Merge(answer.(*v1.ResumeTasksResponse), &v1.ResumeTasksResponse{Tasks: r.tasks(asked)})
	return nil
}

// record notes what an agent with these options sends.
func record(options *Options) *recorder {
	r := &recorder{frames: make(chan *v1.ConnectRequest, 4096)}
	options.DialOptions = append(options.DialOptions, grpc.WithStreamInterceptor(r.stream), grpc.WithUnaryInterceptor(r.unary))
	return r
}

// untilListed waits for a heartbeat that lists exactly these tasks.
func (r *recorder) untilListed(t *testing.T, tasks ...string) {
	t.Helper()
	slices.Sort(tasks)
	for {
		if beat := await(t, r.frames).GetHeartbeat(); beat != nil && slices.Equal(beat.GetWorkingOn(), tasks) {
			return
		}
	}
}

func TestEachSessionBeginsWithTheNameOfItsProcess(t *testing.T) {
	b := newBroker(t, "")
	options := b.options(t, "alice")
	r := record(&options)
	alice := connected(t, options)
	serve(t, alice, Handlers{})
	first := await(t, r.frames).GetHello()
	if first.GetInstanceId() != alice.InstanceID() || len(first.GetInstanceId()) != 36 || !first.GetTellsWork() {
		t.Error(first)
	}
	b.kill()
	b.restart(t)
	ok[*v1.Agent](t)(persistGet(patient(t), alice))
	for isAgain := false; !isAgain; {
		again := await(t, r.frames).GetHello()
		isAgain = again.GetInstanceId() == alice.InstanceID()
	}
	if other := connected(t, b.options(t, "alice")); other.InstanceID() == alice.InstanceID() {
		t.Error(other.InstanceID())
	}
}

func persistGet(ctx context.Context, agent *Agent) (*v1.Agent, error) {
	answer, err := persist(ctx, agent, agent.agents.GetAgent, &v1.GetAgentRequest{AgentId: agent.ID()})
	return answer.GetAgent(), err
}

func TestHeartbeatsListTheTasksOfHandlersUntilTheyEnd(t *testing.T) {
	alice, options := shared.agent(t, "alice"), shared.options(t, "bob")
	r := record(&options)
	bob, ticket, done := connected(t, options), unique("ticket"), make(chan bool)
	takes(t, bob, func(ctx context.Context, task *OwnedTask) error {
		<-done
		_, err := task.Finish(ctx, nil, "")
		return err
	})
	r.untilListed(t)
	lending := delegate(t, patient(t), alice, bob.ID(), ticket, supportRequest())
	r.untilListed(t, ticket) // soon, although the interval is much longer
	close(done)
	if one := await(t, lending); one.err != nil {
		t.Error(one.err)
	}
	r.untilListed(t)
}

func TestHeartbeatsListWhatWasTakenOverByHandUntilItEndsOrMoves(t *testing.T) {
	alice, carol, options := shared.agent(t, "alice"), shared.agent(t, "carol"), shared.options(t, "bob")
	r := record(&options)
	bob, one, two := connected(t, options), unique("ticket"), unique("ticket")
	takeByHand := func(ticket string) uint64 {
		ended := make(chan error, 1)
		section := goals(t)
		go func() {
			_, err := alice.HandOver(patient(t), bob.ID(), ticket, 1, supportRequest(), section)
			ended <- err
		}()
		request, _ := next[*v1.HandoffRequest](t, bob)
		ok[*v1.Receipt](t)(bob.Accept(patient(t), request, nil))
		transfer, _ := next[*v1.TaskContextTransfer](t, bob)
		receipt := ok[*v1.Receipt](t)(bob.Complete(patient(t), transfer))
		if err := await(t, ended); err != nil {
			t.Fatal(err)
		}
		return receipt.GetEpoch()
	}
	first := takeByHand(one)
	r.untilListed(t, one)
	second := takeByHand(two)
	r.untilListed(t, one, two)
	update := &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_COMPLETED}
	ok[*v1.Receipt](t)(bob.UpdateStatus(patient(t), one, first, update))
	r.untilListed(t, two)
	handlers, _ := taking()
	serve(t, carol, handlers)
	ok[*HandedOver](t)(bob.HandOver(patient(t), carol.ID(), two, second, supportRequest()))
	r.untilListed(t)
}

func TestWorkAfterTheHandlerIsListedUntilItsContextIsReleased(t *testing.T) {
	alice, options := shared.agent(t, "alice"), shared.options(t, "bob")
	r := record(&options)
	bob, ticket := connected(t, options), unique("ticket")
	handlers, owned := taking()
	serve(t, bob, handlers)
	ok[*HandedOver](t)(alice.HandOver(patient(t), bob.ID(), ticket, 1, supportRequest(), goals(t)))
	_, done := await(t, owned).UntilRecalled(patient(t))
	r.untilListed(t, ticket)
	done()
	r.untilListed(t)
}

func TestManyShortTasksMakeFewHeartbeats(t *testing.T) {
	options := shared.options(t, "bob")
	r := record(&options)
	bob := connected(t, options)
	began := time.Now()
	for time.Since(began) < time.Second {
		h := bob.take(&OwnedTask{TaskID: unique("ticket"), agent: bob}, false)
		time.Sleep(time.Millisecond)
		bob.release(h)
	}
	most, beats := int(time.Since(began)/beatAtMost)+2, 0
	for len(r.frames) > 0 {
		if frame := <-r.frames; frame.GetHeartbeat() != nil {
			beats++
		}
	}
	if beats > most {
		t.Errorf("%d heartbeats, at most %d", beats, most)
	}
}

func TestManyTasksAreListedInSeveralHeartbeats(t *testing.T) {
	agent := &Agent{heartbeat: &v1.Heartbeat{Status: "ok"}}
	var tasks []string
	for range 2*workingOnMax + 1 {
		tasks = append(tasks, unique("ticket"))
	}
	var listed []string
	for _, frame := range agent.heartbeats(tasks) {
		one := frame.GetHeartbeat()
		if len(one.GetWorkingOn()) > workingOnMax || one.GetStatus() != "ok" {
			t.Error(len(one.GetWorkingOn()))
		}
		listed = append(listed, one.GetWorkingOn()...)
	}
	if !slices.Equal(listed, tasks) {
		t.Error(len(listed))
	}
	if frames := agent.heartbeats(nil); len(frames) != 1 {
		t.Error(len(frames))
	}
}

// The broker gives the messages of either session to whichever has room, if it does not know the processes.
func TestTwoSessionsOfAnAgentGetTheirOwnResults(t *testing.T) {
	options, bob := shared.options(t, "alice"), shared.agent(t, "bob")
	takes(t, bob, func(ctx context.Context, task *OwnedTask) error {
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
		_, err := task.Finish(ctx, map[string]any{"of": task.TaskID}, "")
		return err
	})
	var all sync.WaitGroup
	for range 2 {
		alice := connected(t, options)
		for range 8 {
			ticket, section := unique("ticket"), goals(t)
			all.Go(func() {
				outcome, err := alice.Delegate(patient(t), bob.ID(), ticket, 1, supportRequest(), section)
				if err != nil || outcome.Result["of"] != ticket || outcome.Epoch != 3 {
					t.Errorf("%+v, %v", outcome, err)
				}
			})
		}
	}
	all.Wait()
}

// twin connects another process under the instance id of this one: the broker gives the mail of either to whichever has
// room, as a broker does that does not know processes.
func twin(t *testing.T, options Options, of *Agent) *Agent {
	t.Helper()
	agent, err := connect(patient(t), options, of.instanceID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Close() })
	return agent
}

// steal acks the next message of a kind as another process of the agent that does not know what to do with it.
func steal[P any](t *testing.T, options Options, from *Agent) {
	t.Helper()
	next[P](t, twin(t, options, from))
}

func TestAResultThatAnotherProcessTookIsReadAtTheBroker(t *testing.T) {
	options, bob := shared.options(t, "alice"), shared.agent(t, "bob")
	alice, ticket := connected(t, options), unique("ticket")
	w := newWorker(t, bob)
	lending := delegate(t, patient(t), alice, bob.ID(), ticket, supportRequest())
	task := await(t, w.owned)
	untilLent(t, alice, ticket)
	if err := alice.SetCredit(patient(t), 0); err != nil {
		t.Fatal(err)
	}
	ok[*v1.Receipt](t)(task.Report(patient(t), "looking"))
	update := &v1.TaskStatusUpdate{
		Status: v1.TaskStatus_TASK_STATUS_FAILED, Details: "no such router",
		ResultJson: `{"cause":7}`,
	}
	ok[*v1.Receipt](t)(task.Update(patient(t), update))
	steal[*v1.TaskStatusUpdate](t, options, alice)
	began := time.Now()
	one := await(t, lending)
	if one.err != nil || one.outcome.Status != update.GetStatus() || one.outcome.Details != "no such router" ||
		one.outcome.Result["cause"] != json.Number("7") || one.outcome.Epoch != 3 {
		t.Errorf("%+v, %v", one.outcome, one.err)
	}
	if took := time.Since(began); took > 2*lookDefault {
		t.Error(took)
	}
	// The task goes on from there.
	ok[*v1.Receipt](t)(alice.UpdateStatus(patient(t), ticket, one.outcome.Epoch, update))
}

// untilLent waits until the delegator knows that its handoff has completed.
func untilLent(t *testing.T, agent *Agent, taskID string) {
	t.Helper()
	for ctx := patient(t); ; {
		task, err := agent.GetTask(ctx, taskID)
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		agent.mu.Lock()
		isLent := len(agent.waiting) == 1
		agent.mu.Unlock()
		if len(task.GetLoans()) == 1 && isLent {
			return
		}
	}
}

func TestAnAcceptThatAnotherProcessTookIsSeenAtTheBroker(t *testing.T) {
	options, bob := shared.options(t, "alice"), shared.agent(t, "bob")
	alice := connected(t, options)
	alice.lookAfter = 200 * time.Millisecond
	handed := make(chan error, 1)
	section := goals(t)
	ctx := WithSenderView(patient(t), func(view v1.SenderView) {
		if view == v1.SenderView_SENDER_VIEW_AWAITING_HANDOFF_ACCEPT {
			if err := alice.SetCredit(patient(t), 0); err != nil {
				t.Error(err)
			}
		}
	})
	go func() {
		_, err := alice.HandOver(ctx, bob.ID(), unique("ticket"), 1, supportRequest(), section)
		handed <- err
	}()
	request, _ := next[*v1.HandoffRequest](t, bob)
	ok[*v1.Receipt](t)(bob.Accept(patient(t), request, nil))
	other := twin(t, options, alice)
	next[*v1.HandoffAccept](t, other)
	transfer, payload := next[*v1.TaskContextTransfer](t, bob)
	if len(payload.GetSections()) != 1 {
		t.Error(payload)
	}
	ok[*v1.Receipt](t)(bob.Complete(patient(t), transfer))
	next[*v1.HandoffComplete](t, other)
	if err := await(t, handed); err != nil {
		t.Error(err)
	}
}

func TestAContextThatAnotherProcessTookIsReadAtTheBroker(t *testing.T) {
	options, alice := shared.options(t, "bob"), shared.agent(t, "alice")
	bob := connected(t, options)
	bob.lookAfter = 200 * time.Millisecond
	owned := make(chan *OwnedTask, 1)
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		if err := bob.SetCredit(ctx, 0); err != nil {
			return err
		}
		takeover, err := offer.Accept(ctx, nil)
		if err != nil {
			return err
		}
		if takeover.Section("goals") == nil {
			t.Error(takeover.Sections)
		}
		task, err := takeover.Complete(ctx)
		owned <- task
		return err
	}})
	handed := make(chan error, 1)
	section := goals(t)
	go func() {
		_, err := alice.HandOver(patient(t), bob.ID(), unique("ticket"), 1, supportRequest(), section)
		handed <- err
	}()
	steal[*v1.TaskContextTransfer](t, options, bob)
	if err := await(t, handed); err != nil || await(t, owned) == nil {
		t.Error(err)
	}
}

func TestTheStateIsReadOnceMoreAtTheEndOfACallsTime(t *testing.T) {
	options, bob := shared.options(t, "alice"), shared.agent(t, "bob")
	alice := connected(t, options)
	handlers, owned := taking()
	serve(t, bob, handlers)
	ctx, cancel := context.WithTimeout(patient(t), 3*time.Second)
	defer cancel()
	viewed := WithSenderView(ctx, func(view v1.SenderView) {
		if view == v1.SenderView_SENDER_VIEW_AWAITING_CONTEXT_ACK {
			if err := alice.SetCredit(patient(t), 0); err != nil {
				t.Error(err)
			}
		}
	})
	done, err := alice.HandOver(viewed, bob.ID(), unique("ticket"), 1, supportRequest(), goals(t))
	if err != nil || done.OwnerID != bob.ID() || done.Epoch != 2 {
		t.Error(done, err)
	}
	await(t, owned)
}

// resumable returns a task that a process of the agent took over before its death.
func resumable(t *testing.T, options Options) *v1.Task {
	t.Helper()
	alice, bob, ticket := shared.agent(t, "alice"), connected(t, options), unique("ticket")
	handlers, owned := taking()
	serve(t, bob, handlers)
	ok[*HandedOver](t)(alice.HandOver(patient(t), bob.ID(), ticket, 1, supportRequest(), goals(t)))
	task := await(t, owned)
	section := ok[*v1.ContextSection](t)(JSONSection("found", map[string]int{"router": 3}))
	ok[*v1.Receipt](t)(task.Checkpoint(patient(t), goals(t), section))
	_ = bob.Close()
	return ok[*v1.Task](t)(alice.GetTask(patient(t), ticket))
}

func TestTheNextProcessGoesOnWithTheTasksOfADeadOne(t *testing.T) {
	options := shared.options(t, "bob")
	tasks := []*v1.Task{resumable(t, options), resumable(t, options), resumable(t, options)}
	r := record(&options)
	var mu sync.Mutex
	var asked []uint32
	var instance string
	r.tasks = func(request *v1.ResumeTasksRequest) []*v1.Task {
		mu.Lock()
		defer mu.Unlock()
		asked, instance = append(asked, request.GetMaxTasks()), request.GetInstanceId()
		given := tasks[:min(len(tasks), int(request.GetMaxTasks()))]
		tasks = tasks[len(given):]
		return given
	}
	options.Resume, options.Credit = true, 2
	bob := connected(t, options)
	began, finish := make(chan *OwnedTask, 4), make(chan error, 4)
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		takeover := ok[*Takeover](t)(offer.Accept(ctx, nil))
		var found map[string]int
		if err := takeover.JSON("found", &found); err != nil || found["router"] != 3 || takeover.Section("goals") == nil {
			t.Error(takeover.Sections, err)
		}
		if !offer.Resumed || offer.Request != nil || offer.Reject(ctx, &v1.HandoffReject{}) == nil {
			t.Error(offer)
		}
		task := ok[*OwnedTask](t)(takeover.Complete(ctx))
		if !task.Resumed || task.Epoch != 2 {
			t.Error(task.Epoch)
		}
		began <- task
		if err := <-finish; err != nil {
			return err
		}
		_, err := task.Finish(ctx, nil, "")
		return err
	}})
	one, two := await(t, began), await(t, began)
	r.untilListed(t, one.TaskID, two.TaskID)
	finish <- nil
	three := await(t, began) // in the room that is free now
	finish <- errors.New("no such router")
	finish <- nil
	counts := map[v1.TaskStatus]int{}
	for _, task := range []*OwnedTask{one, two, three} {
		status := v1.TaskStatus_TASK_STATUS_CREATED
		for !isFinalStatus(status) {
			status = ok[*v1.Task](t)(bob.GetTask(patient(t), task.TaskID)).GetStatus()
		}
		counts[status]++
	}
	if counts[v1.TaskStatus_TASK_STATUS_COMPLETED] != 2 || counts[v1.TaskStatus_TASK_STATUS_FAILED] != 1 {
		t.Error(counts)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) < 2 || asked[0] != 2 || asked[1] != 1 || instance != bob.InstanceID() {
		t.Error(asked, instance)
	}
}

func TestResumeNeedsAnOfferFunction(t *testing.T) {
	options := shared.options(t, "bob")
	options.Resume = true
	if err := connected(t, options).Serve(patient(t), Handlers{}); err == nil {
		t.Error("it serves")
	}
}

func TestADeadWorkersTaskGoesOnInTheNextProcess(t *testing.T) {
	options := shared.options(t, "bob")
	task := resumable(t, options)
	options.Resume = true
	bob, resumed := connected(t, options), make(chan *OwnedTask, 1)
	request := &v1.ResumeTasksRequest{InstanceId: bob.InstanceID(), MaxTasks: 1}
	_, err := call(patient(t), bob, bob.tasks.ResumeTasks, request)
	var refusal *Error
	if errors.As(err, &refusal) && refusal.Code == codes.Unimplemented {
		t.Skip("this broker does not resume tasks")
	}
	serve(t, bob, Handlers{Offer: func(ctx context.Context, offer *Offer) error {
		takeover := ok[*Takeover](t)(offer.Accept(ctx, nil))
		one := ok[*OwnedTask](t)(takeover.Complete(ctx))
		resumed <- one
		_, err := one.Finish(ctx, nil, "")
		return err
	}})
	if one := await(t, resumed); one.TaskID != task.GetTaskId() || one.Epoch != 2 || !one.Resumed {
		t.Error(one.TaskID)
	}
}
