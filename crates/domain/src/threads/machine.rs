//! The machines of specs and threads: total over every state and input.

use std::sync::Arc;

use super::{
    ACTIONS_KNOWN, Action, ActionId, Boundary, Create, EndedRequest, Event, InForce, Input, KnownAction, LEASE,
    LOG_KEPT, OpenRun, REVISIONS_MAX, Rejection, Request, RequestEnd, Spec, SpecKind, Thread, ThreadEntry, ThreadRunId,
    Unresolved,
};
use crate::{
    Effect, Entity, EntityId, ReadError, Reader, StepError, Transition,
    ids::{AgentId, SpecId, ThreadId},
    time::Timestamp,
};

/// Applies one input to a spec. Other inputs than a registration change nothing.
pub(crate) fn step_spec(
    kind: SpecKind,
    id: &SpecId,
    input: &crate::Input,
    read: &mut dyn Reader,
) -> Result<Transition, StepError> {
    let crate::Input::Thread(Input::PutSpec { spec, removed, deleted }) = input else {
        return Ok(Transition::default());
    };
    let known = latest(read, kind, id)?;
    let revision = known.as_ref().map_or(*removed, |known| known.revision);
    // The same spec again is the same revision, so that a runtime may register its specs at every start.
    if known.is_some_and(|known| Spec { revision: 0, ..Spec::clone(&known) } == *spec) {
        return Ok(Transition::default());
    }
    // Revisions are kept while boundaries may name them, so their number is bounded.
    if revision.saturating_sub(*deleted) >= REVISIONS_MAX {
        return Err(Rejection::TooManyRevisions { spec: id.clone() }.into());
    }
    let spec = Arc::new(Spec { revision: revision + 1, ..spec.clone() });
    Ok(Transition { writes: vec![Entity::Spec(spec.clone()), Entity::SpecRevision(spec)], effects: Vec::new() })
}

/// Applies one input to a thread.
pub(crate) fn step_thread(
    id: &ThreadId,
    input: &crate::Input,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    let known = match read.entity(&EntityId::Thread(id.clone()))? {
        Some(Entity::Thread(thread)) => Some(thread),
        Some(_) | None => None,
    };
    let input = match input {
        crate::Input::Thread(input) => input,
        crate::Input::Time => {
            return Ok(known.map_or_else(Transition::default, |thread| pass_time(&thread, now)));
        }
        // A thread has no mail and no custody log, and no machine sends it an input.
        crate::Input::Handoff { .. }
        | crate::Input::Append { .. }
        | crate::Input::Routing(_)
        | crate::Input::Negotiation(_)
        | crate::Input::Plan(_)
        | crate::Input::Acked { .. }
        | crate::Input::Undeliverable { .. }
        | crate::Input::AgentGone
        | crate::Input::Signal(_) => return Ok(Transition::default()),
    };
    if let Input::Create(create) = input {
        return begin(id, known.as_deref(), create, read, now);
    }
    // An ended thread gets the answer of an unknown one: a later removal must not change the answer.
    let open = known.filter(|thread| !thread.has_ended).ok_or(Rejection::ThreadUnknown)?;
    let builder = TransitionBuilder::new(Thread::clone(&open), now);
    match input {
        Input::Act { id, action, by } => act(builder, *id, action, by.as_ref(), read),
        Input::BeginRun { run, runner } => begin_run(builder, *run, runner.as_ref(), read),
        Input::EndStep { run, runner, step } => end_step(builder, *run, runner.as_ref(), *step, read),
        Input::EndRun { run, runner } => end_run(builder, *run, runner.as_ref()),
        // A spec is registered under its own id.
        Input::PutSpec { .. } | Input::Create(_) => Ok(Transition::default()),
    }
}

// ------------------------------------------------------------------------------------------------------------- specs

fn latest(read: &mut dyn Reader, kind: SpecKind, id: &SpecId) -> Result<Option<Arc<Spec>>, ReadError> {
    Ok(match read.entity(&EntityId::Spec(kind, id.clone()))? {
        Some(Entity::Spec(spec)) => Some(spec),
        Some(_) | None => None,
    })
}

