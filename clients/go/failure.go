package baton

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// The bound of TaskStatusUpdate.details.
const detailsBytesMax = 16384

// failTask ends a task as FAILED after its handler has failed, unless the task has ended or moved on. The end of Serve or of
// the agent is no failure: another process goes on with the task.
func (a *Agent) failTask(ctx context.Context, task *OwnedTask, cause, failure error) {
	var recalled *TaskRecalledError
	switch {
	case task.isLost() || a.life.Err() != nil:
		return
	case ctx.Err() != nil || errors.Is(cause, errStopped) || errors.Is(failure, errStopped):
		return
	case a.isStopping() && (errors.Is(failure, context.Canceled) || errors.Is(failure, ErrClosed)):
		return
	case errors.As(cause, &recalled) && !recalled.IsOwner:
		return
	}
	log := a.options.Logger.With("task_id", task.TaskID)
	update := &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_FAILED, Details: failureText(failure)}
	_, err := a.UpdateStatus(ctx, task.TaskID, task.present(), update)
	switch {
	case err == nil:
		log.Warn("a handler failed, and its task with it", "error", failure)
	case HasGoneOn(err):
		log.Warn("a handler failed after its task had moved on", "error", failure)
	default:
		log.Error("a handler failed, and the task's status could not be reported", "error", failure, "cause", err)
	}
}

func (a *Agent) setStopping(is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopping = is
}

func (a *Agent) isStopping() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stopping
}

// failureText returns the type and the message of an error, within the bound of a status's details. The types that only
// carry a text are left out.
func failureText(failure error) string {
	text := failure.Error()
	switch kind := fmt.Sprintf("%T", failure); kind {
	case "*errors.errorString", "*fmt.wrapError", "*fmt.wrapErrors", "*errors.joinError":
	default:
		text = kind + ": " + text
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	return cut(text, detailsBytesMax)
}
