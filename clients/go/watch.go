package baton

import (
	"context"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const handoffsPerPage = 200

// ListTasks iterates over the tasks that match the request's filters, in its order. It sets the request's page_token, reads
// page by page, and ends with an error if a page cannot be read.
func (a *Agent) ListTasks(ctx context.Context, request *v1.ListTasksRequest) iter.Seq2[*v1.Task, error] {
	asked := proto.CloneOf(request)
	if asked.GetAskedAgentId() == "" {
		asked.PageSize = orElse(asked.GetPageSize(), tasksPerPage)
	}
	return pages(func(token string) ([]*v1.Task, string, error) {
		asked.PageToken = token
		page, err := call(ctx, a, a.tasks.ListTasks, asked)
		return page.GetTasks(), page.GetNextPageToken(), err
	})
}

// WatchTask follows the custody log of a task from after a number: each entry once and in order, or a gap that covers it,
// also over lost connections and restarts of the broker. An entry has the envelope of a status update alone. A later watch
// goes on from the number of the last entry that was handled. The iteration ends after the entry with the task's final
// status, or with an error: the cause of ctx, Agent.Err, or the broker's refusal.
func (a *Agent) WatchTask(ctx context.Context, taskID string, after uint64) iter.Seq2[*v1.WatchTaskResponse, error] {
	open := func(ctx context.Context, after uint64) (grpc.ServerStreamingClient[v1.WatchTaskResponse], error) {
		return a.tasks.WatchTask(a.Authorize(ctx), &v1.WatchTaskRequest{TaskId: taskID, AfterNumber: after})
	}
	isOver := func(ctx context.Context, last uint64) (bool, error) {
		task, err := a.GetTask(ctx, taskID)
		// A task that ended while the stream was broken has further entries.
		return isFinalStatus(task.GetStatus()) && task.GetCustodyLength() <= last, err
	}
	return followLog(ctx, a, after, logStream[v1.WatchTaskResponse]{
		open:       open,
		number:     func(update *v1.WatchTaskResponse) uint64 { return update.GetEntry().GetEntry().GetNumber() },
		isCaughtUp: func(*v1.WatchTaskResponse) bool { return false },
		isLast: func(update *v1.WatchTaskResponse) bool {
			return isFinalStatus(update.GetEntry().GetEntry().GetTaskStatus())
		},
		isOver: isOver,
	})
}

// ListHandoffs iterates over the handoffs that match the request's filters, newest first. It sets the request's page_token,
// reads page by page, and ends with an error if a page cannot be read.
func (a *Agent) ListHandoffs(ctx context.Context, request *v1.ListHandoffsRequest) iter.Seq2[*v1.Handoff, error] {
	asked := proto.CloneOf(request)
	asked.PageSize = orElse(asked.GetPageSize(), handoffsPerPage)
	return pages(func(token string) ([]*v1.Handoff, string, error) {
		asked.PageToken = token
		page, err := call(ctx, a, a.handoffs.ListHandoffs, asked)
		return page.GetHandoffs(), page.GetNextPageToken(), err
	})
}

// WatchHandoff follows a handoff: its present state, then its state after each step, until it is final. After a lost
// connection or a restart of the broker it goes on with the state of then. The iteration ends after the final state, or with
// an error: the cause of ctx, Agent.Err, or the broker's refusal.
func (a *Agent) WatchHandoff(ctx context.Context, handoffID string) iter.Seq2[*v1.Handoff, error] {
	return func(yield func(*v1.Handoff, error) bool) {
		var last *v1.Handoff
		err := follow(ctx, a, stream[v1.WatchHandoffResponse]{
			open: func(ctx context.Context) (grpc.ServerStreamingClient[v1.WatchHandoffResponse], error) {
				return a.handoffs.WatchHandoff(a.Authorize(ctx), &v1.WatchHandoffRequest{HandoffId: handoffID})
			},
			take: func(update *v1.WatchHandoffResponse) (bool, error) {
				handoff := update.GetHandoff()
				if last != nil && proto.Equal(last, handoff) {
					return true, nil // the state at the begin of another stream
				}
				last = handoff
				return yield(handoff, nil) && !isFinalState(handoff.GetState()), nil
			},
			isOver: isNeverOver,
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

// WatchHandoffs follows the handoffs that this agent may read and that match: the open ones, or those that changed after the
// request's cursor, then one caught_up, then each change up to its end. It opens the watch again after a lost connection and
// a restart of the broker, and goes on after the last cursor, so that no handoff is missed; of several changes of one handoff
// the last may come alone. A later process goes on from the cursor of the last event that it handled. The iteration has no
// end of its own: it ends with the cause of ctx, with Agent.Err, or with the broker's refusal.
func (a *Agent) WatchHandoffs(
	ctx context.Context, request *v1.WatchHandoffsRequest,
) iter.Seq2[*v1.WatchHandoffsResponse, error] {
	asked := proto.CloneOf(request)
	open := func(ctx context.Context) (grpc.ServerStreamingClient[v1.WatchHandoffsResponse], error) {
		return a.handoffs.WatchHandoffs(a.Authorize(ctx), asked)
	}
	return followChanges(ctx, a, &asked.AfterCursor, open)
}