/// The latest revision of a spec and of its model.
fn resolve(read: &mut dyn Reader, id: &SpecId) -> Result<Result<InForce, Unresolved>, ReadError> {
    let Some(spec) = latest(read, SpecKind::Agent, id)? else { return Ok(Err(Unresolved::NoSpec)) };
    // A spec without a model cannot run, so it resolves no more than one whose model is missing.
    let model = match &spec.model {
        Some(model) => latest(read, SpecKind::Model, model)?,
        None => None,
    };
    Ok(model.ok_or(Unresolved::NoModel).map(|model| InForce {
        spec: spec.id.clone(),
        revision: spec.revision,
        model: model.id.clone(),
        model_revision: model.revision,
    }))
}

/// The revision of the spec in force. It is kept while a thread has the spec in force.
fn spec_in_force(read: &mut dyn Reader, in_force: &InForce) -> Result<Arc<Spec>, ReadError> {
    match read.entity(&EntityId::SpecRevision(SpecKind::Agent, in_force.spec.clone(), in_force.revision))? {
        Some(Entity::SpecRevision(spec)) => Ok(spec),
        Some(_) | None => Err(ReadError),
    }
}

// ----------------------------------------------------------------------------------------------------------- actions

fn begin(
    id: &ThreadId,
    known: Option<&Thread>,
    create: &Create,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    // The participants are not compared: the thread adds its creator to the named ones.
    let is_same = |known: &Thread| {
        known.base == create.base && known.task == create.task && known.creator == create.by && !known.has_ended
    };
    if known.is_some_and(is_same) {
        return Ok(Transition::default());
    }
    if let Some(id) = &create.task {
        // The participants of the task take part in its threads, so of all agents only its owner may attach one. An agent
        // gets the same answer for an unknown task and for one of another agent.
        match (read.entity(&EntityId::Task(id.clone()))?, &create.by) {
            (Some(Entity::Task(_)), None) => {}
            (Some(Entity::Task(task)), Some(by)) if task.owner == *by => {}
            (Some(_) | None, Some(_)) => return Err(Rejection::NotOwner { task: id.clone() }.into()),
            (Some(_) | None, None) => return Err(Rejection::TaskUnknown { task: id.clone() }.into()),
        }
    }
    let in_force =
        resolve(read, &create.base)?.map_err(|why| Rejection::ResolveFailed { spec: create.base.clone(), why })?;
    // Last: a creation that cannot succeed does not tell whether the id is in use.
    if known.is_some() {
        return Err(Rejection::ThreadExists.into());
    }
    let thread = Thread {
        id: id.clone(),
        base: create.base.clone(),
        active: None,
        requested: None,
        in_force,
        creator: create.by.clone(),
        participants: create.participants.iter().chain(&create.by).cloned().collect(),
        task: create.task.clone(),
        run: None,
        last_run: None,
        boundary: None,
        actions: Vec::new(),
        log_length: 0,
        created_at: now,
        updated_at: now,
        has_ended: false,
    };
    let mut builder = TransitionBuilder::new(thread, now);
    builder.log(Event::Created { base: create.base.clone(), by: create.by.clone() });
    Ok(builder.done())
}

fn act(
    mut builder: TransitionBuilder,
    id: Option<ActionId>,
    action: &Action,
    by: Option<&AgentId>,
    read: &mut dyn Reader,
) -> Result<Transition, StepError> {
    // Before all other checks: a repeat has its first answer even if the thread could not take the action now.
    if let Some(known) = builder.thread.actions.iter().find(|known| Some(known.id) == id) {
        return if known.action == *action {
            Ok(Transition::default())
        } else {
            Err(Rejection::ActionIdReused { action: known.id }.into())
        };
    }
    // The plugin is the permission to switch. A persona without it keeps the thread until a revision of its spec has it
    // (SPEC 10).
    if let Some(list) = spec_in_force(read, &builder.thread.in_force)?.missing_in() {
        return Err(Rejection::PluginMissing { spec: builder.thread.in_force.spec.clone(), list }.into());
    }
    match action {
        Action::Request(spec) => {
            // A spec that does not resolve now may resolve by the boundary, so this is only a warning.
            let warning = resolve(read, spec)?.err();
            builder.end_request(RequestEnd::Replaced);
            let number = builder.log(Event::Requested { spec: spec.clone(), by: by.cloned(), warning });
            builder.thread.requested = Some(Request { number, spec: spec.clone(), warning });
        }
        Action::Activate(spec) => {
            // Each boundary would pass over an active spec that does not resolve, without a trace.
            if let Err(why) = resolve(read, spec)? {
                return Err(Rejection::ResolveFailed { spec: spec.clone(), why }.into());
            }
            builder.end_request(RequestEnd::Replaced);
            builder.thread.active = Some(spec.clone());
            builder.log(Event::Activated { spec: spec.clone(), by: by.cloned() });
        }
        // The base spec is in force at the next boundary already.
        Action::Clear if builder.thread.active.is_none() && builder.thread.requested.is_none() => {
            if id.is_none() {
                return Ok(Transition::default());
            }
            // The id is kept all the same: a late repeat of the action must not clear a later request.
        }
        Action::Clear => {
            builder.end_request(RequestEnd::Cleared);
            builder.thread.active = None;
            builder.log(Event::Cleared { by: by.cloned() });
        }
    }
    if let Some(id) = id {
        let known = &mut builder.thread.actions;
        // Bounded: a repeat of an older action is taken as a new one.
        if known.len() == ACTIONS_KNOWN {
            known.remove(0);
        }
        known.push(KnownAction { id, action: action.clone() });
    }
    Ok(builder.done())
}

