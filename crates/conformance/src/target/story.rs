//! A handoff from alice to bob, advanced to the state in which a case begins.

use prost_types::Duration as Span;

use super::{
    check::{Answer, Verdict, answered},
    world::{Actor, World},
};
use baton_client::{
    About, context_of,
    proto::v1::{self, HandoffState, MessageType},
};

/// The state to which a handoff is advanced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Requested,
    Deciding,
    Accepted,
    ContextSent,
    Completed,
}

/// Two agents, and a task that one hands to the other.
pub(super) struct Story {
    pub(super) alice: Actor,
    pub(super) bob: Actor,
    pub(super) task: String,
    /// The handoff id, which is the request's message_id.
    pub(super) handoff: String,
    pub(super) context: v1::TaskContextTransfer,
}

/// A minimal request.
pub(super) fn a_request() -> v1::HandoffRequest {
    v1::HandoffRequest { task_type: "support".to_owned(), ..Default::default() }
}

/// A duration as a protobuf message.
fn milliseconds(span: i64) -> Option<Span> {
    let nanos = i32::try_from(span % 1000).unwrap_or_default() * 1_000_000;
    Some(Span { seconds: span / 1000, nanos })
}

/// A request with these timeouts, in milliseconds.
pub(super) fn with_timeouts(accept: i64, context: i64, complete: i64, whole: i64) -> v1::HandoffRequest {
    let timeouts = v1::HandoffTimeouts {
        accept: milliseconds(accept),
        context: milliseconds(context),
        complete: milliseconds(complete),
        whole: milliseconds(whole),
    };
    v1::HandoffRequest { timeouts: Some(timeouts), ..a_request() }
}

/// Hands a new task over, without a look at the deliveries. Returns the id of the handoff.
pub(super) async fn give(from: &Actor, to: &Actor, task: &str, request: &v1::HandoffRequest) -> Verdict<String> {
    let handoff = from.tell(to.id(), &About::task(task, 1), request).await?.handoff_id;
    let about = About::handoff(task, 1, &handoff);
    to.tell(from.id(), &about, &v1::HandoffAccept::default()).await?;
    let context = context_of([]);
    from.tell(to.id(), &about, &context).await?;
    let complete = v1::HandoffComplete {
        outcome: v1::HandoffOutcome::Success.into(),
        context_digest: context.context_digest,
        ..Default::default()
    };
    to.tell(from.id(), &about, &complete).await?;
    Ok(handoff)
}

impl Story {
    /// A story with a minimal request.
    pub(super) async fn at(world: &World, stage: Stage) -> Verdict<Self> {
        Self::with(world, a_request(), stage).await
    }

    /// A story with this request.
    pub(super) async fn with(world: &World, request: v1::HandoffRequest, stage: Stage) -> Verdict<Self> {
        let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
        Self::between(alice, bob, world, request, stage).await
    }

    /// A story of these two agents.
    pub(super) async fn between(
        alice: Actor,
        bob: Actor,
        world: &World,
        request: v1::HandoffRequest,
        stage: Stage,
    ) -> Verdict<Self> {
        let task = world.id("task");
        let receipt = alice.tell(bob.id(), &About::task(&task, 1), &request).await?;
        let context = context_of([("goals", "[\"find the cause\"]".to_owned())]);
        let story = Self { alice, bob, task, handoff: receipt.handoff_id, context };
        story.go_on(stage).await?;
        Ok(story)
    }

    async fn go_on(&self, stage: Stage) -> Verdict {
        if stage >= Stage::Deciding {
            self.bob.take(MessageType::HandoffRequest).await?;
        }
        if stage >= Stage::Accepted {
            answered("bob accepts", self.accept().await)?;
        }
        if stage >= Stage::ContextSent {
            self.alice.take(MessageType::HandoffAccept).await?;
            answered("alice sends the context", self.send_context().await)?;
        }
        if stage >= Stage::Completed {
            self.bob.take(MessageType::TaskContextTransfer).await?;
            answered("bob completes", self.complete().await)?;
        }
        Ok(())
    }

    /// The task and the handoff that a message of the story refers to.
    pub(super) fn about(&self) -> About {
        About::handoff(&self.task, 1, &self.handoff)
    }

    pub(super) async fn accept(&self) -> Answer<v1::Receipt> {
        self.bob.say(self.alice.id(), &self.about(), &v1::HandoffAccept::default()).await
    }

    pub(super) async fn reject(&self) -> Answer<v1::Receipt> {
        let reject = v1::HandoffReject { reason: v1::RejectReason::Other.into(), ..Default::default() };
        self.bob.say(self.alice.id(), &self.about(), &reject).await
    }

    pub(super) async fn cancel(&self) -> Answer<v1::Receipt> {
        self.alice.say(self.bob.id(), &self.about(), &v1::HandoffCancel::default()).await
    }

    pub(super) async fn send_context(&self) -> Answer<v1::Receipt> {
        self.alice.say(self.bob.id(), &self.about(), &self.context).await
    }

    pub(super) async fn complete(&self) -> Answer<v1::Receipt> {
        self.complete_with(v1::HandoffOutcome::Success).await
    }

    pub(super) async fn complete_with(&self, outcome: v1::HandoffOutcome) -> Answer<v1::Receipt> {
        let context_digest = self.context.context_digest.clone();
        let complete = v1::HandoffComplete { outcome: outcome.into(), context_digest, ..Default::default() };
        self.bob.say(self.alice.id(), &self.about(), &complete).await
    }

    /// Sends IN_PROGRESS about the handoff, which extends its deadline.
    pub(super) async fn in_progress(&self, from: &Actor) -> Answer<v1::Receipt> {
        let status = v1::TaskStatus::InProgress.into();
        from.say("", &self.about(), &v1::TaskStatusUpdate { status, ..Default::default() }).await
    }

    /// The state of the handoff, as alice reads it.
    pub(super) async fn state(&self, step: &str) -> Verdict<HandoffState> {
        Ok(answered(step, self.alice.handoff(&self.handoff).await)?.state())
    }

    /// The handoff, as alice reads it.
    pub(super) async fn look(&self, step: &str) -> Verdict<v1::Handoff> {
        answered(step, self.alice.handoff(&self.handoff).await)
    }
}
