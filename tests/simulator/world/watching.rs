//! Law 9: readers that follow workspaces and logs, are cut, and resume at any number.

use baton_broker_core::{
    Refused, Update, Updates, WatcherId,
    domain::{EntityId, workspace::WorkspaceId},
    engine::Command,
    ids::TaskId,
    proto::v1,
    queries::EntryQuery,
};
use prost::Message as _;
use tokio::sync::watch;

use super::{World, operator};

/// The most readers at a time.
const READERS_MAX: usize = 4;

/// A reader that follows a workspace: it looks for entries whenever it is told of a change, and only then.
pub(super) struct Reader {
    id: WatcherId,
    workspace: WorkspaceId,
    after: u64,
    changes: watch::Receiver<Option<Result<Update, Refused>>>,
    /// The start of the broker that has the watcher.
    life: u64,
}

/// A page of a log: the numbers of its entries, the length of the log, and the gap before them.
type Page = (Vec<u64>, u64, Option<(u64, u64)>);

impl World {
    /// Lets the readers go on: begins some, cuts some, and checks that none misses an entry.
    pub(super) fn watch(&mut self) {
        if self.engine.is_none() {
            return;
        }
        if self.readers.len() < READERS_MAX && self.rng.once_in(3) {
            let workspace = WorkspaceId::parse(&format!("task:task-{}", self.rng.roll(6))).unwrap();
            self.follow(workspace, 0);
        }
        for mut reader in std::mem::take(&mut self.readers) {
            // The broker may die at the commit of another reader. It then resumes with the next start.
            if self.engine.is_none() {
                self.readers.push(reader);
                continue;
            }
            let is_cut = self.rng.once_in(6);
            if is_cut && reader.life == self.life {
                let now = self.see_clock();
                self.engine.as_mut().unwrap().handle(Command::Unwatch { watcher: reader.id }, now);
            }
            if is_cut || reader.life != self.life {
                // It resumes where it was, or at an earlier number, or beyond the end.
                let after = match self.rng.roll(8) {
                    0..=3 => reader.after,
                    4 => reader.after + 3,
                    _ => self.rng.roll(reader.after + 1),
                };
                self.counts.add("watches resumed");
                self.follow(reader.workspace, after);
            } else if self.goes_on(&mut reader) {
                self.readers.push(reader);
            }
        }
        self.read_logs();
    }

    /// Subscribes a reader, and reads up to the end.
    fn follow(&mut self, workspace: WorkspaceId, after: u64) {
        if self.engine.is_none() {
            return;
        }
        self.next += 1;
        let (id, entity) = (WatcherId(self.next), EntityId::Workspace(workspace.clone()));
        let (updates, changes) = Updates::latest();
        let now = self.see_clock();
        self.engine.as_mut().unwrap().handle(Command::Watch { watcher: id, entity, updates }, now);
        self.finish();
        let mut reader = Reader { id, workspace, after, changes, life: self.life };
        if self.engine.is_some() && self.read_entries(&mut reader) {
            self.readers.push(reader);
        }
    }

    /// Reads what the reader was told of. Returns false once the workspace is no more.
    fn goes_on(&mut self, reader: &mut Reader) -> bool {
        let is_told = reader.changes.has_changed();
        if let Ok(true) = is_told {
            reader.changes.mark_unchanged();
            self.counts.add("watches told");
            return self.read_entries(reader);
        }
        let last = self.disk.laws.lock().unwrap().workspaces.last(&reader.workspace);
        // The removal of a workspace ends its watches.
        if is_told.is_err() {
            assert_eq!(last, 0, "law 9: the watch of {} ended before the workspace", reader.workspace);
            return false;
        }
        assert_eq!(last, reader.after, "law 9: a reader of {} was not told of an entry", reader.workspace);
        true
    }

    /// Reads pages up to the end. Returns false if there is no such workspace.
    fn read_entries(&mut self, reader: &mut Reader) -> bool {
        loop {
            let limit = usize::try_from(1 + self.rng.roll(5)).unwrap();
            let (workspace, after) = (reader.workspace.clone(), reader.after);
            let query = EntryQuery { workspace, topics: Vec::new(), after, limit, envelopes: false };
            let caller = operator();
            let Ok(page) = self.view(&caller).expect("the broker is there").workspace_entries(&query) else {
                return false;
            };
            self.disk.laws.lock().unwrap().workspaces.see_page(&reader.workspace, after, &page);
            if page.gap.is_some() {
                self.counts.add("watches: gaps");
            }
            *self.counts.0.entry("watches: entries").or_default() += page.entries.len() as u64;
            reader.after = page.next_after;
            if !page.has_more() {
                return true;
            }
        }
    }

    /// Reads a log of each kind from any number on: it has no gap, and ends at its length.
    fn read_logs(&mut self) {
        let laws = self.disk.laws.lock().unwrap();
        let (plans, runs, threads) = (laws.plans.known(), laws.runs.known(), laws.threads.known());
        drop(laws);
        let caller = operator();
        let (share, limit) = (self.rng.number() >> 1, usize::try_from(1 + self.rng.roll(6)).unwrap());
        let Some(view) = self.view(&caller) else { return };
        let pick = |many: usize| usize::try_from(share).unwrap() % many.max(1);
        let check = |what: &str, read: &dyn Fn(u64) -> Page| {
            let length = read(0).1;
            let mut after = share % (length + 1);
            while after < length {
                let (numbers, _, gap) = read(after);
                assert_eq!(gap, None, "law 9: a gap in the log of {what}");
                let expected: Vec<u64> = (after + 1..).take(numbers.len()).collect();
                assert_eq!(numbers, expected, "law 9: the log of {what} after {after}, once and in order");
                assert!(!numbers.is_empty(), "law 9: the log of {what} ends before its length");
                after += numbers.len() as u64;
            }
            let beyond = read(length + 2);
            assert_eq!(beyond.2, Some((length + 1, length + 2)), "law 9: beyond the end of the log of {what}");
        };
        if let Some((plan, _)) = plans.get(pick(plans.len())) {
            check("a plan", &|after| {
                let page = view.plan_log(plan, after, limit).unwrap();
                (page.entries.iter().map(|entry| entry.number).collect(), page.length, page.gap)
            });
        }
        if let Some(run) = runs.get(pick(runs.len())) {
            check("a run", &|after| {
                let page = view.run_log(run.id, after, limit).unwrap();
                (page.entries.iter().map(|entry| entry.number).collect(), page.length, page.gap)
            });
        }
        if let Some(thread) = threads.get(pick(threads.len())) {
            check("a thread", &|after| {
                let page = view.thread_log(&thread.id, after, limit).unwrap();
                (page.entries.iter().map(|entry| entry.number).collect(), page.length, page.gap)
            });
        }
        let task = TaskId::parse(&format!("task-{}", share % 6)).unwrap();
        if view.task(&task).is_ok() {
            let number = |bytes: &bytes::Bytes| v1::CustodyEntry::decode(bytes.clone()).unwrap().number;
            check("a task", &|after| {
                let page = view.custody(&task, after, limit, false).unwrap();
                let numbers = page.entries.iter().map(|entry| number(&entry.entry_bytes)).collect();
                (numbers, page.length, page.gap)
            });
        }
    }
}
