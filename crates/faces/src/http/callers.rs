//! The agents behind the tokens: the face of each grant, while the grant holds.
//!
//! A grant is looked up at each request, and the broker is asked whether it still takes the key, at most twice a second. So
//! a revoked grant is refused within a second, by whichever of the two ways it was revoked.

use std::{
    collections::{HashMap, HashSet},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use baton_client::{
    Identity,
    envelope::signing,
    time::{Clock as _, Moment, SystemClock, Timestamp},
};
use http::{HeaderMap, StatusCode};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time,
};
use tokio_util::sync::CancellationToken;

use super::{
    Settings,
    access::{Refused, no_grant, token_of},
    body::BODY_BYTES_MAX,
};
use crate::{
    Face,
    a2a::closing,
    acts::{self, Act},
    mcp::Server,
};

/// How long an answer of the broker about a key counts.
const ACCEPTED_FOR: Duration = Duration::from_millis(500);
/// How often the grants are looked through.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a broker is asked that says no: a challenge may fall into its restart.
const TRIES: usize = 2;

/// The SHA-256 of a token.
pub type TokenDigest = [u8; 32];

/// A key that an agent has lent to the gateway for a time.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The agent and the lent key.
    pub identity: Identity,
    /// The end of the grant.
    pub expire_time: Timestamp,
}

type Finding<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where the grants are kept.
pub trait Grants: std::fmt::Debug + Send + Sync {
    /// The grant whose token has this digest. `None`: unknown or revoked.
    fn find<'a>(&'a self, token: &'a TokenDigest) -> Finding<'a, Option<Grant>>;

    /// The digests of all tokens. `None`: they cannot be read now.
    fn all(&self) -> Finding<'_, Option<HashSet<TokenDigest>>>;
}

/// The agent of a grant.
pub(super) struct Caller {
    pub(super) face: Arc<Face>,
    pub(super) mcp: StreamableHttpService<Server, NeverSessionManager>,
    /// Cancelled with the end of the grant or of the gateway.
    pub(super) stop: CancellationToken,
    expire_time: Timestamp,
    /// The places of the agent's requests, which all its grants share.
    places: Arc<Semaphore>,
    /// The broker's last answer about the key.
    accepted: tokio::sync::Mutex<Option<(Moment, bool)>>,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Caller").field("face", &self.face).finish_non_exhaustive()
    }
}

impl Caller {
    fn has_expired(&self) -> bool {
        SystemClock.now() >= self.expire_time
    }

    /// Whether the broker takes the key. Does not wait for an absent broker: the act then says so.
    async fn is_accepted(&self) -> bool {
        let mut last = self.accepted.lock().await;
        if let Some((at, is_accepted)) = *last
            && at.elapsed() < ACCEPTED_FOR
        {
            return is_accepted;
        }
        let mut answer = None;
        for _ in 0..TRIES {
            answer = self.face.is_accepted().await;
            if answer != Some(false) {
                break;
            }
        }
        let is_accepted = answer.unwrap_or(true);
        *last = Some((Moment::now(), is_accepted));
        if !is_accepted {
            // What streams to the agent ends.
            self.stop.cancel();
        }
        is_accepted
    }
}

/// A request of an agent, with its place among the agent's requests.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) caller: Arc<Caller>,
    pub(super) place: OwnedSemaphorePermit,
}

/// The faces of all grants.
#[derive(Debug)]
pub(super) struct Callers {
    settings: Settings,
    acts: Arc<[Act]>,
    grants: Arc<dyn Grants>,
    stop: CancellationToken,
    present: Mutex<Present>,
}

#[derive(Debug, Default)]
struct Present {
    callers: HashMap<TokenDigest, Arc<Caller>>,
    /// By agent.
    places: HashMap<String, Arc<Semaphore>>,
}

impl Callers {
    pub(super) fn new(settings: Settings, grants: Arc<dyn Grants>, stop: CancellationToken) -> Self {
        let acts = acts::of(&settings.sets).into();
        Self { settings, acts, grants, stop, present: Mutex::default() }
    }

    /// The agent that the request's token stands for, with a place for the request.
    pub(super) async fn admit(&self, headers: &HeaderMap) -> Result<Admitted, Refused> {
        let digest: TokenDigest = signing::sha256(&[token_of(headers)?.as_bytes()]);
        let caller = self.caller(&digest).await.ok_or_else(no_grant)?;
        let place = Arc::clone(&caller.places)
            .try_acquire_owned()
            .map_err(|_| Refused::busy(StatusCode::TOO_MANY_REQUESTS, "this agent has too many requests at a time"))?;
        match caller.is_accepted().await {
            true => Ok(Admitted { caller, place }),
            false => Err(no_grant()),
        }
    }

