//! The handoff machine behind the common interface of [`crate::domain::step`].

use std::sync::Arc;

use super::{
    Acked, Effect, Handoff, Input, Mail, Message, Outcome, Priority, Situation, State, Task, Transition, step,
};
use crate::{
    domain::{
        self, Entity, EntityId, MessageType, ReadError, Reader, StepError, Told,
        dead_letter::{ParkReason, offers_as_attempts},
        routing::{HandoffRef, Word},
        rules,
    },
    ids::{AgentId, MessageId, TaskId},
    time::Timestamp,
};

/// Applies one input to a task or a handoff. An event about an unknown handoff changes nothing; a message about it is
/// rejected.
pub(in crate::domain) fn step_entity(
    about: &EntityId,
    input: &domain::Input,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<domain::Transition, StepError> {
    let handoff = match about {
        EntityId::Handoff(id) => read_handoff(read, *id)?,
        _ => None,
    };
    let (task, input) = match input {
        domain::Input::Handoff { task, input } => (Some(task), input),
        domain::Input::Acked { by, role } => (None, &Input::Acked { by: by.clone(), mail: *role }),
        domain::Input::Undeliverable { to, role } => (None, &Input::Undeliverable { to: to.clone(), mail: *role }),
        domain::Input::AgentGone => (None, &Input::CandidateGone),
        domain::Input::Time => match about {
            EntityId::Task(task) => (Some(task), &Input::TaskDue),
            _ => (None, &Input::Time),
        },
        // No machine sends an input to a task or a handoff, and only workspaces have entries.
        domain::Input::Told(_) | domain::Input::Append { .. } | domain::Input::Routing(_) => {
            return Ok(domain::Transition::default());
        } // No machine sends an input to a task or a handoff, and calls about runs are no inputs of them.
    };
    // A message names the task of its handoff: admission has refused any other. An event names the handoff alone.
    let task = match task.or(handoff.as_ref().map(|handoff| &handoff.task)) {
        Some(task) => read_task(read, task)?,
        None => None,
    };
    // An input about the task alone may end its open handoff.
    let handoff = match (&handoff, &task, input) {
        (
            None,
            Some(task),
            Input::TaskDue | Input::Seize(_) | Input::Message { message: Message::Recall { .. }, .. },
        ) => task.open_handoff.map_or(Ok(None), |open| read_handoff(read, open))?,
        _ => handoff,
    };
    let gone = gone(read, handoff.as_deref(), input);
    let situation = Situation { task: task.as_deref(), handoff: handoff.as_deref(), gone: &gone };
    match step(situation, input, now)? {
        Outcome::Moved(transition) => {
            let words = words_to_run(handoff.as_deref(), &transition);
            let mut moved = of_entities(*transition, input);
            moved.effects.extend(words);
            Ok(moved)
        }
        Outcome::Unchanged => Ok(domain::Transition::default()),
    }
}

/// The inputs to the run whose choice the handoff carries out: that it has begun, and that it has ended.
fn words_to_run(before: Option<&Handoff>, transition: &Transition) -> Vec<domain::Effect> {
    let Some(after) = &transition.handoff else { return Vec::new() };
    let Some(HandoffRef { run, choice }) = after.routing else { return Vec::new() };
    let send = |word| domain::Effect::Send { to: EntityId::Run(run), told: Told::Run(word) };
    let mut words = Vec::new();
    let handoff = after.id;
    let before = before.filter(|before| before.id == handoff);
    if before.is_none() {
        let (task, receiver) = (after.task.clone(), after.receiver.clone());
        words.push(send(Word::HandoffBegan { choice, handoff, task, receiver }));
    }
    if after.state.is_final() && before.is_none_or(|before| !before.state.is_final()) {
        let owner = (after.state == State::Completed).then(|| transition.task.owner.clone());
        words.push(send(Word::HandoffEnded { choice, handoff, owner }));
    }
    words
}

fn read_task(read: &mut dyn Reader, id: &TaskId) -> Result<Option<Arc<Task>>, ReadError> {
    Ok(match read.entity(&EntityId::Task(id.clone()))? {
        Some(Entity::Task(task)) => Some(task),
        Some(_) | None => None,
    })
}

fn read_handoff(read: &mut dyn Reader, id: MessageId) -> Result<Option<Arc<Handoff>>, ReadError> {
    Ok(match read.entity(&EntityId::Handoff(id))? {
        Some(Entity::Handoff(handoff)) => Some(handoff),
        Some(_) | None => None,
    })
}

/// The gone agents among those that this step may ask, each once and in order.
fn gone(read: &mut dyn Reader, handoff: Option<&Handoff>, input: &Input) -> Vec<AgentId> {
    let next = handoff.filter(|handoff| !handoff.state.is_final()).map_or(&[][..], |handoff| &handoff.next_candidates);
    let new: &[AgentId] = match input {
        Input::Request(request) => &request.candidates,
        Input::Redrive { candidates, .. } => candidates,
        Input::Message { message: Message::Reject { suggestions, .. }, .. } => suggestions,
        // Other messages and acks ask no further candidate.
        Input::Message { .. } | Input::Acked { .. } => return Vec::new(),
        Input::TaskDue | Input::Seize(_) => return Vec::new(),
        Input::Undeliverable { .. } | Input::Time | Input::CandidateGone => &[],
    };
    let mut gone: Vec<AgentId> = next.iter().chain(new).filter(|agent| read.is_gone(agent)).cloned().collect();
    gone.sort();
    gone.dedup();
    gone
}

/// The role of the input message's delivery for the handoff. `None`: the handoff does not wait for the ack.
fn role_of(input: &Input) -> Option<Acked> {
    let message_type = match input {
        Input::Request(_) => MessageType::HandoffRequest,
        Input::Message { message, .. } => match message {
            Message::Accept { .. } => MessageType::HandoffAccept,
            Message::Reject { .. } => MessageType::HandoffReject,
            Message::Cancel => MessageType::HandoffCancel,
            Message::Context { .. } => MessageType::TaskContextTransfer,
            Message::Complete { .. } => MessageType::HandoffComplete,
            Message::Status { .. } => MessageType::TaskStatusUpdate,
            Message::Recall { .. } => MessageType::TaskRecall,
            Message::Input { .. } => MessageType::TaskInput,
        },
        Input::Acked { .. }
        | Input::Undeliverable { .. }
        | Input::Time
        | Input::TaskDue
        | Input::Seize(_)
        | Input::CandidateGone
        | Input::Redrive { .. } => return None,
    };
    rules(message_type).reports
}

fn of_entities(transition: Transition, input: &Input) -> domain::Transition {
    let Transition { task, handoff, effects } = transition;
    let handoff = handoff.map(Arc::new);
    let effects = effects.into_iter().filter(|effect| !is_to_coordinator(effect));
    let effects = effects.map(|effect| effect_on(effect, &task, handoff.as_deref(), input)).collect();
    let mut writes: Vec<Entity> = handoff.into_iter().map(Entity::Handoff).collect();
    writes.push(Entity::Task(Arc::new(task)));
    domain::Transition { writes, effects }
}

/// Whether the effect is mail for the coordinator. It has no mailbox: the step itself is its input.
fn is_to_coordinator(effect: &Effect) -> bool {
    matches!(effect, Effect::Deliver { to, .. } if to.is_coordinator())
}

fn effect_on(effect: Effect, task: &Task, handoff: Option<&Handoff>, input: &Input) -> domain::Effect {
    let moved = || handoff.expect("a step about a handoff writes it");
    let id = || EntityId::Handoff(moved().id);
    let (to, mail) = match effect {
        Effect::Deliver { to, mail } => (to, mail),
        Effect::Order(order) => return domain::Effect::Order(order),
        Effect::ParkRequest(why) => {
            let handoff = moved();
            return domain::Effect::Park {
                entity: id(),
                to: handoff.candidate.clone(),
                reason: ParkReason::of_request(why),
                text: handoff.failure.as_ref().map_or_else(String::new, |failure| failure.message.clone()),
                attempts: offers_as_attempts(handoff),
            };
        }
    };
    let (mail, report_to) = match mail {
        Mail::ThisMessage => {
            let report_to = handoff.and_then(|handoff| Some((EntityId::Handoff(handoff.id), role_of(input)?)));
            (domain::Mail::ThisMessage, report_to)
        }
        Mail::RequestAgain => {
            // An operator may redrive a request after its own expiry.
            let expires = handoff.is_some_and(|handoff| handoff.redrive_of.is_none());
            (domain::Mail::Opening { entity: id(), expires }, Some((id(), Acked::Request)))
        }
        Mail::Notice { notice, about } => {
            let task = Some((task.id.clone(), task.epoch));
            (domain::Mail::Notice { notice, about: Some(about), task }, None)
        }
    };
    // Messages of a handoff have its priority, any other mail the default (SPEC 4).
    let priority = handoff.map_or(Priority::default(), |handoff| handoff.priority);
    domain::Effect::Deliver { to, mail, priority, report_to }
}
