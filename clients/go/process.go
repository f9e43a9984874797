package baton

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const (
	// The least time between two heartbeats, so that many short tasks cost little.
	beatAtMost = 200 * time.Millisecond
	// The bound of Heartbeat.working_on.
	workingOnMax = 1024
)

// InstanceID returns the id of this process: a UUID that Connect makes, and that stays over reconnects. The broker gives
// the answers to what this process began to this process while it is connected.
func (a *Agent) InstanceID() string { return a.instanceID }

// sayHello names the process behind a session, before any other frame. A broker that does not know processes refuses it,
// and the session goes on without.
func (a *Agent) sayHello(s *session) {
	hello := &v1.ConnectRequest{Request: &v1.ConnectRequest_Hello{
		Hello: &v1.Hello{InstanceId: a.instanceID, TellsWork: true},
	}}
	answer, err := s.put(s.ended, hello)
	if err != nil {
		return // the session has ended
	}
	a.running.Go(func() {
		defer s.forget(hello.GetRequestId())
		if _, err := s.await(s.ended, answer); err != nil && s.ended.Err() == nil {
			a.options.Logger.Debug("the broker does not know this process", "error", err)
		}
	})
}

// hold is a task that this process works on: its heartbeats list the task.
type hold struct {
	task *OwnedTask
	// Whether the program took the task over outside a handler. The task's end releases the hold then.
	isByHand bool
}

// take makes a hold of a task.
func (a *Agent) take(task *OwnedTask, isByHand bool) *hold {
	h := &hold{task, isByHand}
	a.mu.Lock()
	a.holds[h] = true
	a.mu.Unlock()
	a.workHasChanged()
	return h
}

func (a *Agent) release(h *hold) {
	a.mu.Lock()
	delete(a.holds, h)
	a.mu.Unlock()
	a.workHasChanged()
}

// workHasChanged makes the session send a heartbeat soon.
func (a *Agent) workHasChanged() {
	select {
	case a.workChanged <- struct{}{}:
	default:
	}
}

// eachHold calls a function with the holds of a task.
func (a *Agent) eachHold(taskID string, each func(*hold)) {
	a.mu.Lock()
	var found []*hold
	for h := range a.holds {
		if h.task.TaskID == taskID {
			found = append(found, h)
		}
	}
	a.mu.Unlock()
	for _, h := range found {
		each(h)
	}
}

// moved notes that a task of this agent came back to it at a later epoch.
func (a *Agent) moved(taskID string, from, to uint64) {
	a.eachHold(taskID, func(h *hold) { h.task.moved(from, to) })
}

// lost notes that a task of this agent has ended, or moved to another agent, at this epoch of this agent or a later one.
func (a *Agent) lost(taskID string, epoch uint64) {
	a.eachHold(taskID, func(h *hold) {
		if h.task.lost(epoch) && h.isByHand {
			a.release(h)
		}
	})
}

// noteSent notes the end of a task that a status update of this process has caused.
func (a *Agent) noteSent(envelope *v1.Envelope, receipt *v1.Receipt) {
	isStatus := envelope.GetMessageType() == v1.MessageType_MESSAGE_TYPE_TASK_STATUS_UPDATE
	// A delegate's final status moves the task back to its delegator.
	isOver := isFinalStatus(receipt.GetTaskStatus()) || receipt.GetEpoch() > envelope.GetEpoch()
	if isStatus && isOver {
		a.lost(envelope.GetTaskId(), envelope.GetEpoch())
	}
}

// noteMoved releases a task that was taken over by hand, after its handoff to another agent.
func (a *Agent) noteMoved(d *Delivery) {
	complete, _ := d.Payload.(*v1.HandoffComplete)
	if complete.GetOutcome() != v1.HandoffOutcome_HANDOFF_OUTCOME_SUCCESS {
		return
	}
	isHeld := false
	a.eachHold(d.Envelope.GetTaskId(), func(h *hold) { isHeld = isHeld || h.isByHand })
	if !isHeld {
		return
	}
	a.running.Go(func() {
		ctx, cancel := context.WithTimeout(a.life, callTimeout)
		defer cancel()
		handoff, err := a.GetHandoff(ctx, d.HandoffID)
		if err == nil && handoff.GetMode() != v1.HandoffMode_HANDOFF_MODE_DELEGATE {
			a.lost(d.Envelope.GetTaskId(), handoff.GetEpoch())
		}
	})
}