// -------------------------------------------------------------------------------------------------------------- runs

fn begin_run(
    mut builder: TransitionBuilder,
    run: ThreadRunId,
    runner: Option<&AgentId>,
    read: &mut dyn Reader,
) -> Result<Transition, StepError> {
    match &builder.thread.run {
        // Only before the second step. A later repeat would tell a runner that starts over to begin at step 1.
        Some(open)
            if open.id == run && open.runner.as_ref() == runner && open.step == 1 && builder.now < open.lease =>
        {
            return Ok(builder.renew());
        }
        Some(open) if builder.now < open.lease => {
            return Err(Rejection::RunOpen { run: open.id, until: open.lease }.into());
        }
        // The lease is over before its timer has fired.
        Some(_) => builder.end_run(true),
        None => {}
    }
    // A call that was delayed must not open its ended run again.
    if builder.thread.last_run == Some(run) {
        return Err(Rejection::RunEnded { run }.into());
    }
    builder.log(Event::RunBegan { run, runner: runner.cloned() });
    builder.boundary(run, runner.cloned(), 1, read)?;
    Ok(builder.done())
}

fn end_step(
    mut builder: TransitionBuilder,
    run: ThreadRunId,
    runner: Option<&AgentId>,
    step: u64,
    read: &mut dyn Reader,
) -> Result<Transition, StepError> {
    let current = builder.open(run, runner)?.step;
    // The number of the step makes the call idempotent: a runner without an answer names the same step again.
    if step == current {
        builder.boundary(run, runner.cloned(), current + 1, read)?;
        return Ok(builder.done());
    }
    if step.checked_add(1) == Some(current) {
        return Ok(builder.renew());
    }
    Err(Rejection::WrongStep { claimed: step, current }.into())
}

fn end_run(
    mut builder: TransitionBuilder,
    run: ThreadRunId,
    runner: Option<&AgentId>,
) -> Result<Transition, StepError> {
    // The repeat of an end. Another open run means that the thread has moved on, and `open` refuses the call.
    if builder.thread.run.is_none() && builder.thread.last_run == Some(run) {
        return Ok(Transition::default());
    }
    builder.open(run, runner)?;
    builder.end_run(false);
    Ok(builder.done())
}

fn pass_time(thread: &Thread, now: Timestamp) -> Transition {
    if thread.next_deadline().is_none_or(|deadline| now < deadline) {
        return Transition::default();
    }
    let mut builder = TransitionBuilder::new(thread.clone(), now);
    // The run ends first. The idle time then counts from its entry in the log, so the thread itself stays.
    if builder.thread.run.is_some() {
        builder.end_run(true);
    } else {
        builder.thread.has_ended = true;
    }
    builder.done()
}

/// A transition under construction.
struct TransitionBuilder {
    thread: Thread,
    entries: Vec<ThreadEntry>,
    now: Timestamp,
}

impl TransitionBuilder {
    fn new(thread: Thread, now: Timestamp) -> Self {
        Self { thread, entries: Vec::new(), now }
    }

    fn done(mut self) -> Transition {
        self.thread.updated_at = self.now;
        // Each new entry removes the one that leaves the kept part of the log.
        let old = self.entries.iter().filter_map(|entry| entry.number.checked_sub(LOG_KEPT).filter(|old| *old > 0));
        let effects = old.map(|old| Effect::Remove(EntityId::ThreadEntry(self.thread.id.clone(), old))).collect();
        let entries = self.entries.into_iter().map(|entry| Entity::ThreadEntry(Arc::new(entry)));
        let writes = std::iter::once(Entity::Thread(Arc::new(self.thread))).chain(entries).collect();
        Transition { writes, effects }
    }

