//! Single faults, by name: what the suite must see.

use baton::{
    client::{About, ClientError, Link},
    envelope::{self, keys::PrivateKey},
    ids::SystemIds,
    proto::v1::{self, MessageType},
};
use clap::{Parser, ValueEnum};
use prost::Message as _;
use serde_json::{Value, json};

use super::done;

/// What is done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Wrong {
    /// No verification, no extension, no reconnection: a loop over the bare session that takes whatever comes.
    Naive,
    /// A handler that throws has its message acked.
    AcksFailures,
    /// A message is acked before its handler has returned.
    AcksEarly,
    /// Poison is nacked as any failure.
    ForgetsPoison,
    /// The time that a handler asks for is not passed on.
    DropsDelays,
    /// A handler may take for ever.
    IgnoresTimeouts,
    /// Envelopes are signed by a key that is not the agent's.
    SignsWithAnotherKey,
    /// Every envelope has the id of the first.
    ReusesIds,
    /// A message counts as sent before its receipt is there.
    CountsUnsent,
    /// A receipt counts whoever signed it.
    BelievesReceipts,
    /// After a break the message is made anew, under a new id.
    MakesNewEnvelopes,
    /// What is refused for now is sent again at once.
    IgnoresRetryDelays,
    /// An error has neither kind nor reason.
    UntypedErrors,
    /// The handoff is taken to be the request's id.
    IgnoresRedriving,
    /// The program exits without a word to the broker.
    StopsAtOnce,
    /// An agent that is let in no more says nothing.
    EndsInSilence,
    /// One delivery at a time, whatever was asked for.
    GivesNoCredit,
    /// The context provider is not asked.
    ForgetsProvider,
    /// An accept that this process did not ask for is poison.
    PoisonsAccepts,
    /// An accept is acked before the context has its receipt.
    AcksAcceptsEarly,
    /// Only what this process asked for has an end.
    CannotResume,
    /// A context whose offer this process did not accept is poison.
    PoisonsContexts,
    /// A step that an earlier process has made is a failure.
    FailsRepeats,
    /// Of the tasks there is one page.
    ListsOnePage,
    /// A loan is over when the task has gone.
    EndsLoansEarly,
    /// What is too large is sent, and counts as sent.
    SendsTooLarge,
}

#[derive(Parser)]
struct Arguments {
    /// Do this one thing wrong.
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
    /// Sends as it must not be sent, where that is what is wrong.
    pub async fn send(
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
                    // The link sees the end of the session by itself.
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
