//! The thread of the tables: applies entries in their order, and changes the tables between following and leading.
//!
//! Owns the thread. A write may wait for the disk here, and delays no lease.

use std::{
    io,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use baton_protocol::lead::LeadGuard;
use baton_store::{ApplyError, OpenError, Replica, RestoreError, Whole};
use tokio::sync::{mpsc as tokio_mpsc, watch};

use super::{Input, Term, chain_of, commit_log::TermLog, mark_of};
use crate::{
    entry::{Chain, Entry, Payload, Position},
    leader_log::Ticket,
    member::{Event, Leave},
};

enum Job {
    Apply(Box<Entry>, Chain),
    Lead { log: TermLog, former: Option<String>, guard: LeadGuard, ended: watch::Receiver<Option<Leave>> },
    Follow,
    Restore(Ticket, Whole),
    WriteOut,
}

/// Why the thread of the tables ends.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("failed to apply an entry of the shared log: {0}")]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    WriteOut(#[from] OpenError),
    #[error("failed to put a checkpoint in the place of the tables: {0}")]
    Restore(#[from] RestoreError),
}

/// The thread of the tables.
pub(super) struct Applier {
    replica: Arc<Replica>,
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Applier {
    pub(super) fn start(
        replica: Arc<Replica>,
        inputs: tokio_mpsc::UnboundedSender<Input>,
        terms: tokio_mpsc::UnboundedSender<Term>,
    ) -> io::Result<Self> {
        let (jobs, received) = mpsc::channel();
        let tables = replica.clone();
        let work = move || {
            for job in received {
                if let Err(error) = execute(&tables, job, &inputs, &terms) {
                    tracing::error!(%error, "the tables of this broker have failed");
                    drop(inputs.send(Input::Event(Event::DiskFailed)));
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("baton-tables".into()).spawn(work)?;
        Ok(Self { replica, jobs: Some(jobs), thread: Some(thread) })
    }

    pub(super) fn flushed_upto(&self) -> Position {
        self.replica.flushed_upto()
    }

    pub(super) fn apply(&self, entry: Box<Entry>, chain: Chain) {
        self.send(Job::Apply(entry, chain));
    }

    pub(super) fn lead(
        &self,
        log: TermLog,
        former: Option<String>,
        guard: LeadGuard,
        ended: watch::Receiver<Option<Leave>>,
    ) {
        self.send(Job::Lead { log, former, guard, ended });
    }

    pub(super) fn follow(&self) {
        self.send(Job::Follow);
    }

    /// Puts a checkpoint in the place of the tables, and reports it as the outcome of this call.
    pub(super) fn restore(&self, ticket: Ticket, whole: Whole) {
        self.send(Job::Restore(ticket, whole));
    }

    /// Writes all that the tables have to the disk.
    pub(super) fn write_out(&self) {
        self.send(Job::WriteOut);
    }

    fn send(&self, job: Job) {
        // The thread has ended only after it has reported why.
        if let Some(jobs) = &self.jobs {
            drop(jobs.send(job));
        }
    }

    /// Ends the thread after its jobs.
    pub(super) fn end(&mut self) {
        self.jobs = None;
        drop(self.thread.take().map(JoinHandle::join));
    }
}

fn execute(
    replica: &Replica,
    job: Job,
    inputs: &tokio_mpsc::UnboundedSender<Input>,
    terms: &tokio_mpsc::UnboundedSender<Term>,
) -> Result<(), Failed> {
    match job {
        Job::Apply(entry, chain) => {
            let group = match &entry.payload {
                Payload::Group(group) => Some(group.as_ref()),
                Payload::Takeover(_) | Payload::Foundation(_) | Payload::Confirmation => None,
            };
            replica.apply(mark_of(chain), group)?;
            drop(inputs.send(Input::Applied(chain.position)));
        }
        Job::Lead { log, former, guard, ended } => {
            let (number, position) = (log.number, log.end.position);
            let store = replica.lead(Box::new(log));
            drop(inputs.send(Input::Applied(position)));
            drop(terms.send(Term { number, position, former, store, guard, ended }));
        }
        Job::Follow => replica.follow(),
        Job::WriteOut => replica.write_out()?,
        Job::Restore(ticket, whole) => {
            let restored = match replica.restore(whole) {
                Ok(mark) => Some(chain_of(mark)),
                Err(error) if replica.has_failed() => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, "a checkpoint of a peer is not used");
                    None
                }
            };
            restored.into_iter().for_each(|chain| drop(inputs.send(Input::Applied(chain.position))));
            drop(inputs.send(Input::Event(Event::Restored(ticket, restored))));
        }
    }
    Ok(())
}