    /// Answers the repeat of a boundary, which the thread has. It renews the lease: so a runner lives through a step that
    /// is longer than the lease.
    fn renew(mut self) -> Transition {
        let lease = self.now.plus(LEASE);
        match &mut self.thread.run {
            Some(open) if open.lease != lease => open.lease = lease,
            Some(_) | None => return Transition::default(),
        }
        self.done()
    }

    fn log(&mut self, event: Event) -> u64 {
        self.thread.log_length += 1;
        let number = self.thread.log_length;
        self.entries.push(ThreadEntry { thread: self.thread.id.clone(), number, at: self.now, event });
        number
    }

    /// The open run of this runner with this id, whose lease is not over.
    fn open(&self, run: ThreadRunId, runner: Option<&AgentId>) -> Result<&OpenRun, Rejection> {
        match &self.thread.run {
            // The lease decides and not the timer, which may fire late: two runners must never hold the thread at once
            // (SPEC 12, law 15).
            Some(open) if self.now >= open.lease => Err(Rejection::RunEnded { run }),
            Some(open) if open.id == run && open.runner.as_ref() == runner => Ok(open),
            Some(open) => Err(Rejection::RunOpen { run: open.id, until: open.lease }),
            None => Err(Rejection::RunEnded { run }),
        }
    }

    fn end_run(&mut self, lease_over: bool) {
        if let Some(open) = self.thread.run.take() {
            self.thread.last_run = Some(open.id);
            self.log(Event::RunEnded { run: open.id, lease_over });
        }
    }

    fn end_request(&mut self, end: RequestEnd) -> Option<EndedRequest> {
        let request = self.thread.requested.take()?;
        let ended = EndedRequest { number: request.number, spec: request.spec, end };
        self.log(Event::RequestEnded(ended.clone()));
        Some(ended)
    }

    /// Begins a step: promotes the request that waits, and renews the lease.
    fn boundary(
        &mut self,
        run: ThreadRunId,
        runner: Option<AgentId>,
        step: u64,
        read: &mut dyn Reader,
    ) -> Result<(), ReadError> {
        let before = self.thread.in_force.clone();
        let request = self.promote(read)?;
        let after = self.thread.in_force.clone();
        let (mut deactivate, mut activate) = (Vec::new(), Vec::new());
        // `before` is read first, because `promote` replaces it. The lists say what the runtime unloads and loads.
        if before != after {
            let (old, new) = (spec_in_force(read, &before)?, spec_in_force(read, &after)?);
            deactivate = without(&old.plugins, &new.plugins);
            activate = without(&new.plugins, &old.plugins);
        }
        let switched = before != after;
        let boundary = Boundary { run, step, in_force: after, switched, deactivate, activate, request };
        self.log(Event::Boundary(boundary.clone()));
        self.thread.boundary = Some(boundary);
        self.thread.run = Some(OpenRun { id: run, runner, step, lease: self.now.plus(LEASE) });
        Ok(())
    }

    /// Puts the requested spec in force if it resolves, and the latest revision of the active one otherwise.
    fn promote(&mut self, read: &mut dyn Reader) -> Result<Option<EndedRequest>, ReadError> {
        let mut ended = None;
        if let Some(request) = self.thread.requested.clone() {
            match resolve(read, &request.spec)? {
                // The wanted spec becomes the active one too, so that later boundaries stay with it.
                Ok(in_force) => {
                    (self.thread.active, self.thread.in_force) = (Some(request.spec), in_force);
                    return Ok(self.end_request(RequestEnd::Promoted));
                }
                Err(why) => ended = self.end_request(RequestEnd::Failed(why)),
            }
        }
        let wanted = self.thread.active.as_ref().unwrap_or(&self.thread.base).clone();
        // A spec that no longer resolves stays in force as it was.
        if let Ok(in_force) = resolve(read, &wanted)? {
            self.thread.in_force = in_force;
        }
        Ok(ended)
    }
}

/// The entries of one list that the other one does not have.
fn without(one: &[String], other: &[String]) -> Vec<String> {
    one.iter().filter(|plugin| !other.contains(plugin)).cloned().collect()
}

#[cfg(test)]
mod tests;