    /// The face of a grant that holds.
    async fn caller(&self, digest: &TokenDigest) -> Option<Arc<Caller>> {
        let grant = self.grants.find(digest).await;
        let grant = grant.filter(|grant| SystemClock.now() < grant.expire_time);
        let Some(grant) = grant else {
            self.end(digest);
            return None;
        };
        let known = self.present().callers.get(digest).cloned();
        if let Some(caller) = known {
            // After a while the broker may take the key of a stopped one, for example after its restore from a copy.
            let is_over = caller.stop.is_cancelled()
                && caller.accepted.lock().await.is_none_or(|(at, _)| at.elapsed() >= ACCEPTED_FOR);
            if !is_over {
                return Some(caller);
            }
            self.end(digest);
        }
        let mut present = self.present();
        if let Some(caller) = present.callers.get(digest) {
            return Some(Arc::clone(caller));
        }
        let caller = Arc::new(self.begin(grant, &mut present.places));
        present.callers.insert(*digest, Arc::clone(&caller));
        Some(caller)
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The faces of the grants that hold, in no order.
    pub(super) fn faces(&self) -> Vec<Arc<Face>> {
        let present = self.present();
        let holding = present.callers.values().filter(|caller| !caller.stop.is_cancelled() && !caller.has_expired());
        holding.map(|caller| Arc::clone(&caller.face)).collect()
    }

    /// Ends what goes on under a grant.
    fn end(&self, digest: &TokenDigest) {
        if let Some(caller) = self.present().callers.remove(digest) {
            caller.stop.cancel();
        }
    }

    fn begin(&self, grant: Grant, places: &mut HashMap<String, Arc<Semaphore>>) -> Caller {
        let most = self.settings.requests_per_agent_max;
        let agent = grant.identity.agent.to_string();
        let places = places.entry(agent).or_insert_with(|| Arc::new(Semaphore::new(most)));
        let face = Arc::new(Face::registered(self.settings.options.clone(), grant.identity));
        let stop = self.stop.child_token();
        tokio::spawn({
            let (face, stop) = (Arc::clone(&face), stop.clone());
            async move { face.attend(stop).await }
        });
        if !self.settings.published.is_empty() {
            let (face, stop) = (Arc::clone(&face), stop.clone());
            tokio::spawn(async move { stop.run_until_cancelled(closing::close_all(&face)).await });
        }
        // The gateway checks hosts and origins of all its routes.
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .with_sse_retry(None)
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_max_request_body_bytes(BODY_BYTES_MAX)
            .with_cancellation_token(stop.clone());
        let server = {
            let (face, acts, stop) = (Arc::clone(&face), Arc::clone(&self.acts), stop.clone());
            let version = self.settings.version;
            move || Ok(Server::of_request(Arc::clone(&face), Arc::clone(&acts), version, stop.clone()))
        };
        Caller {
            mcp: StreamableHttpService::new(server, Arc::default(), config),
            face,
            expire_time: grant.expire_time,
            places: Arc::clone(places),
            accepted: tokio::sync::Mutex::default(),
            stop,
        }
    }

    /// Keeps the agents of all grants present, and ends those whose grant has ended, until the gateway stops.
    pub(super) async fn attend(&self) {
        loop {
            if let Some(all) = self.grants.all().await {
                self.follow(&all).await;
            }
            tokio::select! {
                () = time::sleep(LOOK_EVERY) => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    async fn follow(&self, all: &HashSet<TokenDigest>) {
        self.present().callers.retain(|digest, caller| {
            let holds = all.contains(digest) && !caller.has_expired();
            if !holds {
                caller.stop.cancel();
            }
            holds
        });
        for digest in all {
            if !self.present().callers.contains_key(digest) {
                self.caller(digest).await;
            }
        }
        // A stream may be open for days: nothing else asks whether its key still holds.
        let most = self.settings.requests_per_agent_max;
        let is_busy = |caller: &&Arc<Caller>| caller.places.available_permits() < most && !caller.stop.is_cancelled();
        let busy: Vec<Arc<Caller>> = self.present().callers.values().filter(is_busy).cloned().collect();
        let mut asked: JoinSet<bool> =
            busy.into_iter().map(|caller| async move { caller.is_accepted().await }).collect();
        while asked.join_next().await.is_some() {}
    }
}
