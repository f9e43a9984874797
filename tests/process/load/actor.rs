//! An agent under load: it hands tasks on, takes offered tasks, writes mail, and reconnects after every loss of the
//! broker. Like a correct client, it resends unanswered messages with the same bytes.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use baton::{
    ids::SystemIds,
    proto::v1::{self, HandoffOutcome, HandoffState, MessageType, NackCause, NextStep, TaskStatus},
    time::SystemClock,
};
use baton_client::{About, Client, ClientError, Composer, Delivered, Options, context_of, session::Agent};
use bytes::Bytes;
use tokio::{sync::watch, task::JoinSet};

use super::{
    Phase,
    ledger::{End, Ledger},
    rng::Rng,
};
use crate::broker::{composer, identity, new_task};

/// The agent's credit, in deliveries.
const CREDIT: u32 = 32;
/// The most tasks that the agent owns and may hand on.
const TASKS_MAX: usize = 6;
/// The most open mail in all mailboxes together, above which no agent writes more.
const MAIL_OPEN_MAX: usize = 300;
/// The delay between two attempts to connect.
const RETRY: Duration = Duration::from_millis(20);
/// The refusals of a late answer, after the step or the handoff has ended.
const TOO_LATE: [&str; 4] = ["HANDOFF_EXPIRED", "HANDOFF_FINAL", "HANDOFF_STATE", "NOT_CANDIDATE"];

pub(crate) struct Actor {
    name: &'static str,
    others: Vec<&'static str>,
    composer: Composer,
    ledger: Arc<Ledger>,
    mind: Mutex<Mind>,
    phase: watch::Receiver<Phase>,
    /// The id of the process, which stays over all of its sessions.
    instance_id: String,
}

/// The state of the agent, which outlives its connections.
struct Mind {
    rng: Rng,
    tasks: BTreeMap<String, Owned>,
    /// Messages that it has answered, or decided not to answer.
    answered: HashSet<String>,
}

/// A task that the agent owns.
struct Owned {
    epoch: u64,
    /// The open handoff of the task.
    handoff: Option<String>,
    /// Whether the broker has refused a further handoff of the task.
    is_tired: bool,
}

impl Actor {
    pub(crate) fn new(
        name: &'static str,
        everybody: &[&'static str],
        seed: u64,
        ledger: Arc<Ledger>,
        phase: watch::Receiver<Phase>,
    ) -> Self {
        let others = everybody.iter().copied().filter(|other| *other != name).collect();
        let mind = Mind { rng: Rng::new(seed), tasks: BTreeMap::new(), answered: HashSet::new() };
        Self { name, others, composer: composer(name), ledger, mind: Mutex::new(mind), phase, instance_id: new_task() }
    }

    /// Works over one connection after another. Never ends on its own.
    pub(crate) async fn live(self: Arc<Self>, mut server: watch::Receiver<Option<Options>>) {
        loop {
            let Ok(options) = server.wait_for(Option::is_some).await.map(|options| (*options).clone()) else { return };
            let ended = self.clone().live_on(&options.expect("it was waited for")).await;
            if let Err(error) = ended
                && !error.is_passing()
            {
                self.ledger.fault(format!("{} is told: {error}", self.name));
            }
            // Without a new address, the same broker is tried again.
            drop(tokio::time::timeout(RETRY, server.changed()).await);
        }
    }

    async fn live_on(self: Arc<Self>, options: &Options) -> Result<(), ClientError> {
        let client = Client::connect(options).await?;
        let (clock, ids) = (Arc::new(SystemClock), Arc::new(SystemIds));
        let hello = v1::Hello { instance_id: self.instance_id.clone(), tells_work: false };
        let agent = Arc::new(Agent::connect_process(&client, identity(self.name), CREDIT, clock, ids, hello).await?);
        for (envelope, raw) in self.ledger.outbox(self.name) {
            self.send(&agent, &envelope, raw).await?;
        }
        tokio::try_join!(self.clone().speak(&agent), self.clone().listen(&agent)).map(drop)
    }

    fn mind(&self) -> MutexGuard<'_, Mind> {
        self.mind.lock().expect("no holder panics")
    }

