//! Processes that ask for the tasks that an earlier process of their agent has left (`ResumeTasks`).

use baton_broker_core::{engine::Command, ids::TaskId};

use super::World;

impl World {
    /// A process asks for the tasks of its agent that no connected process works on. Some ask twice.
    pub(super) fn resume(&mut self, agent: usize) {
        for _ in 0..1 + self.rng.roll(2) {
            let process = &self.agents[agent];
            let (Some(session), Some(instance), true) = (process.session, process.instance, process.tells_work) else {
                return;
            };
            let id = process.id.clone();
            // The list may be old: the engine decides.
            let tasks: Vec<_> = (0..6).map(|number| TaskId::parse(&format!("task-{number}")).unwrap()).collect();
            let tasks_max = usize::try_from(1 + self.rng.roll(3)).unwrap();
            let owner = id.clone();
            let asked = self.ask(|reply| Command::Resume { agent: owner, instance, tasks, tasks_max, reply });
            let Some(Ok(given)) = asked else { return };
            assert!(given.len() <= tasks_max, "a process gets as many tasks as it has asked for");
            for task in given {
                self.counts.add("tasks resumed");
                let line = format!("{id} resumes {task} as {instance}");
                self.trace.say(self.now, &line);
                let mut laws = self.disk.laws.lock().unwrap();
                laws.silence.resumes(session, &id, &task);
                let owner = laws.owner_of(&task).map(|(owner, epoch)| (owner.clone(), epoch));
                drop(laws);
                let Some((owner, epoch)) = owner else { panic!("SPEC 3: {task} is resumed, and nobody owns it") };
                assert_eq!(owner, id, "SPEC 3: {task} is given to a process of another agent");
                self.agents[agent].owned.insert(task.to_string(), epoch);
            }
        }
    }
}
