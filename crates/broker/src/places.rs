//! Work beside the threads that serve connections: reads that may wait for the disk, and checks that take time. Its
//! places are shared by caller (SPEC 5).
//!
//! Owns the threads of such work, and the order in which callers get places. Must not know the work. One caller has at
//! most a quarter of the places, so it waits behind itself. Callers that wait take turns, whatever number of calls each
//! has; the calls of one caller run in the order of their arrival. Work whose call is given up while it waits never runs.
//!
//! Large work runs on threads of its own, whose priority is below that of the engine and of the threads that serve
//! connections: a message does not wait until a check or a page of another agent has had its turn on the processor.
//!
//! The CPU time of the work is measured where it runs, and charged to its caller. A call of a caller whose account is
//! overdrawn is refused at its begin; the further work of a call that has begun waits until the account is filled.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    runtime::Runtime,
    sync::oneshot,
    task::{JoinError, JoinHandle},
};
use tokio_util::task::AbortOnDropHandle;

use super::{BrokerError, access::Caller, limits::CpuAccounts};
use crate::time::{Moment, thread_cpu};

/// The places for small work. They are apart from the others, so that large work does not delay small work.
const SMALL_PLACES: usize = 16;
/// The places for large work. Each may hold some megabytes and a thread.
const LARGE_PLACES: usize = 16;

/// The niceness of the threads with large work. Against a thread of niceness 0 on the same processor, they get about a
/// fifth of its time.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 7;

/// The size of a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkSize {
    /// Envelopes of the caller's mail. Not charged: other agents decide how much mail it gets.
    Mail,
    /// A read of a few records.
    Small,
    /// A list, a page, a check or a file: up to some megabytes, or more than a millisecond.
    Large,
}

/// The places for the work of all callers.
#[derive(Debug)]
pub struct Workers {
    small: Arc<Places>,
    large: Arc<Places>,
    cpu: Arc<Cpu>,
}

/// The accounts of the CPU time, and the clock that measures it.
#[derive(Debug)]
struct Cpu {
    accounts: CpuAccounts,
    /// The CPU time of the current thread.
    used: fn() -> Duration,
}

/// Charges the time from its making to its drop, on one thread.
struct Charge {
    cpu: Arc<Cpu>,
    caller: Caller,
    begin: Duration,
}

impl Charge {
    fn begin(cpu: Arc<Cpu>, caller: Caller) -> Self {
        let begin = (cpu.used)();
        Self { cpu, caller, begin }
    }
}

/// Also where the work panics.
impl Drop for Charge {
    fn drop(&mut self) {
        let used = (self.cpu.used)().saturating_sub(self.begin);
        self.cpu.accounts.charge(&self.caller, used, Moment::now());
    }
}

impl Workers {
    /// Starts with all places free.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn new(accounts: CpuAccounts) -> io::Result<Self> {
        Self::with(accounts, [SMALL_PLACES, LARGE_PLACES], thread_cpu)
    }

    fn with(accounts: CpuAccounts, [small, large]: [usize; 2], used: fn() -> Duration) -> io::Result<Self> {
        let cpu = Arc::new(Cpu { accounts, used });
        Ok(Self { small: Places::new(small), large: Places::behind(large)?, cpu })
    }

    /// Checks that the CPU time of the caller's earlier work is paid for.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED with the time to wait.
    pub fn check(&self, caller: &Caller) -> Result<(), BrokerError> {
        self.cpu.accounts.check(caller, Moment::now())
    }

    /// Runs work of a caller on a thread that may wait, once the caller has a place and its account is not overdrawn. If
    /// the future is dropped before, the work never runs; if it is dropped later, the work keeps its place until it ends.
    ///
    /// # Errors
    /// INTERNAL if the work panics, or if the runtime shuts down.
    pub async fn run<T: Send + 'static>(
        &self,
        caller: &Caller,
        size: WorkSize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BrokerError> {
        let (work, done) = job(work);
        self.start(caller, size, work).ended(done).await
    }

    /// Starts [`Self::run`] in a task of its own: a stream that its client does not read is not polled, and would keep a
    /// place that it gets.
    fn start(&self, caller: &Caller, size: WorkSize, work: Job) -> Started {
        let places = match size {
            WorkSize::Mail | WorkSize::Small => self.small.clone(),
            WorkSize::Large => self.large.clone(),
        };
        let charged = (size != WorkSize::Mail).then(|| (self.cpu.clone(), caller.clone()));
        let name = caller.to_string();
        Started::new(tokio::spawn(async move {
            let overdrawn = || charged.as_ref().and_then(|(cpu, caller)| cpu.accounts.wait(caller, Moment::now()));
            let place = loop {
                // Without a place, which others can use meanwhile.
                while let Some(wait) = overdrawn() {
                    tokio::time::sleep(wait).await;
                }
                let place = places.take(&name).await;
                // Other work of the caller has ended in the meantime.
                if overdrawn().is_none() {
                    break place;
                }
            };
            let charging = move || {
                let _charge = charged.map(|(cpu, caller)| Charge::begin(cpu, caller));
                work();
            };
            place.run(Box::new(charging)).await
        }))
    }
}

