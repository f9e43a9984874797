// Package baton is the client of the baton handoff broker: agents in Go that hand tasks over to other agents, and take
// them, with every message signed and exactly one owner of a task at any time.
//
// Connect makes an Agent, which proves who it is, keeps a session with the broker and opens another when that breaks.
// Serve takes its mail and calls handlers: Handlers.Offer for the tasks that it is offered. HandOver gives a task to
// another agent, Delegate lends it. OwnedTasks and ResumeHandOver are for a process that starts where an earlier one of
// the same agent ended. Send and the methods for the single steps of a handoff (RequestHandoff, Accept, SendContext,
// Complete and so on) return the broker's signed receipt, which is checked. The messages themselves are those of package
// batonv1, generated from the broker's schema.
//
// What the broker refuses is an *Error with a stable Reason; a handoff that ends without moving its task is a
// *HandoffFailedError; what does not verify is a *VerificationError.
package baton

//go:generate buf generate