// workingOn returns the tasks that this process works on, in order.
func (a *Agent) workingOn() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	tasks := slices.Clone(a.heartbeat.GetWorkingOn())
	for h := range a.holds {
		tasks = append(tasks, h.task.TaskID)
	}
	slices.Sort(tasks)
	return slices.Compact(tasks)
}

// heartbeats returns the heartbeats that list these tasks: one, unless they are more than one may list.
func (a *Agent) heartbeats(tasks []string) []*v1.ConnectRequest {
	a.mu.Lock()
	heartbeat := proto.CloneOf(a.heartbeat)
	a.mu.Unlock()
	var frames []*v1.ConnectRequest
	for len(frames) == 0 || len(tasks) > 0 {
		one := proto.CloneOf(heartbeat)
		one.WorkingOn = tasks[:min(len(tasks), workingOnMax)]
		tasks = tasks[len(one.WorkingOn):]
		frames = append(frames, &v1.ConnectRequest{Request: &v1.ConnectRequest_Heartbeat{Heartbeat: one}})
	}
	return frames
}

// beat sends a heartbeat at the broker's interval, and soon after each change of the tasks that this process works on.
func (s *session) beat(a *Agent) {
	interval := s.welcome.GetHeartbeatInterval().AsDuration()
	var told []string
	for isDue := true; interval > 0; {
		if tasks := a.workingOn(); isDue || !slices.Equal(tasks, told) {
			for _, frame := range a.heartbeats(tasks) {
				select {
				case s.frames <- frame:
				case <-s.ended.Done():
					return
				}
			}
			told = tasks
		}
		if sleep(s.ended, min(interval, beatAtMost)) != nil {
			return
		}
		timer := time.NewTimer(max(interval-beatAtMost, 0))
		select {
		case <-timer.C:
			isDue = true
		case <-a.workChanged:
			isDue = false
		case <-s.ended.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// tellWork sends a heartbeat, and waits for its answer: the broker knows what this process works on then.
func (a *Agent) tellWork(ctx context.Context, s *session) error {
	for _, frame := range a.heartbeats(a.workingOn()) {
		if _, err := s.ask(ctx, frame); err != nil {
			return err
		}
	}
	return nil
}

// undertaking is the work of one handler of Serve: the tasks that it has taken over, until it ends.
type undertaking struct {
	agent *Agent
	// Ends when Serve stops.
	work    context.Context
	mu      sync.Mutex
	holds   []*hold
	isEnded bool
}

type undertakingKey struct{}

func undertakingOf(ctx context.Context) *undertaking {
	u, _ := ctx.Value(undertakingKey{}).(*undertaking)
	return u
}

// takes notes that a handler, or without one the program, has taken a task over.
func (a *Agent) takes(u *undertaking, task *OwnedTask) {
	a.taken.add(ownership(task.TaskID, task.present()))
	if u != nil && u.agent == a {
		u.mu.Lock()
		defer u.mu.Unlock()
		if !u.isEnded {
			u.holds = append(u.holds, a.take(task, false))
			return
		}
	}
	a.take(task, true)
}

// task returns the latest task that the handler has taken over and that this agent still owns; nil for none.
func (u *undertaking) task() *OwnedTask {
	if u == nil {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, h := range slices.Backward(u.holds) {
		if !u.isEnded && !h.task.isLost() {
			return h.task
		}
	}
	return nil
}

// end ends the undertaking by the result of its handler, and the cause of the end of the handler's context, if that has
// ended. After an error the tasks that the handler has taken over, and neither ended nor handed on, have FAILED. It reports
// whether there were tasks.
func (u *undertaking) end(cause, result error) bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	holds := u.holds
	u.holds, u.isEnded = nil, true
	u.mu.Unlock()
	for _, h := range holds {
		if result != nil {
			u.agent.failTask(u.work, h.task, cause, result)
		}
		u.agent.release(h)
	}
	return len(holds) > 0
}
