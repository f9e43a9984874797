//! Threads: agents register specs, create threads, ask for other personas, and run steps. Some runners die, race for the
//! lease, or report a step twice.

use std::sync::Arc;

use baton_broker_core::{
    domain::{
        EntityId, Input,
        threads::{self, ActionId, Create, PLUGIN, Spec, SpecKind, Thread, ThreadRunId},
    },
    ids::{AgentId, IdSource as _, SpecId, ThreadId},
    proto::v1,
    records::{agent_spec, model_spec},
    time::Timestamp,
};

use super::{Action, Agent, Manner};
use crate::rng::Ids;

/// The persona with this place. The last one has a model that few agents register.
fn spec_id(place: u64) -> SpecId {
    SpecId::parse(&format!("persona-{place}")).unwrap()
}

/// The spec of a model.
pub(crate) fn model(id: &str, text: &str) -> Spec {
    let message = v1::ModelSpec { model_id: id.to_owned(), model_name: text.to_owned(), ..Default::default() };
    model_spec(SpecId::parse(id).unwrap(), message)
}

/// The spec of the persona with this place.
pub(crate) fn persona(place: u64, plugins: &[&str]) -> Spec {
    let model_id = if place == 2 { "rare" } else { "large" };
    let message = v1::AgentSpec {
        spec_id: spec_id(place).to_string(),
        model_id: model_id.to_owned(),
        plugin_ids: plugins.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    agent_spec(spec_id(place), SpecId::parse(model_id).unwrap(), message)
}

/// The runs and the actions of an agent, for their repeats.
#[derive(Debug, Default)]
pub(super) struct Conversations {
    begun: Vec<(ThreadId, ThreadRunId)>,
    acted: Vec<(ThreadId, threads::Input)>,
    /// The threads in which the agent took part when it last looked.
    own: Vec<ThreadId>,
}

impl Agent {
    /// Acts on a thread. `threads` are all stored ones.
    pub(crate) fn converse(&mut self, threads: &[Arc<Thread>], ids: &Ids, now: Timestamp) -> Vec<Action> {
        let known = threads.iter().filter(|thread| !thread.has_ended).cloned().collect::<Vec<_>>();
        let own = known.iter().filter(|thread| thread.participants.contains(&self.id));
        self.conversations.own = own.map(|thread| thread.id.clone()).collect();
        if known.len() < 2 && self.rng.once_in(3) || known.is_empty() {
            return vec![self.create_thread()];
        }
        let thread = self.rng.pick(&known);
        match self.rng.roll(10) {
            0 => vec![self.put_spec()],
            1..=3 => self.act_on(&thread, ids, now),
            4 => self.conversations.acted.last().cloned().map(|(id, input)| call(id, input)).into_iter().collect(),
            _ => self.run_step(&thread, ids, now),
        }
    }

    /// The thread for the end of a delegation. The thread of another agent, or one that is not there, is refused.
    pub(super) fn thread_to_lend_in(&mut self) -> String {
        match &self.conversations.own[..] {
            own if !own.is_empty() && !self.rng.once_in(8) => self.rng.pick(own).to_string(),
            _ => format!("thread-{}", self.rng.roll(2)),
        }
    }

    fn create_thread(&mut self) -> Action {
        let id = ThreadId::parse(&format!("thread-{}", self.rng.roll(2))).unwrap();
        let base = spec_id(if self.rng.once_in(6) { 2 } else { 0 });
        // In some threads all agents take part.
        let names: &[&str] = if self.rng.once_in(2) { &["a", "b", "c", "d", "e"] } else { &[] };
        let participants = names.iter().map(|name| AgentId::parse(name).unwrap()).collect();
        let create = Create { base, by: Some(self.id.clone()), task: None, participants };
        call(id, threads::Input::Create(create))
    }

    /// Registers a revision of a spec: mostly one that permits actions.
    fn put_spec(&mut self) -> Action {
        let place = self.rng.roll(3);
        let spec = match self.rng.roll(8) {
            0 => model("rare", "small"),
            1 => model("large", &format!("large-{}", self.rng.roll(3))),
            2 => persona(place, &["notes"]),
            3 => persona(place, &[PLUGIN, "notes"]),
            4 => persona(place, &["search", PLUGIN]),
            _ => persona(place, &[PLUGIN]),
        };
        let about = EntityId::Spec(spec.kind, spec.id.clone());
        Action::Call(about, Box::new(Input::Thread(threads::Input::PutSpec { spec, removed: 0, deleted: 0 })))
    }

    /// Asks for another persona: also for one that is not registered, and some with an id that another action has.
    fn act_on(&mut self, thread: &Thread, ids: &Ids, now: Timestamp) -> Vec<Action> {
        let spec = spec_id(self.rng.roll(4));
        let action = match self.rng.roll(6) {
            0 => threads::Action::Clear,
            1 | 2 => threads::Action::Activate(spec),
            _ => threads::Action::Request(spec),
        };
        let known = thread.actions.last().map(|known| known.id).filter(|_| self.rng.once_in(8));
        let id = known.unwrap_or_else(|| ActionId(ids.message_id(now)));
        let id = (!self.rng.once_in(5)).then_some(id);
        let input = threads::Input::Act { id, action, by: Some(self.id.clone()) };
        self.conversations.acted.push((thread.id.clone(), input.clone()));
        vec![call(thread.id.clone(), input)]
    }

    /// Goes on with a run, or begins one, also while another agent runs.
    fn run_step(&mut self, thread: &Thread, ids: &Ids, now: Timestamp) -> Vec<Action> {
        let (id, runner) = (thread.id.clone(), Some(self.id.clone()));
        let own = thread.run.as_ref().filter(|run| run.runner == runner).cloned();
        // Some runners die: they report no more, and their lease runs out.
        if own.is_some() && self.rng.once_in(8) {
            return Vec::new();
        }
        let input = match own {
            Some(run) if self.rng.once_in(5) => threads::Input::EndRun { run: run.id, runner },
            Some(run) => {
                // Some have counted wrong.
                let step = if self.rng.once_in(10) { self.rng.roll(4) } else { run.step };
                threads::Input::EndStep { run: run.id, runner, step }
            }
            None => {
                let former = self.conversations.begun.last().filter(|(of, _)| *of == id).map(|(_, run)| *run);
                let former = former.filter(|_| self.rng.once_in(3));
                let run = former.unwrap_or_else(|| ThreadRunId(ids.message_id(now)));
                self.conversations.begun.push((id.clone(), run));
                // A runner without an answer does not know whether its run has begun, or whether it has ended.
                match former {
                    Some(run) if self.rng.once_in(2) => {
                        threads::Input::EndStep { run, runner, step: 1 + self.rng.roll(2) }
                    }
                    _ => threads::Input::BeginRun { run, runner },
                }
            }
        };
        let mut actions = vec![call(id.clone(), input.clone())];
        if self.manner == Manner::Double || self.rng.once_in(10) {
            actions.push(Action::Later(self.rng.roll(90_000), Box::new(call(id, input))));
        }
        actions
    }
}

/// The first specs of a store: two personas that resolve.
pub(crate) fn first_specs() -> [Spec; 3] {
    [model("large", "large"), persona(0, &[PLUGIN, "notes"]), persona(1, &[PLUGIN, "search"])]
}

/// The entity of a spec.
pub(crate) fn entity_of(spec: &Spec) -> (SpecKind, SpecId) {
    (spec.kind, spec.id.clone())
}

fn call(thread: ThreadId, input: threads::Input) -> Action {
    Action::Call(EntityId::Thread(thread), Box::new(Input::Thread(input)))
}
