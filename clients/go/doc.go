// Package baton is the client of the baton handoff broker: agents in Go that hand tasks over to other agents and take
// tasks over. Every message is signed, and a task has exactly one owner at any time.
//
// Connect returns an Agent. It proves the agent's identity, keeps a session with the broker and replaces the session
// when it ends. Serve takes the agent's mail and calls handlers: Handlers.Offer for offered tasks. HandOver gives a
// task to another agent, Delegate lends it. After a restart, Options.Resume, OwnedTasks, ResumeHandOver and ResumeAsk
// continue the work of the earlier process. OwnedTask.Ask asks another agent a question, and Handlers.Prompt answers
// one. FindAgents and WatchAgents read the directory, WatchTask and WatchHandoffs follow tasks and handoffs. A
// Workspace has the shared entries of a task, and a Run the turns of models that route through a graph. FromOpenAIChat,
// ToAnthropic and their like convert conversations from and to the shapes of models. Send and the
// methods for the single steps of a handoff (RequestHandoff, Accept, SendContext, Complete and so on) verify and return
// the broker's signed receipt. The messages are those of package batonv1, generated from the broker's schema.
// OptionsFromEnv reads the Options of Connect from the environment, or from a profile of the command line.
//
// A refusal of the broker is an *Error with a stable Reason. A handoff that ends without moving its task is a
// *HandoffFailedError, and a question that ends without an answer a *NoAnswerError. A message that does not verify is a
// *VerificationError.
package baton

//go:generate buf generate
