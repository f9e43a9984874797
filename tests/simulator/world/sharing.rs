//! Blobs and contexts outside of messages: uploads with interruptions, holds that end, files that are deleted late, and
//! reads by agents with and without the right.

use baton_broker_core::{
    Refused, Reply,
    access::{Access, Caller},
    blobs::{BlobDigest, BlobFiles, BlobPlace, BlobWriter, Removed},
    codes::{ErrorCode, Refusal as _},
    domain::mailbox::EnvelopePlace,
    engine::{Command, NewBlob},
    envelope::signing,
    ids::WorkspaceId,
    queries::{BlobSearch, SectionQuery, View},
    records::{ContextSectionRecord, DecodeError},
    store::Store as _,
};

use super::{Happening, World};
use crate::blobs::is_named;

/// An upload whose bytes the agent is about to send. Its file is open.
pub(super) struct Writing {
    agent: usize,
    digest: BlobDigest,
    bytes: Vec<u8>,
    writer: BlobWriter,
    /// The start of the broker that has taken the upload.
    life: u64,
}

impl std::fmt::Debug for Writing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Writing").field("agent", &self.agent).finish_non_exhaustive()
    }
}

/// The bytes of one of the few blobs of a story, so that agents write the same.
fn content(place: u64) -> Vec<u8> {
    vec![u8::try_from(place).unwrap(); usize::try_from(30 + 17 * place).unwrap()]
}

impl World {
    /// Passes a command to the broker. `None`: the broker died, or was not there.
    pub(super) fn ask<T>(&mut self, command: impl FnOnce(Reply<T>) -> Command) -> Option<Result<T, Refused>> {
        self.engine.as_ref()?;
        let (reply, mut answer) = Reply::once();
        let now = self.see_clock();
        self.engine.as_mut()?.handle(command(reply), now);
        self.finish();
        self.engine.as_ref()?;
        let answer = answer.try_recv().ok()?;
        if let Err(refusal) = &answer {
            self.counts.add(refusal.code().name());
        }
        Some(answer)
    }

    /// Lets an agent do something with blobs, and look at contexts and blobs.
    pub(super) fn share(&mut self, agent: usize) {
        match self.rng.roll(8) {
            0..=2 => self.begin_blob(agent),
            3 => self.release_blob(agent),
            _ => {}
        }
        (0..2).for_each(|_| self.read_context(agent));
        self.read_blob(agent);
        self.delete_files();
    }

    fn begin_blob(&mut self, agent: usize) {
        let bytes = content(self.rng.roll(6));
        let digest = signing::sha256(&[&bytes]);
        let owned: Vec<String> = self.agents[agent].owned.keys().cloned().collect();
        let task = match owned.is_empty() || self.rng.once_in(8) {
            true => format!("task-{}", self.rng.roll(6)),
            false => self.rng.pick(&owned),
        };
        let workspace = WorkspaceId::parse(&format!("task:{task}")).unwrap();
        let (id, size) = (self.agents[agent].id.clone(), bytes.len() as u64);
        let upload = BlobFiles::upload_name(id.as_str(), &digest);
        if self.writing.contains(&upload) {
            return; // one stream at a time writes an upload
        }
        self.agents[agent].note_blob(digest, size);
        let blob = Box::new(NewBlob { digest, size, media_type: String::new(), workspace });
        match self.ask(|reply| Command::BeginUpload { agent: id, blob, reply }) {
            Some(Ok(Some(_))) => self.counts.add("blobs held too"),
            Some(Ok(None)) => {
                // Some bytes are damaged on the way.
                let bytes = if self.rng.once_in(12) { vec![77; bytes.len()] } else { bytes };
                let writer = self.files.write(&upload).unwrap();
                let writing = Writing { agent, digest, bytes, writer, life: self.life };
                self.writing.insert(upload);
                // A slow agent may send its bytes after the end of its upload.
                match self.rng.once_in(3) {
                    true => {
                        let slow = self.rng.roll(90_000);
                        self.schedule(slow, Happening::Writes(writing));
                    }
                    false => self.write_blob(writing),
                }
            }
            Some(Err(_)) | None => {}
        }
    }

    /// Writes the bytes of an upload, and makes it a blob.
    pub(super) fn write_blob(&mut self, writing: Writing) {
        let Writing { agent, digest, bytes, mut writer, life } = writing;
        if self.life != life || self.engine.is_none() {
            return; // the broker that had the upload is dead
        }
        let files = self.files.clone();
        let agent = self.agents[agent].id.clone();
        let upload = BlobFiles::upload_name(agent.as_str(), &digest);
        self.writing.remove(&upload);
        if self.rng.once_in(5) {
            self.counts.add("uploads interrupted");
            return writer.append(&bytes[..bytes.len() / 2]).unwrap();
        }
        writer.append(&bytes).unwrap();
        if writer.finish().unwrap() != digest {
            self.counts.add("uploads of other bytes");
            drop(self.ask(|reply| Command::DropUpload { agent, digest, reply }));
            return;
        }
        if files.name(&upload, &BlobPlace::alone(digest)).is_err() {
            return self.counts.add("uploads whose file was removed");
        }
        if self.faults && self.rng.once_in(12) {
            return self.kill("killed before the record of a blob");
        }
        // Whether a failed commit has stored the record is known only at the next start.
        if let Some(Err(refusal)) =
            self.ask(|reply| Command::FinishUpload { agent, place: BlobPlace::alone(digest), reply })
            && refusal.code() != ErrorCode::StoreUnavailable
        {
            files.note_removed(Removed::Blob(BlobPlace::alone(digest)));
        }
    }

