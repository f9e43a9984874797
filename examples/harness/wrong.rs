//! Single faults by name, for tests of the conformance suite.

use baton_client::{About, ClientError, Link};
use baton_client::{
    envelope::{self, keys::PrivateKey},
    ids::SystemIds,
    proto::v1::{self, MessageType},
};
use clap::{Parser, ValueEnum};
use prost::Message as _;
use serde_json::{Value, json};

use super::done;

/// The fault to commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Wrong {
    /// No verification, no extension, no reconnection: a loop over the bare session that accepts every delivery.
    Naive,
    /// The message of a failed handler is acked.
    AcksFailures,
    /// A message is acked before its handler has returned.
    AcksEarly,
    /// Poison is nacked like any failure.
    ForgetsPoison,
    /// The delay that a handler asks for is not passed on.
    DropsDelays,
    /// The handler timeout is ignored.
    IgnoresTimeouts,
    /// Envelopes are signed by a key other than the agent's.
    SignsWithAnotherKey,
    /// Every envelope has the id of the first.
    ReusesIds,
    /// A message counts as sent before its receipt arrives.
    CountsUnsent,
    /// A receipt is accepted with any signature.
    BelievesReceipts,
    /// After a broken session, the message is composed again under a new id.
    MakesNewEnvelopes,
    /// A message with a temporary refusal is resent at once.
    IgnoresRetryDelays,
    /// An error has neither kind nor reason.
    UntypedErrors,
    /// The request's id is used as the handoff id.
    IgnoresRedriving,
    /// The program exits without ending its session.
    StopsAtOnce,
    /// An agent that the broker no longer admits reports nothing.
    EndsInSilence,
    /// The credit is always one delivery.
    GivesNoCredit,
    /// The context provider is never called.
    ForgetsProvider,
    /// An accept for a request of another process is nacked as poison.
    PoisonsAccepts,
    /// An accept is acked before the context has its receipt.
    AcksAcceptsEarly,
    /// Only a handoff that this process requested can be waited for.
    CannotResume,
    /// A context for a request that another process accepted is nacked as poison.
    PoisonsContexts,
    /// A step that an earlier process has made is reported as a failure.
    FailsRepeats,
    /// Only the first page of tasks is listed.
    ListsOnePage,
    /// A delegation counts as ended once the task has been handed over.
    EndsLoansEarly,
    /// A call that reaches its time limit leaves its handoff open.
    LeavesHandoffs,
    /// A recall is not reported.
    KeepsRecalledTasks,
    /// A message over the limits is sent, and counts as sent.
    SendsTooLarge,
    /// An offer is acked, and the caller does not learn of it.
    MissesOffers,
    /// The end of a negotiation is acked, and the caller does not learn of it.
    MissesEnds,
    /// A request for offers is acked without an answer.
    LeavesRequests,
    /// Every offer is of round 0.
    ForgetsRounds,
    /// The failure of the work on a task is not passed on.
    SwallowsFailures,
    /// A handoff is never looked up at the broker: only mail tells how it goes on.
    WaitsForMailAlone,
    /// Tasks of earlier processes are not asked for.
    NeverResumes,
}

#[derive(Parser)]
struct Arguments {
    /// Commit this fault.
    #[arg(long)]
    wrong: Option<Wrong>,
}

pub(super) fn from_arguments() -> Result<Option<Wrong>, clap::Error> {
    Arguments::try_parse().map(|arguments| arguments.wrong)
}

/// The tasks on the first page: id, epoch and open handoff.
pub(super) async fn first_page(link: &Link) -> Result<Vec<(String, u64, String)>, ClientError> {
    let client = link.live().await?.client.clone();
    let request = v1::ListTasksRequest { owner_id: link.id().to_string(), ..Default::default() };
    let page = client.answer(client.tasks().list_tasks(request).await)?;
    Ok(page.tasks.into_iter().map(|task| (task.task_id, task.epoch, task.open_handoff_id)).collect())
}

impl Wrong {
    /// Sends a message with the fault, if the fault concerns sending.
    pub(crate) async fn send(
        self,
        link: &Link,
        to: &str,
        info: &v1::Info,
        command: &Value,
    ) -> Result<v1::Receipt, ClientError> {
        let about = About::default();
        let composer = link.composer();
        match self {
            Self::SignsWithAnotherKey => {
                let mut made = composer.draft(to, MessageType::Info, &about, info);
                envelope::sign(&mut made, &composer.identity.key_id, &PrivateKey::generate(&SystemIds));
                link.send_bytes(made.encode_to_vec().into()).await
            }
            Self::ReusesIds => {
                let mut made = composer.draft(to, MessageType::Info, &about, info);
                made.message_id = "0198c0de-0000-7000-8000-000000000001".to_owned();
                envelope::sign(&mut made, &composer.identity.key_id, &composer.identity.key);
                link.send_bytes(made.encode_to_vec().into()).await
            }
            Self::CountsUnsent => {
                done(command, json!({"message_id": "unknown"}));
                link.send(to, MessageType::Info, &about, info).await
            }
            Self::SendsTooLarge => {
                done(command, json!({"message_id": "unknown"}));
                let bytes = composer.encode(to, MessageType::Info, &about, info);
                link.live().await?.session.send(bytes).await
            }
            Self::BelievesReceipts => match link.send(to, MessageType::Info, &about, info).await {
                Err(ClientError::Unverified { .. }) => Ok(v1::Receipt::default()),
                other => other,
            },
            Self::MakesNewEnvelopes => loop {
                let bytes = composer.encode(to, MessageType::Info, &about, info);
                match link.live().await?.session.send(bytes).await {
                    // The link detects the end of the session on its own.
                    Err(ClientError::SessionEnded(_)) => tokio::task::yield_now().await,
                    other => return other,
                }
            },
            Self::IgnoresRetryDelays => {
                let bytes = composer.encode(to, MessageType::Info, &about, info);
                loop {
                    match link.live().await?.session.send(bytes.clone()).await {
                        Err(ClientError::Refused(refused)) if refused.code == tonic::Code::Unavailable => {}
                        other => return other,
                    }
                }
            }
            _ => link.send(to, MessageType::Info, &about, info).await,
        }
    }
}
