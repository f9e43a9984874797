//! Records of blobs in virtual time: holds, quotas, rights, references and removal.

use std::{sync::Arc, time::Duration};

use baton_broker_core::{
    BlobLimits, Settings,
    access::Caller,
    blobs::{BlobFiles, BlobPlace, Removed},
    codes::{ErrorCode, Refusal as _},
    engine::{Command, NewBlob},
    envelope::signing,
    ids::{AgentId, WorkspaceId},
    proto::v1::{self, context_section::Content},
    queries::BlobSearch,
    records::BlobRecord,
};

use crate::world::{Refusal, World, assert_refused, operator};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn agent(id: &str) -> AgentId {
    AgentId::parse(id).unwrap()
}

fn caller(id: &str) -> Caller {
    Caller::Agent(agent(id))
}

fn task(id: &str) -> WorkspaceId {
    WorkspaceId::parse(&format!("task:{id}")).unwrap()
}

fn begin(
    world: &mut World,
    by: &str,
    digest: [u8; 32],
    size: u64,
    holder: &str,
) -> Result<Option<BlobRecord>, Refusal> {
    let blob = Box::new(NewBlob { digest, size, media_type: "text/plain".into(), workspace: task(holder) });
    world.ask(|reply| Command::BeginUpload { agent: agent(by), blob, reply })
}

fn finish(world: &mut World, by: &str, digest: [u8; 32]) -> Result<BlobRecord, Refusal> {
    world.ask(|reply| Command::FinishUpload { agent: agent(by), place: BlobPlace::alone(digest), reply })
}

fn delete(world: &mut World, by: &str, digest: [u8; 32], holder: &str) -> Result<(), Refusal> {
    let (workspace, caller) = (task(holder), caller(by));
    world.ask(|reply| Command::DeleteBlob { digest, workspace, caller, reply })
}

fn put(world: &mut World, by: &str, digest: [u8; 32], holder: &str) {
    assert_eq!(begin(world, by, digest, 5, holder).unwrap(), None);
    finish(world, by, digest).unwrap();
}

#[test]
fn an_operator_ends_a_hold_on_a_blob_with_an_entry_in_the_audit_log() {
    let mut world = a_task(Settings::default());
    put(&mut world, "a", [1; 32], "t");
    put(&mut world, "a", [2; 32], "t");
    delete(&mut world, "a", [2; 32], "t").unwrap();
    let (digest, workspace) = ([1; 32], task("t"));
    world.ask(|reply| Command::DeleteBlob { digest, workspace, caller: operator(), reply }).unwrap();
    let caller = operator();
    let log = world.view(&caller).audit_log(0, 1000).unwrap().entries;
    let log: Vec<_> = log.into_iter().filter_map(|logged| logged.entry).collect();
    let of_blobs: Vec<_> = log.iter().filter(|entry| entry.action() == v1::AuditAction::BlobDeleted).collect();
    assert_eq!(of_blobs.len(), 1, "the holder's own act has none");
    assert_eq!(
        (&*of_blobs[0].actor, &*of_blobs[0].subject, &*of_blobs[0].details),
        ("operator olga", &*"01".repeat(32), "task:t")
    );
}

fn sees(world: &World, who: &str, digest: [u8; 32]) -> bool {
    let caller = caller(who);
    let mut after = None;
    loop {
        match world.view(&caller).blob(&digest, after) {
            Ok(BlobSearch::Found(_)) => return true,
            Ok(BlobSearch::NotUpTo(last)) => after = Some(last),
            Err(_) => return false,
        }
    }
}

/// A world in which `a` owns task `t`.
fn a_task(settings: Settings) -> World {
    let mut world = World::with_settings(&["a", "b", "c"], settings);
    world.send(world.request("a", "b", 1)).unwrap();
    world
}

/// A context of one reference.
fn context(digest: [u8; 32], uri: String, size_bytes: u64) -> v1::TaskContextTransfer {
    let reference = v1::ContextReference { uri, sha256: digest.to_vec().into(), size_bytes, ..Default::default() };
    let section = v1::ContextSection {
        name: "resources".into(),
        content: Some(Content::Reference(reference)),
        ..Default::default()
    };
    let digest = signing::context_digest([("resources", digest)]);
    v1::TaskContextTransfer { sections: vec![section], context_digest: digest.to_vec().into(), ..Default::default() }
}

fn reference(digest: [u8; 32]) -> String {
    digest.iter().fold("baton:blob/".to_owned(), |uri, byte| uri + &format!("{byte:02x}"))
}

#[test]
fn a_blob_is_for_the_participants_of_its_holders_and_never_for_its_digest() {
    let mut world = a_task(Settings::default());
    assert_refused(begin(&mut world, "c", [1; 32], 5, "t"), ErrorCode::PermissionDenied);
    assert_refused(begin(&mut world, "a", [1; 32], 5, "other"), ErrorCode::PermissionDenied);
    put(&mut world, "a", [1; 32], "t");
    assert!(sees(&world, "a", [1; 32]));
    // The candidate has not accepted, and c takes no part.
    assert!(!sees(&world, "b", [1; 32]) && !sees(&world, "c", [1; 32]));
    world.restart();
    assert!(sees(&world, "a", [1; 32]), "the record survives a crash");
    assert_refused(delete(&mut world, "c", [1; 32], "t"), ErrorCode::PermissionDenied);
    assert_refused(delete(&mut world, "a", [2; 32], "t"), ErrorCode::BlobUnknown);
}