    /// Ends a hold: also one of a task in which the agent takes no part.
    fn release_blob(&mut self, agent: usize) {
        let holds = self.disk.laws.lock().unwrap().blobs.holds();
        if holds.is_empty() {
            return;
        }
        let (workspace, digest) = self.rng.pick(&holds);
        let (workspace, caller) = (WorkspaceId::parse(&workspace).unwrap(), self.caller(agent));
        if let Some(Ok(())) = self.ask(|reply| Command::DeleteBlob { digest, workspace, caller, reply }) {
            self.counts.add("holds ended");
        }
    }

    /// Deletes files whose records are removed. Some wait, as for a slow disk.
    pub(super) fn delete_files(&mut self) {
        for removed in self.files.take_removed() {
            if self.faults && self.rng.once_in(3) {
                self.files.note_removed(removed);
            } else if !is_named(&*self.disk, removed) {
                self.files.delete(removed).unwrap();
            }
        }
        self.disk.laws.lock().unwrap().blobs.check_files();
    }

    /// Opens the folder of blobs for a broker that starts, and checks what a start finds.
    pub(super) fn open_files(&mut self) {
        self.life += 1;
        self.writing.clear();
        // A new process knows of no removal.
        self.files.take_removed();
        self.files.sweep(|file| Ok(is_named(&*self.disk, file))).unwrap();
        self.check_contents();
    }

    /// Recomputes all stored contexts and blobs.
    pub(super) fn check_contents(&self) {
        let laws = self.disk.laws.lock().unwrap();
        laws.blobs.check_files();
        let envelope = |place: EnvelopePlace| self.disk.envelope(place).unwrap_or_default();
        laws.contexts.see_store(&envelope, &|task, section| {
            let key = ContextSectionRecord::key(task, &section.name, &section.sha256);
            let stored = self.disk.get(&key).expect("memory can be read")?;
            Ok::<_, DecodeError>(ContextSectionRecord::decode(&stored.value).unwrap().content).ok()
        });
    }

    fn caller(&self, agent: usize) -> Caller {
        Caller::Agent(self.agents[agent].id.clone())
    }

    pub(super) fn view<'a>(&'a self, caller: &'a Caller) -> Option<View<'a>> {
        let access = Access { policies: &self.resources.policies, directory: self.engine.as_ref()?.directory() };
        Some(View { store: &*self.disk, access, caller })
    }

    /// An agent reads a section of any version, sometimes with an earlier one in hand.
    fn read_context(&mut self, agent: usize) {
        let known = self.disk.laws.lock().unwrap().contexts.known();
        if self.engine.is_none() || known.is_empty() {
            return;
        }
        let (task, number, names) = self.rng.pick(&known);
        // Often the owner, which may read all of them.
        let laws = self.disk.laws.lock().unwrap();
        let owner = laws.owner_of(&task).and_then(|(owner, _)| self.agents.iter().position(|agent| agent.id == *owner));
        drop(laws);
        let agent = owner.filter(|_| self.rng.once_in(2)).unwrap_or(agent);
        let name = self.rng.pick(&names);
        let digests = self.disk.laws.lock().unwrap().contexts.digests(&task, &name);
        let have = self.rng.once_in(2).then(|| self.rng.pick(&digests));
        let query = SectionQuery { task: task.clone(), name: name.clone(), version: number, have, filter: None };
        let caller = self.caller(agent);
        let answer = self.view(&caller).unwrap().context_section(&query);
        let answer = answer.map(|answer| answer.content.unwrap());
        let laws = self.disk.laws.lock().unwrap();
        let reader = &self.agents[agent].id;
        let what = laws.contexts.see_answer(reader, (&task, number, &name), have, answer.as_ref().ok());
        drop(laws);
        self.counts.add(what);
        if let Err(error) = answer {
            assert_ne!(error.code(), ErrorCode::Internal, "law 11: {error}");
        }
    }

    /// An agent looks at a blob by its digest.
    fn read_blob(&mut self, agent: usize) {
        let digest = signing::sha256(&[&content(self.rng.roll(6))]);
        let caller = self.caller(agent);
        let Some(view) = self.view(&caller) else { return };
        let sees = matches!(view.blob(&digest, None), Ok(BlobSearch::Found(_)));
        let laws = self.disk.laws.lock().unwrap();
        laws.blobs.see_answer(&self.agents[agent].id, &digest, sees, &laws.contexts);
        drop(laws);
        self.counts.add(if sees { "blobs seen" } else { "blobs not seen" });
    }
}
