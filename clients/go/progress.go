package baton

import (
	"context"
	"time"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// The time for which the end of Delegate waits for the last reports of the delegate.
const lastReportsTime = time.Second

type progressKey struct{}

// WithProgress returns a context with which Delegate calls show with each status update of the lent task, in order, while
// it waits: its status, progress, details and question. The final status is the Outcome. show must not block; it is not
// called after the return of Delegate. If the reports cannot be read, Delegate goes on without them.
func WithProgress(ctx context.Context, show func(*v1.TaskStatusUpdate)) context.Context {
	return context.WithValue(ctx, progressKey{}, show)
}

// showProgress shows the status updates of a loan to the function of WithProgress. It returns the function that shows the
// last ones and ends this.
func (a *Agent) showProgress(ctx context.Context, lent *HandedOver) func() {
	show, is := ctx.Value(progressKey{}).(func(*v1.TaskStatusUpdate))
	if !is {
		return func() {}
	}
	watching, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := a.eachReport(watching, lent, show); err != nil && watching.Err() == nil {
			a.options.Logger.Warn("failed to read the reports of a delegate", "task_id", lent.TaskID, "error", err)
		}
	}()
	return func() {
		select {
		case <-done:
		case <-time.After(lastReportsTime):
		}
		stop()
		<-done
	}
}

// eachReport shows the status updates of a loan until its end.
func (a *Agent) eachReport(ctx context.Context, lent *HandedOver, show func(*v1.TaskStatusUpdate)) error {
	task, err := persist(ctx, a, a.tasks.GetTask, &v1.GetTaskRequest{TaskId: lent.TaskID})
	if err != nil {
		return err
	}
	after, err := a.loanStart(ctx, task.GetTask(), lent.Epoch)
	if err != nil {
		return err
	}
	for update, err := range a.WatchTask(ctx, lent.TaskID, after) {
		if err != nil {
			return err
		}
		entry := update.GetEntry().GetEntry()
		isOver := entry.GetEpoch() > lent.Epoch && entry.GetOwnerId() == a.ID()
		envelope := update.GetEntry().GetEnvelope()
		if isOver || isFinalStatus(entry.GetTaskStatus()) {
			return nil
		}
		if entry.GetEpoch() < lent.Epoch || envelope == nil {
			continue
		}
		payload, err := PayloadOf(envelope)
		if report, is := payload.(*v1.TaskStatusUpdate); err == nil && is && !isFinalStatus(report.GetStatus()) {
			show(report)
		}
	}
	return nil
}
