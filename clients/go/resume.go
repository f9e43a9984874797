package baton

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const (
	resumeAtMost = 1000
	resumeAgain  = time.Second
)

// resumes returns the Offer function that resumes tasks; nil if Options.Resume is not set.
func (a *Agent) resumes(handler Handler) (func(context.Context, *Offer) error, error) {
	if !a.options.Resume {
		return nil, nil
	}
	switch handlers := handler.(type) {
	case Handlers:
		if handlers.Offer != nil {
			return handlers.Offer, nil
		}
	case *Handlers:
		if handlers.Offer != nil {
			return handlers.Offer, nil
		}
	}
	return nil, errors.New("baton: Options.Resume needs Handlers with an Offer function")
}

// keepResuming resumes the tasks that no process of this agent works on: after each session's begin, and whenever handlers
// have ended while more tasks may be left.
func (a *Agent) keepResuming(ctx, work context.Context, jobs *jobs, take func(context.Context, *Offer) error) {
	r := &resuming{agent: a, work: work, jobs: jobs, take: take}
	var latest *session
	for {
		s, err := a.current(ctx)
		if err != nil {
			return
		}
		freed := jobs.freedAfter()
		isLeft, err := r.resume(ctx, s)
		switch {
		case ctx.Err() != nil:
			return
		case isPassing(err):
			if sleep(ctx, resumeAgain) != nil {
				return
			}
			continue
		case err != nil && s != latest:
			a.options.Logger.Warn("failed to resume tasks", "error", err)
		}
		latest = s
		if err != nil || !isLeft {
			freed = nil
		}
		select {
		case <-freed:
		case <-s.ended.Done():
		case <-ctx.Done():
			return
		}
	}
}

// resuming are the tasks that this Serve has resumed.
type resuming struct {
	agent *Agent
	work  context.Context
	jobs  *jobs
	take  func(context.Context, *Offer) error
}

// resume begins a handler for each task that the broker gives to this process. It reports whether more may be left.
func (r *resuming) resume(ctx context.Context, s *session) (bool, error) {
	a := r.agent
	free := int(a.options.Credit) - r.jobs.count()
	if free <= 0 {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// What this process works on is not given to it again.
	if err := a.tellWork(ctx, s); err != nil {
		return false, err
	}
	wanted := min(free, resumeAtMost)
	request := &v1.ResumeTasksRequest{InstanceId: a.instanceID, MaxTasks: uint32(wanted)}
	answer, err := call(ctx, a, a.tasks.ResumeTasks, request)
	var refused *Error
	if errors.As(err, &refused) && refused.Code == codes.Unimplemented {
		a.options.Logger.Debug("the broker does not resume tasks", "error", err)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	begun := 0
	for _, task := range answer.GetTasks() {
		// A handler that returned without the end of its task gets it no second time.
		if !a.taken.has(ownership(task.GetTaskId(), task.GetEpoch())) && !a.isHeld(task.GetTaskId()) {
			begun++
			r.begin(task)
		}
	}
	return begun > 0 && len(answer.GetTasks()) >= wanted, nil
}

// ownership names one ownership of a task.
func ownership(taskID string, epoch uint64) string { return fmt.Sprintf("%s %d", taskID, epoch) }

func (a *Agent) isHeld(taskID string) bool {
	isHeld := false
	a.eachHold(taskID, func(*hold) { isHeld = true })
	return isHeld
}

// begin runs the handler of a task. Heartbeats list the task from now on.
func (r *resuming) begin(task *v1.Task) {
	owned := r.agent.ownedTask(task)
	owned.Resumed = true
	u := &undertaking{agent: r.agent, work: r.work}
	r.agent.takes(u, owned)
	id := "resumed " + ownership(owned.TaskID, owned.Epoch)
	r.jobs.beginID(id, nil)
	r.jobs.wait.Go(func() {
		defer r.jobs.endID(id, false)
		r.agent.resumeTask(u, owned, task, r.take)
	})
}

// resumeTask runs the handler of an offer for a task that an earlier process of this agent took over.
func (a *Agent) resumeTask(u *undertaking, owned *OwnedTask, task *v1.Task, take func(context.Context, *Offer) error) {
	ctx, end := context.WithCancelCause(context.WithValue(u.work, undertakingKey{}, u))
	defer end(nil)
	o := &Offer{
		TaskID: owned.TaskID, Epoch: owned.Epoch, Resumed: true, agent: a, work: u, context: make(chan *letter, 1),
		end: end, ended: ctx, isOver: true,
	}
	if hops := task.GetHops(); len(hops) > 0 {
		last := hops[len(hops)-1]
		o.HandoffID, o.SenderID = last.GetHandoffId(), last.GetSenderId()
	}
	defer a.watch(o.TaskID, o.Epoch, o.recalled)()
	var err error
	o.takeover = &Takeover{TaskID: o.TaskID, offer: o, owned: owned}
	o.takeover.Sections, err = a.lastContext(ctx, o)
	if err == nil {
		a.known.note(o.TaskID, o.takeover.Sections)
		err = a.guarded(func() error { return take(ctx, o) })
	}
	if err != nil {
		a.options.Logger.Warn("a handler of a resumed task failed", "task_id", o.TaskID, "error", err)
	}
	u.end(context.Cause(ctx), err)
}

// lastContext returns the sections of the latest context of a task, or none if it has no context.
func (a *Agent) lastContext(ctx context.Context, o *Offer) ([]*v1.ContextSection, error) {
	latest, err := persist(ctx, a, a.contexts.GetContext, &v1.GetContextRequest{TaskId: o.TaskID})
	if version := latest.GetVersion(); err == nil && !version.GetDigestsOnly() {
		var sections []*v1.ContextSection
		for _, info := range version.GetSections() {
			request := &v1.GetContextSectionRequest{TaskId: o.TaskID, Name: info.GetName(), Version: version.GetVersion()}
			answer, err := persist(ctx, a, a.contexts.GetContextSection, request)
			if err != nil {
				return nil, err
			}
			sections = append(sections, sectionOf(answer))
		}
		return sections, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if o.HandoffID == "" {
		return nil, nil
	}
	request := &v1.GetHandoffRequest{HandoffId: o.HandoffID, IncludeContext: true}
	answer, err := persist(ctx, a, a.handoffs.GetHandoff, request)
	if err != nil || answer.GetContext() == nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, nil // the broker has none, or no longer
	}
	d, err := a.found(ctx, answer.GetContext(), o.HandoffID)
	if err != nil {
		return nil, err
	}
	transfer, _ := d.Payload.(*v1.TaskContextTransfer)
	return transfer.GetSections(), nil
}