/// A piece of work. Boxed, because a hundred calls have work of their own, and each would compile the threads' code again.
type Job = Box<dyn FnOnce() + Send>;

/// Makes a job of work, which sends what the work returns.
fn job<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> (Job, oneshot::Receiver<T>) {
    let (sender, done) = oneshot::channel();
    // A call that was given up has no receiver.
    (Box::new(move || drop(sender.send(work()))), done)
}

/// The task that waits for a place, and runs its job there. Its drop ends the task while it waits.
struct Started(AbortOnDropHandle<Result<(), JoinError>>);

impl Started {
    fn new(task: JoinHandle<Result<(), JoinError>>) -> Self {
        Self(AbortOnDropHandle::new(task))
    }

    /// Waits for the end of the job, and returns what it has sent.
    async fn ended<T>(self, done: oneshot::Receiver<T>) -> Result<T, BrokerError> {
        self.0.await.and_then(|ran| ran).map_err(|_| BrokerError::Internal)?;
        done.await.map_err(|_| BrokerError::Internal)
    }
}

/// The part of all places that one caller may have: one in this many.
const SHARES: usize = 4;

/// A number of places, and the callers that wait for one.
#[derive(Debug)]
pub struct Places {
    of_all_max: usize,
    of_one_max: usize,
    /// The threads of the work. `None`: those of the runtime.
    threads: Option<Threads>,
    state: Mutex<State>,
}

/// Threads with a lower priority, started when they are needed. Its drop leaves them to end their work.
#[derive(Debug)]
struct Threads(Option<Runtime>);

impl Threads {
    fn new(most: usize) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .thread_name("baton-large")
            .max_blocking_threads(most)
            .on_thread_start(lower_priority)
            .build()?;
        Ok(Self(Some(runtime)))
    }

    fn run(&self, work: Job) -> JoinHandle<()> {
        self.0.as_ref().expect("only the drop takes it").spawn_blocking(work)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // A runtime that is dropped waits for its threads, which a thread that serves others may not do.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Lowers the priority of the current thread.
fn lower_priority() {
    #[cfg(target_os = "linux")] // elsewhere the call changes the whole process
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "failed to lower the priority of a thread");
    }
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    /// The callers that have a place or wait for one.
    callers: HashMap<String, Line>,
    /// The callers that wait. The first that may have a further place gets the next one, and goes to the end.
    turns: VecDeque<String>,
    next_ticket: u64,
}

/// The places of one caller, and its work that waits, in the order of arrival.
#[derive(Debug, Default)]
struct Line {
    taken: usize,
    waiting: BTreeMap<u64, oneshot::Sender<Place>>,
}

/// A place of a caller. Its drop gives the place to the next one.
#[derive(Debug)]
struct Place {
    places: Arc<Places>,
    caller: String,
}

impl Places {
    /// Starts with all places free. One caller may have a quarter of them, and at least one.
    pub fn new(all: usize) -> Arc<Self> {
        Arc::new(Self::over(all, None))
    }