    fn draining(&self) -> bool {
        *self.phase.borrow() == Phase::Drain
    }

    /// Sends an envelope, and records the answer. An error means the end of the connection.
    async fn send(&self, agent: &Agent, envelope: &v1::Envelope, raw: Bytes) -> Result<(), ClientError> {
        match agent.session.send(raw).await {
            Ok(receipt) => {
                if self.ledger.receipted(&receipt) {
                    self.after_receipt(envelope, &receipt);
                }
                Ok(())
            }
            Err(ClientError::Refused(refused)) if is_expected(envelope.message_type(), &refused.reason) => {
                self.ledger.refused(&envelope.message_id, &refused.reason);
                self.after_refusal(envelope);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

fn is_expected(kind: MessageType, reason: &str) -> bool {
    use MessageType as T;
    match kind {
        T::HandoffRequest => reason == "LOOP_LIMIT",
        T::HandoffAccept | T::HandoffReject | T::HandoffCancel | T::TaskContextTransfer | T::HandoffComplete => {
            TOO_LATE.contains(&reason)
        }
        _ => false,
    }
}

// The activities of the agent.
impl Actor {
    /// Starts activities one by one, each after the receipt of the previous one.
    async fn speak(self: Arc<Self>, agent: &Agent) -> Result<(), ClientError> {
        let (mut phase, mut progress) = (self.phase.clone(), self.ledger.progress());
        loop {
            drop(phase.wait_for(|phase| *phase == Phase::Load).await);
            drop(progress.wait_for(|progress| progress.mail_open < MAIL_OPEN_MAX).await);
            let (envelope, raw) = self.begin();
            self.send(agent, &envelope, raw).await?;
        }
    }

    fn begin(&self) -> (v1::Envelope, Bytes) {
        let mut mind = self.mind();
        let free = mind.tasks.iter().find(|(_, owned)| owned.handoff.is_none());
        let free = free.map(|(task, owned)| (task.clone(), owned.epoch, owned.is_tired));
        let envelope = match free {
            Some((task, epoch, true)) => self.finish(&mut mind, &task, epoch),
            Some((task, epoch, false)) if mind.rng.one_in(2) => self.request(&mut mind, task, epoch),
            None if mind.tasks.len() < TASKS_MAX && mind.rng.one_in(3) => self.request(&mut mind, new_task(), 1),
            Some(_) | None => self.info(&mut mind),
        };
        (envelope.clone(), self.ledger.composed(envelope))
    }

    fn another(&self, mind: &mut Mind) -> &'static str {
        mind.rng.pick::<&'static str>(&self.others)
    }

    fn info(&self, mind: &mut Mind) -> v1::Envelope {
        let text = "x".repeat(usize::try_from(mind.rng.roll(400)).unwrap());
        let info = v1::Info { text, ..Default::default() };
        let to = self.another(mind);
        self.composer.compose(to, MessageType::Info, &About::default(), &info)
    }

    fn request(&self, mind: &mut Mind, task: String, epoch: u64) -> v1::Envelope {
        let to = self.another(mind);
        let fallback = mind.rng.one_in(4).then(|| self.another(mind).to_owned());
        let request = v1::HandoffRequest {
            task_type: "load".into(),
            fallback_candidates: fallback.into_iter().collect(),
            timeouts: Some(timeouts()),
            ..Default::default()
        };
        let about = About::task(&task, epoch);
        let envelope = self.composer.compose(to, MessageType::HandoffRequest, &about, &request);
        let handoff = Some(envelope.message_id.clone());
        mind.tasks.insert(task, Owned { epoch, handoff, is_tired: false });
        envelope
    }

    fn finish(&self, mind: &mut Mind, task: &str, epoch: u64) -> v1::Envelope {
        mind.tasks.remove(task);
        let update = v1::TaskStatusUpdate { status: TaskStatus::Completed.into(), ..Default::default() };
        let (to, about) = (self.another(mind), About::task(task, epoch));
        self.composer.compose(to, MessageType::TaskStatusUpdate, &about, &update)
    }

    fn after_receipt(&self, envelope: &v1::Envelope, receipt: &v1::Receipt) {
        let mut mind = self.mind();
        match envelope.message_type() {
            MessageType::HandoffComplete if receipt.handoff_state() == HandoffState::Completed => {
                let owned = Owned { epoch: receipt.epoch, handoff: None, is_tired: false };
                mind.tasks.insert(receipt.task_id.clone(), owned);
            }
            MessageType::HandoffCancel => mind.keeps(envelope),
            _ => {}
        }
    }

    fn after_refusal(&self, envelope: &v1::Envelope) {
        let mut mind = self.mind();
        if envelope.message_type() == MessageType::HandoffRequest
            && let Some(owned) = mind.tasks.get_mut(&envelope.task_id)
        {
            (owned.handoff, owned.is_tired) = (None, true);
        }
    }
}

impl Mind {
    /// The handoff of this message has ended without moving the task.
    fn keeps(&mut self, envelope: &v1::Envelope) {
        if let Some(owned) = self.tasks.get_mut(&envelope.task_id)
            && owned.handoff.as_ref() == Some(&envelope.correlation_id)
        {
            owned.handoff = None;
        }
    }

    /// The handoff of this message has moved the task.
    fn lets_go(&mut self, envelope: &v1::Envelope) {
        let owned = self.tasks.get(&envelope.task_id);
        if owned.is_some_and(|owned| owned.handoff.as_ref() == Some(&envelope.correlation_id)) {
            self.tasks.remove(&envelope.task_id);
        }
    }
}

// The reactions to deliveries.
impl Actor {
    async fn listen(self: Arc<Self>, agent: &Arc<Agent>) -> Result<(), ClientError> {
        let mut at_work = JoinSet::new();
        loop {
            let delivered = agent.next().await?;
            self.ledger.delivered(self.name, &delivered.delivery, &delivered.envelope);
            at_work.spawn(self.clone().take(agent.clone(), delivered));
            while let Some(done) = at_work.try_join_next() {
                done.expect("no agent panics")?;
            }
        }
    }

    /// Answers the message, with the same bytes for each of its deliveries, and then ends the delivery.
    async fn take(self: Arc<Self>, agent: Arc<Agent>, delivered: Delivered) -> Result<(), ClientError> {
        if let Some((envelope, raw)) = self.answer(&delivered) {
            self.send(&agent, &envelope, raw).await?;
        }
        let (message, delivery) = (&delivered.envelope.message_id, &delivered.delivery.delivery_id);
        let choice = self.mind().rng.roll(40);
        if delivered.kind() == MessageType::Info && !self.draining() {
            match choice {
                0 => return self.poison(&agent, message, delivery).await,
                1 => return agent.session.nack(delivery, nack(NackCause::Failure)).await,
                2 => return agent.session.nack(delivery, nack(NackCause::Shutdown)).await,
                3 => return Ok(()), // left unacknowledged: redelivered on the next connection
                _ => {}
            }
        }
        self.ledger.ending(self.name, message, End::Acked);
        match agent.session.ack(delivery).await {
            Ok(()) => self.ledger.ended(self.name, message, End::Acked),
            // The handoff has ended meanwhile, and its offer or context was withdrawn.
            Err(ClientError::Refused(refused)) if refused.reason == "DELIVERY_UNKNOWN" && is_of_handoff(&delivered) => {
                self.ledger.withdrawn(self.name, message);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn poison(&self, agent: &Agent, message: &str, delivery: &str) -> Result<(), ClientError> {
        self.ledger.ending(self.name, message, End::Poisoned);
        agent.session.nack(delivery, nack(NackCause::Poison)).await?;
        self.ledger.ended(self.name, message, End::Poisoned);
        Ok(())
    }

    fn answer(&self, delivered: &Delivered) -> Option<(v1::Envelope, Bytes)> {
        let mut mind = self.mind();
        if !mind.answered.insert(delivered.envelope.message_id.clone()) {
            return None;
        }
        let envelope = match delivered.kind() {
            MessageType::HandoffRequest => self.decide(&mut mind, delivered),
            MessageType::HandoffAccept => self.go_on(&mut mind, delivered),
            MessageType::TaskContextTransfer => self.take_over(&mut mind, delivered),
            MessageType::HandoffComplete => {
                let complete: v1::HandoffComplete = delivered.payload();
                if complete.outcome() == HandoffOutcome::Success {
                    mind.lets_go(&delivered.envelope);
                }
                None
            }
            MessageType::ErrorNotification => {
                let error: v1::ErrorNotification = delivered.payload();
                if error.next_step() == NextStep::KeepTask {
                    mind.keeps(&delivered.envelope);
                }
                None
            }
            _ => None,
        }?;
        Some((envelope.clone(), self.ledger.composed(envelope)))
    }

    /// Accepts most requests.
    fn decide(&self, mind: &mut Mind, request: &Delivered) -> Option<v1::Envelope> {
        match mind.rng.roll(16) {
            0 => None, // lets the accept timeout expire
            1 | 2 => Some(self.reply(request, MessageType::HandoffReject, &v1::HandoffReject::default())),
            _ => Some(self.reply(request, MessageType::HandoffAccept, &v1::HandoffAccept::default())),
        }
    }

    /// Sends the context in most cases.
    fn go_on(&self, mind: &mut Mind, accept: &Delivered) -> Option<v1::Envelope> {
        let context = context_of([("progress_report", format!(r#"{{"by":"{}"}}"#, self.name))]);
        match mind.rng.roll(24) {
            0 => None, // lets the context timeout expire
            1 => Some(self.reply(accept, MessageType::HandoffCancel, &v1::HandoffCancel::default())),
            _ => Some(self.reply(accept, MessageType::TaskContextTransfer, &context)),
        }
    }

    /// Completes the takeover in most cases.
    fn take_over(&self, mind: &mut Mind, context: &Delivered) -> Option<v1::Envelope> {
        let payload: v1::TaskContextTransfer = context.payload();
        let outcome = match mind.rng.roll(24) {
            0 => return None, // lets the completion timeout expire
            1 => HandoffOutcome::Failure,
            _ => HandoffOutcome::Success,
        };
        let context_digest = payload.context_digest;
        let complete = v1::HandoffComplete { outcome: outcome.into(), context_digest, ..Default::default() };
        Some(self.reply(context, MessageType::HandoffComplete, &complete))
    }

    fn reply<M: prost::Message + prost::Name>(&self, to: &Delivered, kind: MessageType, payload: &M) -> v1::Envelope {
        self.composer.compose(&to.envelope.sender_id, kind, &to.about(), payload)
    }
}

/// Whether the broker withdraws the message once its handoff has ended or gone on.
fn is_of_handoff(delivered: &Delivered) -> bool {
    matches!(delivered.kind(), MessageType::HandoffRequest | MessageType::TaskContextTransfer)
}

fn nack(cause: NackCause) -> v1::Nack {
    let retry_after = prost_types::Duration::try_from(Duration::from_millis(20)).ok();
    v1::Nack { cause: cause.into(), retry_after, ..Default::default() }
}

/// Short timeouts, so that every unanswered handoff ends during the test.
fn timeouts() -> v1::HandoffTimeouts {
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    v1::HandoffTimeouts { accept: seconds(4), context: seconds(4), complete: seconds(4), whole: seconds(10) }
}
