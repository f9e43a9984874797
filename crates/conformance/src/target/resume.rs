//! SPEC 3: a new process of an agent gets the tasks that no process works on.

use tonic::Code;

use super::{
    check::{Answer, Checks, Refusal, Verdict, answered, refused, same},
    story::{a_request, give},
    world::{Actor, CREDIT, World},
};
use baton_client::{
    About, context_of,
    proto::v1::{self, TaskStatus},
};

cases! {
    "resume.gives-what-a-lost-process-left" "3"
        "ResumeTasks gives a new process each open task that its agent got by a handoff, oldest first, and GetContext its context; a second process gets none of them."
        gives_what_was_left;
    "resume.leaves-what-is-worked-on" "3"
        "ResumeTasks gives no task that a connected process lists, that has ended, that is being handed over, or that the agent has created itself."
        leaves_what_is_worked_on;
    "resume.needs-a-process" "3"
        "ResumeTasks for a process without an open session is refused with FIELD_INVALID." needs_a_process;
}

async fn resume(by: &Actor, process: &str, max_tasks: u32) -> Answer<Vec<v1::Task>> {
    let request = v1::ResumeTasksRequest { instance_id: process.to_owned(), max_tasks };
    let answer = by.call(async { by.client.answer(by.client.tasks().resume_tasks(request).await) }).await?;
    Ok(answer.tasks)
}

/// The ids of the tasks that this process gets.
async fn resumed(by: &Actor, max_tasks: u32) -> Verdict<Vec<String>> {
    let tasks = answered("a process resumes", resume(by, &by.process, max_tasks).await)?;
    Ok(tasks.into_iter().map(|task| task.task_id).collect())
}

async fn gives_what_was_left(world: World) -> Verdict {
    let (alice, identity) = (world.agent("alice").await?, world.enrol("bob", &[]).await?);
    let lost = world.connect(&identity, CREDIT).await?;
    let tasks: Vec<String> = (1..=3).map(|number| world.id(&format!("task-{number}"))).collect();
    for task in &tasks {
        give(&alice, &lost, task, &a_request()).await?;
    }
    // The drop of the actor ends its session.
    drop(lost);
    let (next, other) = (world.connect(&identity, 0).await?, world.connect(&identity, 0).await?);
    same("a new process resumes one task", "task_ids", tasks[..1].to_vec(), resumed(&next, 1).await?)?;
    same("it resumes the rest", "task_ids", tasks[1..].to_vec(), resumed(&next, 0).await?)?;
    same("another process resumes", "task_ids", Vec::<String>::new(), resumed(&other, 0).await?)?;
    for task in &tasks {
        let request = v1::GetContextRequest { task_id: task.clone(), ..Default::default() };
        let read = next.call(async { next.client.answer(next.client.contexts().get_context(request).await) }).await;
        let version = answered("the new process reads the context", read)?.version.unwrap_or_default();
        let (expected, seen) = (context_of([]).context_digest, version.context_digest);
        same("the new process reads the context", "context_digest", expected, seen)?;
        next.tell("", &About::task(task, 2), &in_status(TaskStatus::Completed)).await?;
    }
    Ok(())
}

fn in_status(status: TaskStatus) -> v1::TaskStatusUpdate {
    v1::TaskStatusUpdate { status: status.into(), ..Default::default() }
}

async fn leaves_what_is_worked_on(world: World) -> Verdict {
    let (alice, identity) = (world.agent("alice").await?, world.enrol("bob", &[]).await?);
    let (worker, next) = (world.process(&identity, CREDIT, true).await?, world.connect(&identity, 0).await?);
    let [listed, ended, moving, idle, own] = ["listed", "ended", "moving", "idle", "own"].map(|name| world.id(name));
    for task in [&listed, &ended, &moving, &idle] {
        give(&alice, &worker, task, &a_request()).await?;
    }
    let heartbeat = v1::Heartbeat { working_on: vec![listed.clone()], ..Default::default() };
    answered("a process lists a task", worker.call(worker.agent.session.heartbeat(heartbeat)).await)?;
    worker.tell("", &About::task(&ended, 2), &in_status(TaskStatus::Completed)).await?;
    let open = worker.tell(alice.id(), &About::task(&moving, 2), &a_request()).await?.handoff_id;
    let first = worker.tell(alice.id(), &About::task(&own, 1), &a_request()).await?.handoff_id;
    worker.tell(alice.id(), &About::handoff(&own, 1, &first), &v1::HandoffCancel::default()).await?;
    same("another process resumes", "task_ids", vec![idle], resumed(&next, 0).await?)?;
    // Once the handoff has ended, its task is left as well.
    worker.tell(alice.id(), &About::handoff(&moving, 2, &open), &v1::HandoffCancel::default()).await?;
    same("it resumes again", "task_ids", vec![moving], resumed(&next, 0).await?)
}

async fn needs_a_process(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    give(&alice, &bob, &world.id("task"), &a_request()).await?;
    let mut checks = Checks::of("ResumeTasks");
    for (what, process) in [("an unknown process", world.another_process()), ("no process", String::new())] {
        let invalid = Refusal(Code::InvalidArgument, "FIELD_INVALID");
        checks.refused(what, resume(&bob, &process, 0).await, invalid);
    }
    checks.done()?;
    let of_alice = resume(&alice, &bob.process, 0).await;
    refused("alice resumes for a process of bob's", of_alice, Refusal(Code::InvalidArgument, "FIELD_INVALID")).map(drop)
}