    /// As [`Self::new`], on threads whose priority is below that of the others.
    ///
    /// # Errors
    /// The operating system gives no thread.
    fn behind(all: usize) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self::over(all, Some(Threads::new(all)?))))
    }

    fn over(all: usize, threads: Option<Threads>) -> Self {
        Self { of_all_max: all, of_one_max: (all / SHARES).max(1), threads, state: Mutex::default() }
    }

    /// Runs work on a thread that may wait, once `caller` has a place. Not charged. If the future is dropped before, the
    /// work never runs; if it is dropped later, the work keeps its place until it ends.
    ///
    /// # Errors
    /// INTERNAL if the work panics, or if the runtime shuts down.
    pub async fn run<T: Send + 'static>(
        self: Arc<Self>,
        caller: String,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BrokerError> {
        let (work, done) = job(work);
        self.start(caller, work).ended(done).await
    }

    fn start(self: Arc<Self>, caller: String, work: Job) -> Started {
        Started::new(tokio::spawn(async move { self.take(&caller).await.run(work).await }))
    }

    /// Waits for a place. The drop of the future leaves the line.
    async fn take(self: &Arc<Self>, caller: &str) -> Place {
        let (sender, granted) = oneshot::channel();
        let ticket = self.state().wait(caller, sender);
        let mut waiting = Waiting { places: self.clone(), caller: caller.to_owned(), ticket, granted };
        self.grant();
        (&mut waiting.granted).await.expect("the line keeps the sender until it sends")
    }

    /// Gives free places to the callers that wait.
    fn grant(self: &Arc<Self>) {
        loop {
            let next = self.state().next(self.of_all_max, self.of_one_max);
            let Some((caller, sender)) = next else { return };
            // Outside the lock: a call that was given up meanwhile drops the place here, which gives it to another one.
            drop(sender.send(Place { places: self.clone(), caller }));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wait(&mut self, caller: &str, sender: oneshot::Sender<Place>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let line = self.callers.entry(caller.to_owned()).or_default();
        if line.waiting.is_empty() {
            self.turns.push_back(caller.to_owned());
        }
        line.waiting.insert(ticket, sender);
        ticket
    }

    /// Takes a place for the caller whose turn it is. `None`: no place is free, or no caller that waits may have one.
    fn next(&mut self, of_all_max: usize, of_one_max: usize) -> Option<(String, oneshot::Sender<Place>)> {
        if self.taken >= of_all_max {
            return None;
        }
        // Those at their bound have all places together, so few are skipped. They keep their turn.
        let may_take = |caller: &String| self.callers.get(caller).is_some_and(|line| line.taken < of_one_max);
        let caller = self.turns.iter().position(may_take).and_then(|turn| self.turns.remove(turn))?;
        let line = self.callers.get_mut(&caller)?;
        let (_, sender) = line.waiting.pop_first()?;
        line.taken += 1;
        self.taken += 1;
        if !line.waiting.is_empty() {
            self.turns.push_back(caller.clone());
        }
        Some((caller, sender))
    }

    fn give_back(&mut self, caller: &str) {
        self.taken -= 1;
        if let Some(line) = self.callers.get_mut(caller) {
            line.taken -= 1;
        }
        self.forget(caller);
    }

    fn leave(&mut self, caller: &str, ticket: u64) {
        let Some(line) = self.callers.get_mut(caller) else { return };
        let was_waiting = line.waiting.remove(&ticket).is_some();
        if was_waiting && line.waiting.is_empty() {
            self.turns.retain(|other| other != caller);
        }
        self.forget(caller);
    }

    /// Removes a caller that has no place and waits for none, so that the callers in memory are those of calls.
    fn forget(&mut self, caller: &str) {
        if self.callers.get(caller).is_some_and(|line| line.taken == 0 && line.waiting.is_empty()) {
            self.callers.remove(caller);
        }
    }
}

impl Place {
    /// Runs work on a thread that may wait. The thread gives the place back: a call that is given up leaves it working.
    async fn run(self, work: Job) -> Result<(), JoinError> {
        let places = self.places.clone();
        let work: Job = Box::new(move || {
            let _place = self;
            work();
        });
        match &places.threads {
            Some(threads) => threads.run(work).await,
            None => tokio::task::spawn_blocking(work).await,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.state().give_back(&self.caller);
        self.places.grant();
    }
}

/// A call that waits. Its drop leaves the line.
struct Waiting {
    places: Arc<Places>,
    caller: String,
    ticket: u64,
    granted: oneshot::Receiver<Place>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.places.state().leave(&self.caller, self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        pin::Pin,
        sync::{
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        task::{Context, Poll, Waker},
    };

    use super::*;
    use crate::{
        AgentLimits,
        access::Operator,
        codes::{ErrorCode, Refusal as _},
    };

    type Call = Pin<Box<dyn Future<Output = Place>>>;

    /// A call of this caller that waits, or has its place at once.
    fn call(places: &Arc<Places>, caller: &'static str) -> Call {
        let places = places.clone();
        let mut call: Call = Box::pin(async move { places.take(caller).await });
        // The first poll gets into the line.
        match poll(&mut call) {
            Some(place) => Box::pin(std::future::ready(place)),
            None => call,
        }
    }

    fn poll(call: &mut Call) -> Option<Place> {
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(place) => Some(place),
            Poll::Pending => None,
        }
    }

    /// The places of the calls that have one; the others stay.
    fn granted(calls: &mut Vec<Call>) -> Vec<Place> {
        let mut places = Vec::new();
        calls.retain_mut(|call| match poll(call) {
            Some(place) => {
                places.push(place);
                false
            }
            None => true,
        });
        places
    }

    fn names(places: &[Place]) -> Vec<&str> {
        places.iter().map(|place| place.caller.as_str()).collect()
    }

    fn is_empty(places: &Places) -> bool {
        let state = places.state();
        state.taken == 0 && state.callers.is_empty() && state.turns.is_empty()
    }

    #[test]
    fn one_caller_has_a_quarter_of_the_places_and_waits_behind_itself() {
        let places = Places::new(16);
        let mut many: Vec<Call> = (0..40).map(|_| call(&places, "many")).collect();
        let mut held = granted(&mut many);
        assert_eq!(held.len(), 4);
        let other = granted(&mut vec![call(&places, "other")]);
        assert_eq!(names(&other), ["other"], "another caller waits for none of them");
        held.pop();
        held.extend(granted(&mut many));
        assert_eq!((held.len(), many.len()), (4, 35), "its own next call follows");
        drop((held, other, many));
        assert!(is_empty(&places), "nothing is left behind");
    }

    #[test]
    fn callers_that_wait_take_turns_and_their_calls_keep_their_order() {
        let places = Places::new(1);
        let mut held = granted(&mut vec![call(&places, "a")]);
        let mut calls: Vec<Call> = ["a", "a", "a", "b", "b", "c"].map(|caller| call(&places, caller)).into();
        let mut order = Vec::new();
        while !calls.is_empty() {
            held.clear();
            held = granted(&mut calls);
            assert_eq!(held.len(), 1, "there is one place");
            order.push(held[0].caller.clone());
        }
        assert_eq!(order, ["a", "b", "c", "a", "b", "a"]);
    }

    #[test]
    fn all_places_together_are_bounded() {
        let places = Places::new(4);
        let mut calls: Vec<Call> = ["a", "b", "c", "d", "e"].map(|caller| call(&places, caller)).into();
        let mut held = granted(&mut calls);
        assert_eq!(names(&held), ["a", "b", "c", "d"]);
        drop(held.remove(0));
        assert_eq!(names(&granted(&mut calls)), ["e"]);
    }

    #[test]
    fn a_call_that_is_given_up_while_it_waits_leaves_the_line() {
        let places = Places::new(1);
        let held = granted(&mut vec![call(&places, "a")]);
        let given_up: Vec<Call> = (0..1000).map(|_| call(&places, "b")).collect();
        let mut last = vec![call(&places, "c")];
        drop(given_up);
        assert_eq!(places.state().turns, ["c"], "a caller without calls has no turn");
        drop(held);
        let held = granted(&mut last);
        assert_eq!(names(&held), ["c"]);
        drop(held);
        assert!(is_empty(&places));
    }

    #[test]
    fn a_place_that_is_granted_to_a_call_that_was_given_up_goes_on() {
        let places = Places::new(1);
        let held = granted(&mut vec![call(&places, "a")]);
        let (given_up, mut next) = (call(&places, "b"), vec![call(&places, "c")]);
        // The grant waits in the future, which is dropped before its next poll.
        drop(held);
        drop(given_up);
        assert_eq!(names(&granted(&mut next)), ["c"]);
    }

    fn agent(name: &str) -> Caller {
        Caller::Agent(crate::ids::AgentId::parse(name).unwrap())
    }

    thread_local! {
        /// The CPU time of this thread, as the tests have it.
        static USED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// Workers with one place of each kind, whose work takes as much CPU time as [`take`] says.
    fn few(limits: &AgentLimits) -> Workers {
        Workers::with(CpuAccounts::new(limits), [1, 1], || USED.get()).expect("threads start")
    }

    fn take(milliseconds: u64) {
        USED.set(USED.get() + Duration::from_millis(milliseconds));
    }

    #[tokio::test]
    async fn work_is_charged_to_its_caller_also_where_it_panics_and_mail_is_not() {
        let limits = AgentLimits { cpu_ms_per_second: 10, operator_cpu_ms_per_second: 1000, ..AgentLimits::default() };
        let (a, b, c) = (agent("a"), agent("b"), agent("c"));
        let workers = few(&limits);
        workers.run(&a, WorkSize::Small, || take(1000)).await.unwrap();
        assert_eq!(workers.check(&a).unwrap_err().code(), ErrorCode::LimitExceeded);
        workers.check(&b).expect("others are not charged");
        let panics = || {
            take(1000);
            panic!("on purpose")
        };
        workers.run::<()>(&b, WorkSize::Large, panics).await.unwrap_err();
        assert_eq!(workers.check(&b).unwrap_err().code(), ErrorCode::LimitExceeded);
        workers.run(&c, WorkSize::Mail, || take(1000)).await.unwrap();
        workers.check(&c).unwrap();
        let olga = Caller::Operator(Operator::named("olga"));
        workers.run(&olga, WorkSize::Large, || take(1000)).await.unwrap();
        workers.check(&olga).expect("operators have more");
        // The mail of an overdrawn agent still comes.
        workers.run(&a, WorkSize::Mail, || ()).await.unwrap();
    }

    #[tokio::test]
    async fn further_work_of_a_call_waits_without_a_place_while_its_caller_is_overdrawn() {
        let limits = AgentLimits { cpu_ms_per_second: 10, ..AgentLimits::default() };
        let (workers, a) = (few(&limits), agent("a"));
        workers.run(&a, WorkSize::Large, || take(1000)).await.unwrap();
        let mut waits = Box::pin(workers.run(&a, WorkSize::Large, || panic!("it is given up")));
        assert!(still_waits(&mut waits));
        tokio::task::yield_now().await;
        // There is one place, which the call that waits does not hold.
        workers.run(&agent("b"), WorkSize::Large, || ()).await.unwrap();
        assert!(still_waits::<Result<(), _>>(&mut waits));
    }

    /// Work that reports its begin and waits for its end.
    fn gated() -> (impl FnOnce() + Send, oneshot::Receiver<()>, mpsc::Sender<()>) {
        let (begun, has_begun) = oneshot::channel();
        let (end, is_ended) = mpsc::channel::<()>();
        let work = move || {
            let _ = begun.send(());
            let _ = is_ended.recv();
        };
        (work, has_begun, end)
    }

    #[tokio::test]
    async fn work_whose_call_is_given_up_keeps_its_place_if_it_runs_and_never_runs_if_it_waits() {
        let workers = Arc::new(Workers::new(CpuAccounts::new(&AgentLimits::default())).expect("threads start"));
        let mut running = Vec::new();
        for _ in 0..LARGE_PLACES / SHARES {
            let (work, has_begun, end) = gated();
            let workers = workers.clone();
            let call = tokio::spawn(async move { workers.run(&agent("many"), WorkSize::Large, work).await });
            has_begun.await.unwrap();
            call.abort();
            running.push(end);
        }
        let ran = Arc::new(AtomicUsize::new(0));
        let count = |ran: &Arc<AtomicUsize>| {
            let ran = ran.clone();
            move || ran.fetch_add(1, Ordering::Relaxed)
        };
        let many = agent("many");
        for _ in 0..40 {
            let mut waits = Box::pin(workers.run(&many, WorkSize::Large, count(&ran)));
            assert!(still_waits(&mut waits));
            // Its task gets into the line.
            tokio::task::yield_now().await;
            assert!(still_waits(&mut waits), "the threads of the calls that were given up still work");
        }
        // Another caller waits for none of them, and small work does not wait for large work.
        workers.run(&agent("other"), WorkSize::Large, count(&ran)).await.unwrap();
        workers.run(&agent("many"), WorkSize::Small, count(&ran)).await.unwrap();
        running.clear();
        workers.run(&agent("many"), WorkSize::Large, count(&ran)).await.unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), 3, "work that was given up while it waited never runs");
    }

    /// Whether the future still waits after a poll.
    fn still_waits<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> bool {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[tokio::test]
    async fn a_call_that_is_not_polled_takes_no_place_from_others() {
        let workers = few(&AgentLimits::default());
        let held = workers.large.take("agent a").await;
        let unreading = agent("a");
        let mut unread = Box::pin(workers.run(&unreading, WorkSize::Large, || ()));
        assert!(still_waits(&mut unread), "it waits for its place");
        // Its task gets into the line.
        tokio::task::yield_now().await;
        drop(held);
        workers.run(&agent("b"), WorkSize::Large, || ()).await.unwrap();
        unread.await.unwrap();
    }

    #[tokio::test]
    async fn work_that_panics_gives_its_place_back() {
        let workers = few(&AgentLimits::default());
        let failed = workers.run(&agent("a"), WorkSize::Small, || panic!("on purpose")).await;
        assert_eq!(failed, Err::<(), _>(BrokerError::Internal));
        workers.run(&agent("a"), WorkSize::Small, || ()).await.unwrap();
    }
}
