//! Calls of agents that are no messages: they travel like messages, and may be lost, late or doubled.

use baton_broker_core::{
    Refused, Reply,
    domain::{EntityId, Input, routing, threads},
    engine::{Command, Revision},
};
use tokio::sync::oneshot;

use super::{Happening, World};
use crate::agent::{conversing, routing as graphs};

/// A call that the broker has taken, and the answer that it will give.
pub(super) struct Asked {
    about: EntityId,
    input: Box<Input>,
    answer: oneshot::Receiver<Result<bool, Refused>>,
}

impl World {
    /// Registers the graphs and the first specs of a story.
    pub(super) fn register_graphs_and_specs(&mut self) {
        for place in 0..2 {
            let graph = graphs::graph(place, &self.names, &mut self.rng);
            let about = EntityId::Graph(graph.id.clone());
            self.apply(about, Box::new(Input::Routing(routing::Input::Register { graph, removed: 0 })));
        }
        for spec in conversing::first_specs() {
            let (kind, id) = conversing::entity_of(&spec);
            let put = threads::Input::PutSpec { spec, removed: 0, deleted: 0 };
            self.apply(EntityId::Spec(kind, id), Box::new(Input::Thread(put)));
        }
    }

    /// Passes a call to the broker. The answer comes with the commit.
    pub(super) fn apply(&mut self, about: EntityId, input: Box<Input>) {
        let now = self.see_clock();
        let revision = match &*input {
            Input::Routing(routing::Input::Register { graph, .. }) => Some(Revision::Graph(graph.clone())),
            Input::Thread(threads::Input::PutSpec { spec, .. }) => Some(Revision::Spec(spec.clone())),
            _ => None,
        };
        // Registrations have a command of their own, and no law asks for their answers.
        if let Some(revision) = revision.map(Box::new) {
            let caller = super::operator();
            let (etag, reply) = (String::new(), Reply::once().0);
            let command = Command::RegisterRevision { revision, caller, etag, reply };
            return self.engine.as_mut().unwrap().handle(command, now);
        }
        let caller = super::caller_of(&input);
        let (reply, answer) = Reply::once();
        self.asked.push(Asked { about: about.clone(), input: input.clone(), answer });
        self.engine.as_mut().unwrap().handle(Command::Apply { about, input, caller, reply }, now);
    }

    /// Checks the answers that the broker has given.
    pub(super) fn hear_answers(&mut self) {
        for mut asked in std::mem::take(&mut self.asked) {
            match asked.answer.try_recv() {
                Ok(Ok(_)) => self.disk.laws.lock().unwrap().runs.see_answer(&asked.about, &asked.input),
                Ok(Err(refusal)) => self.counts.add(refusal.code().name()),
                Err(oneshot::error::TryRecvError::Empty) => self.asked.push(asked),
                Err(oneshot::error::TryRecvError::Closed) => self.counts.add("calls without an answer"),
            }
        }
    }

    /// Makes the calls of an agent, which has looked at the runs and threads. Many agents go on soon.
    pub(super) fn calls(&mut self, agent: usize) {
        if !self.faults {
            return;
        }
        let laws = self.disk.laws.lock().unwrap();
        let (runs, threads) = (laws.runs.known(), laws.threads.known());
        drop(laws);
        let (ids, now) = (self.ids.clone(), self.now);
        let mut actions = self.agents[agent].route(&runs, &self.names, &ids, now);
        actions.extend(self.agents[agent].converse(&threads, &ids, now));
        actions.into_iter().for_each(|action| self.does(agent, action));
        if self.rng.roll(3) > 0 {
            let soon = 100 + self.rng.roll(2_000);
            self.schedule(soon, Happening::Calls(agent));
        }
    }
}