#[test]
fn a_former_owner_reads_the_blobs_of_its_task_no_more() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    put(&mut world, "a", [1; 32], "t");
    world.take_and_ack(&mut b);
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    assert!(sees(&world, "b", [1; 32]), "the candidate has accepted");
    world.take_and_ack(&mut a);
    world.send(world.context("a", "b", &id, 1)).unwrap();
    world.take_and_ack(&mut b);
    world.send(world.complete("b", "a", &id, 1)).unwrap();
    assert!(sees(&world, "b", [1; 32]) && !sees(&world, "a", [1; 32]));
    assert_refused(delete(&mut world, "a", [1; 32], "t"), ErrorCode::PermissionDenied);
}

#[test]
fn quotas_bound_the_uploads_and_the_bytes_of_an_agent() {
    let blobs = BlobLimits { agent_bytes_max: 12, agent_uploads_max: 2, ..BlobLimits::default() };
    let mut world = a_task(Settings { blobs, ..Settings::default() });
    begin(&mut world, "a", [1; 32], 5, "t").unwrap();
    begin(&mut world, "a", [1; 32], 5, "t").unwrap();
    assert_refused(begin(&mut world, "a", [1; 32], 6, "t"), ErrorCode::FieldInvalid);
    begin(&mut world, "a", [2; 32], 5, "t").unwrap();
    let refusal = assert_refused(begin(&mut world, "a", [3; 32], 1, "t"), ErrorCode::QuotaExceeded);
    assert_eq!(refusal.metadata()[1], ("limit", "2".to_owned()));
    finish(&mut world, "a", [1; 32]).unwrap();
    assert_refused(begin(&mut world, "a", [3; 32], 3, "t"), ErrorCode::QuotaExceeded);
    begin(&mut world, "a", [3; 32], 2, "t").unwrap();
    world.ask(|reply| Command::DropUpload { agent: agent("a"), digest: [2; 32], reply }).unwrap();
    begin(&mut world, "a", [4; 32], 5, "t").unwrap();
    assert_refused(finish(&mut world, "a", [2; 32]), ErrorCode::UploadUnknown);
}

#[test]
fn a_blob_without_a_hold_is_removed_after_a_day_also_over_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let files = Arc::new(BlobFiles::open(folder.path(), None).unwrap());
    let mut world = a_task(Settings::default());
    world.resources.blob_files = Some(files.clone());
    world.restart();
    put(&mut world, "a", [1; 32], "t");
    put(&mut world, "a", [2; 32], "t");
    files.take_removed();
    delete(&mut world, "a", [1; 32], "t").unwrap();
    assert!(!sees(&world, "a", [1; 32]));
    world.pass(DAY / 2);
    world.restart();
    // It is written again in between, and so held.
    put(&mut world, "a", [1; 32], "t");
    files.take_removed();
    world.pass(DAY);
    assert!(sees(&world, "a", [1; 32]) && files.take_removed().is_empty());
    delete(&mut world, "a", [1; 32], "t").unwrap();
    world.pass(DAY - Duration::from_secs(1));
    world.restart();
    assert!(files.take_removed().is_empty());
    world.pass(Duration::from_secs(2));
    assert_eq!(files.take_removed(), [Removed::Blob(BlobPlace::alone([1; 32]))]);
    assert!(sees(&world, "a", [2; 32]), "a blob with a hold stays");
}

#[test]
fn an_upload_that_is_not_continued_is_removed_after_a_day() {
    let mut world = a_task(Settings::default());
    begin(&mut world, "a", [1; 32], 5, "t").unwrap();
    begin(&mut world, "a", [2; 32], 5, "t").unwrap();
    world.pass(DAY / 2);
    begin(&mut world, "a", [2; 32], 5, "t").unwrap();
    world.pass(DAY / 2 + Duration::from_secs(1));
    world.restart();
    assert_refused(finish(&mut world, "a", [1; 32]), ErrorCode::UploadUnknown);
    finish(&mut world, "a", [2; 32]).unwrap();
}

#[test]
fn an_append_of_a_reference_takes_its_hold_whatever_its_size() {
    let mut world = a_task(Settings::default());
    world.send(v1::Envelope { task_id: "u".into(), ..world.request("a", "b", 1) }).unwrap();
    put(&mut world, "a", [1; 32], "u");
    let reference = v1::ContextReference {
        uri: reference([1; 32]),
        sha256: vec![1; 32].into(),
        size_bytes: 5,
        ..Default::default()
    };
    let append = v1::WorkspaceAppend {
        workspace_id: "task:t".to_owned(),
        topic: "files".to_owned(),
        entry: Some(v1::workspace_append::Entry::Reference(reference)),
        ..Default::default()
    };
    let mut envelope = world.envelope("a", "", v1::MessageType::WorkspaceAppend, &append);
    // A field that the schema does not have.
    let unknown = [&[0xfa, 0x3e, 0x80, 0x80, 0x02][..], &[0; 32 * 1024]].concat();
    let payload = envelope.payload.as_mut().unwrap();
    payload.value = [&payload.value[..], &unknown].concat().into();
    world.send(envelope).unwrap();
    let caller = caller("a");
    assert_eq!(world.view(&caller).blobs_of(&task("t"), 10, "").unwrap().entries.len(), 1);
}

