package baton

import (
	"context"
	"errors"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

type parentKey struct{}

// WithParent returns a context whose requests create parts of this task. With an empty taskID they create tasks without a
// parent. Without WithParent, a request that is sent with the context of a handler creates a part of the task that the
// handler has taken over, while this agent owns that task, so that the broker can end loops over new tasks and cancel the
// parts with their task. A parent_task_id in the request has precedence.
func WithParent(ctx context.Context, taskID string) context.Context {
	return context.WithValue(ctx, parentKey{}, &taskID)
}

// parentOf returns the parent of a task that is created with this context, and whether the caller named it.
func (a *Agent) parentOf(ctx context.Context) (taskID string, isNamed bool) {
	if named, ok := ctx.Value(parentKey{}).(*string); ok {
		return *named, true
	}
	if u := undertakingOf(ctx); u != nil && u.agent == a {
		if task := u.task(); task != nil {
			return task.TaskID, false
		}
	}
	return "", false
}

// withParent returns the payload of a request with the parent of its new task.
func (a *Agent) withParent(ctx context.Context, about About, payload proto.Message) proto.Message {
	request, isRequest := payload.(*v1.HandoffRequest)
	// Only a request at epoch 1 can create a task.
	if !isRequest || about.Epoch != 1 || request.GetParentTaskId() != "" {
		return payload
	}
	parent, _ := a.parentOf(ctx)
	if parent == "" || parent == about.TaskID {
		return payload
	}
	request = proto.CloneOf(request)
	request.ParentTaskId = parent
	return request
}

// CreateTask begins a task that this agent owns, at epoch 1 and without a handoff. Its context, workspace, runs and threads can
// begin at once, and it can be handed over later. With the context of a handler the new task is a part of the handler's:
// see WithParent. The broker refuses an id in use: with TASK_EXISTS if this agent takes part in the task, else with
// NOT_OWNER.
func (a *Agent) CreateTask(ctx context.Context, taskID string, create *v1.TaskCreate) (*OwnedTask, error) {
	if parent, _ := a.parentOf(ctx); create.GetParentTaskId() == "" && parent != taskID {
		create = proto.CloneOf(create)
		create.ParentTaskId = parent
	}
	receipt, err := a.Send(ctx, "", About{TaskID: taskID, Epoch: 1}, create)
	if err != nil {
		return nil, err
	}
	return a.ownedBy(receipt, taskID), nil
}

// withoutParent returns the refused request of a handler without the parent that it did not name, if the broker refused
// that parent alone: the request creates no task, or this agent no longer owns the parent. Otherwise it returns nil.
func (a *Agent) withoutParent(ctx context.Context, envelope *v1.Envelope, err error) *v1.Envelope {
	var refused *Error
	if envelope.GetMessageType() != v1.MessageType_MESSAGE_TYPE_HANDOFF_REQUEST || !errors.As(err, &refused) {
		return nil
	}
	parent, isNamed := a.parentOf(ctx)
	payload, _ := PayloadOf(envelope)
	request, _ := payload.(*v1.HandoffRequest)
	if isNamed || parent == "" || request.GetParentTaskId() != parent || !a.isWrongParent(ctx, envelope, parent, refused) {
		return nil
	}
	request.ParentTaskId = ""
	value, err := proto.Marshal(request)
	if err != nil {
		return nil
	}
	again := proto.CloneOf(envelope)
	again.Payload.Value = value
	return again
}

func (a *Agent) isWrongParent(ctx context.Context, envelope *v1.Envelope, parent string, refused *Error) bool {
	switch refused.ErrorCode() {
	case v1.ErrorCode_ERROR_CODE_FIELD_INVALID:
		isOfParent := slices.ContainsFunc(refused.Fields, func(field FieldViolation) bool {
			return strings.HasSuffix(field.Field, "parent_task_id")
		})
		if !isOfParent {
			return false
		}
		_, err := a.GetTask(ctx, envelope.GetTaskId())
		return err == nil // the task exists already
	case v1.ErrorCode_ERROR_CODE_NOT_OWNER, v1.ErrorCode_ERROR_CODE_TASK_FINAL:
		task, err := a.GetTask(ctx, parent)
		return err == nil && (task.GetOwnerId() != a.ID() || isFinalStatus(task.GetStatus()))
	}
	return false
}