#[test]
fn a_context_that_refers_to_a_blob_must_name_a_complete_one_that_its_author_may_read() {
    let mut world = World::with(&["a", "b", "c"]);
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    let send = |world: &mut World, payload: &v1::TaskContextTransfer| {
        let payload = Some(baton_broker_core::envelope::payload_of(payload));
        let envelope = v1::Envelope { payload, ..world.context("a", "b", &id, 1) };
        world.send(envelope)
    };
    let right = context([1; 32], reference([1; 32]), 5);
    assert_refused(send(&mut world, &right), ErrorCode::BlobUnknown);
    begin(&mut world, "a", [1; 32], 5, "t").unwrap();
    assert_refused(send(&mut world, &right), ErrorCode::BlobIncomplete);
    finish(&mut world, "a", [1; 32]).unwrap();
    let other = context([1; 32], reference([2; 32]), 5);
    assert_refused(send(&mut world, &other), ErrorCode::FieldInvalid);
    assert_refused(send(&mut world, &context([1; 32], reference([1; 32]), 6)), ErrorCode::FieldInvalid);
    assert_refused(send(&mut world, &context([1; 32], "baton:blob/12".into(), 5)), ErrorCode::FieldInvalid);
    send(&mut world, &right).unwrap();
    assert!(sees(&world, "b", [1; 32]));
    let caller = caller("b");
    assert_eq!(world.view(&caller).blobs_of(&task("t"), 10, "").unwrap().entries.len(), 1);
}

#[test]
fn a_reference_to_a_blob_whose_file_is_lost_is_refused_until_it_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let files = Arc::new(BlobFiles::open(folder.path(), None).unwrap());
    let mut world = World::with(&["a", "b"]);
    world.resources.blob_files = Some(files.clone());
    world.restart();
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    let digest = signing::sha256(&[b"bytes"]);
    let write = |world: &mut World| {
        assert_eq!(begin(world, "a", digest, 5, "t").unwrap(), None, "the bytes are wanted");
        let upload = BlobFiles::upload_name("a", &digest);
        let mut writer = files.write(&upload).unwrap();
        writer.append(b"bytes").unwrap();
        writer.finish().unwrap();
        files.name(&upload, &BlobPlace::alone(digest)).unwrap();
        finish(world, "a", digest).unwrap();
    };
    write(&mut world);
    assert!(begin(&mut world, "a", digest, 5, "t").unwrap().is_some(), "the blob is known");
    let name = reference(digest).split_off("baton:blob/".len());
    std::fs::remove_file(folder.path().join(&name[..2]).join(&name)).unwrap();
    let send = |world: &mut World| {
        let payload = Some(baton_broker_core::envelope::payload_of(&context(digest, reference(digest), 5)));
        let envelope = v1::Envelope { payload, ..world.context("a", "b", &id, 1) };
        world.send(envelope)
    };
    assert_refused(send(&mut world), ErrorCode::BlobDamaged);
    world.restart();
    assert_refused(send(&mut world), ErrorCode::BlobDamaged);
    write(&mut world);
    send(&mut world).unwrap();
    assert!(sees(&world, "b", digest));
}

#[test]
fn the_holders_of_others_hide_a_blob_from_no_participant() {
    let mut world = a_task(Settings::default());
    // More than one page, before task t in the order of holders.
    for number in 0..300 {
        let task_id = format!("h{number:03}");
        world.send(v1::Envelope { task_id: task_id.clone(), ..world.request("c", "b", 1) }).unwrap();
        match number {
            0 => put(&mut world, "c", [1; 32], &task_id),
            _ => assert!(begin(&mut world, "c", [1; 32], 5, &task_id).unwrap().is_some()),
        }
    }
    put(&mut world, "a", [1; 32], "t");
    assert!(sees(&world, "a", [1; 32]) && !sees(&world, "b", [1; 32]));
    assert!(begin(&mut world, "a", [1; 32], 5, "t").unwrap().is_some(), "it needs no second write");
}

#[test]
fn an_upload_is_shown_to_its_agent_alone() {
    let mut world = a_task(Settings::default());
    begin(&mut world, "a", [1; 32], 5, "t").unwrap();
    let code = |caller: &Caller| world.view(caller).upload(&[1; 32]).map_err(|error| error.code());
    assert_eq!(code(&caller("a")).unwrap().size, 5);
    assert_eq!(code(&caller("b")).unwrap_err(), ErrorCode::UploadUnknown);
    assert_eq!(code(&Caller::Anonymous).unwrap_err(), ErrorCode::IdentityMissing);
}
