//! Several processes of one agent, and workers that die.
//!
//! `results`: N processes of one agent lend tasks to N processes of another. The table has the results that arrived at the
//! process that began each loan, and the median and the 99th percentile from the call to the result. With one process a
//! side it is the base of the ratio.
//!
//! `takeovers`: a worker is killed while it works on a lent task, and the lender gives the task to the next agent. The table
//! has the time from the kill to the next agent's takeover, beside `silence_timeout`.
//!
//! ```text
//! cargo bench --bench processes                              both
//! cargo bench --bench processes -- --rounds 5 takeovers      one, with 5 kills
//! BATON_BIN=/path/to/baton cargo bench --bench processes     another program
//! ```

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use baton::{
    envelope::{keys::PrivateKey, signing},
    ids::{AgentId, IdSource as _, KeyId, SystemIds},
    proto::v1::{self, MessageType},
    time::{Clock as _, Moment, SystemClock},
};
use baton_client::{
    About, Client, Delivered, HandOverError, Handler, Identity, Link, LinkOptions, NotTaken, Options, Trust,
};
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The loans that run at a time, over all lending processes, and how many follow one another in each place. Each number of
/// processes divides them.
const AT_A_TIME: usize = 24;
const ROUNDS: usize = 4;
/// The shortest `silence_timeout` that a request may have, in seconds.
const SILENCE: u64 = 5;
/// Where a killed worker finds its broker.
const WORKER_VARIABLE: &str = "BATON_BENCH_WORKER";

/// A development broker in a folder of its own. Dropping it ends the process.
struct Broker {
    child: Child,
    address: String,
    folder: tempfile::TempDir,
}

impl Broker {
    fn start() -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("processes-").tempdir()?;
        let program = std::env::var("BATON_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_baton").to_owned());
        let mut command = Command::new(program);
        command.args(["dev", "--port", "0", "--data", "data"]).current_dir(folder.path());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        let first = lines.next().ok_or("no line")??;
        let address = first.strip_prefix("baton is ready on ").and_then(|rest| rest.split(' ').next());
        let address = address.ok_or_else(|| format!("the broker does not start: {first}"))?.to_owned();
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { child, address, folder })
    }

    fn ca(&self) -> PathBuf {
        self.folder.path().join("data/tls/ca.pem")
    }

    async fn register(&self, name: &str) -> Result<(), Failure> {
        let client = Client::connect(&options(&self.address, self.ca())).await?;
        let keys = vec![identity(name)?.agent_key()];
        let card = Some(v1::AgentCard { agent_id: name.into(), keys, ..Default::default() });
        client.answer(client.agents().register_agent(v1::RegisterAgentRequest { card, ..Default::default() }).await)?;
        Ok(())
    }

    async fn process(&self, name: &str, handler: impl Handler) -> Result<Process, Failure> {
        Process::start(&self.address, self.ca(), name, handler).await
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn options(address: &str, ca: PathBuf) -> Options {
    Options { server: address.to_owned(), ca: Some(ca), ..Default::default() }
}

/// The identity of an agent, with a key that is derived from its name.
fn identity(name: &str) -> Result<Identity, Failure> {
    let key = PrivateKey::from_seed(&signing::sha256(&[name.as_bytes()]));
    Ok(Identity { agent: AgentId::parse(name)?, key_id: KeyId::parse("k1")?, key })
}

/// One process of an agent, as far as the broker can see: a link with a session of its own.
struct Process {
    link: Link,
    stop: CancellationToken,
}

impl Process {
    async fn start(address: &str, ca: PathBuf, name: &str, handler: impl Handler) -> Result<Self, Failure> {
        let options = LinkOptions {
            broker: options(address, ca),
            identity: identity(name)?,
            credit: 64,
            trust: Trust::Broker,
            handler_timeout: None,
            stop_grace: Duration::from_secs(1),
            resume: false,
        };
        let link = Link::connect(options, Arc::new(SystemClock), Arc::new(SystemIds)).await?;
        let stop = CancellationToken::new();
        tokio::spawn({
            let (link, stop) = (link.clone(), stop.clone());
            async move { link.serve(handler, stop).await }
        });
        Ok(Self { link, stop })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A lender: all mail that its calls do not wait for is news.
struct Lender;

impl Handler for Lender {
    async fn handle(&self, _: Link, _: Delivered) -> Result<(), NotTaken> {
        Ok(())
    }
}

/// A worker takes each task, and ends it at once or never.
struct Worker {
    ends_it: bool,
    took: Option<tokio::sync::mpsc::UnboundedSender<Moment>>,
}

impl Handler for Worker {
    async fn handle(&self, link: Link, delivered: Delivered) -> Result<(), NotTaken> {
        match delivered.kind() {
            MessageType::HandoffRequest => link.accept(&delivered, &v1::HandoffAccept::default()).await?,
            MessageType::TaskContextTransfer => {
                let task = link.complete(&delivered).await?;
                if let Some(took) = &self.took {
                    let _ = took.send(Moment::now());
                }
                if self.ends_it {
                    drop(task.finish(None).await?);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Lends a new task to the worker. Returns how long the call has taken.
async fn lend(link: &Link, to: &str, request: &v1::HandoffRequest) -> Result<Duration, HandOverError> {
    let began = Moment::now();
    let about = About::task(&format!("bench-{}", SystemIds.message_id(SystemClock.now())), 1);
    link.delegate(to, &about, request, Vec::new(), Some(Duration::from_secs(60))).await?;
    Ok(Moment::now().since(began))
}

fn request() -> v1::HandoffRequest {
    v1::HandoffRequest { task_type: "bench".into(), ..Default::default() }
}

/// The times of all loans whose result arrived, and the number of loans.
async fn results(count: usize) -> Result<(Vec<Duration>, usize), Failure> {
    let broker = Broker::start()?;
    broker.register("lender").await?;
    broker.register("worker").await?;
    let mut workers = Vec::new();
    for _ in 0..count {
        workers.push(broker.process("worker", Worker { ends_it: true, took: None }).await?);
    }
    let mut lenders = Vec::new();
    for _ in 0..count {
        lenders.push(broker.process("lender", Lender).await?);
    }
    let mut running = tokio::task::JoinSet::new();
    // The same load in each case: only the number of processes differs.
    let at_a_time = AT_A_TIME / count;
    for lender in &lenders {
        for _ in 0..at_a_time {
            let link = lender.link.clone();
            running.spawn(async move {
                let mut times = Vec::new();
                for _ in 0..ROUNDS {
                    match lend(&link, "worker", &request()).await {
                        Ok(time) => times.push(time),
                        Err(error) => eprintln!("a loan without its result: {error}"),
                    }
                }
                times
            });
        }
    }
    let asked = count * at_a_time * ROUNDS;
    let times = running.join_all().await.into_iter().flatten().collect();
    Ok((times, asked))
}

/// The time from the kill of a worker to the takeover by the next agent.
async fn takeover(broker: &Broker, lender: &Process, names: [&str; 2]) -> Result<Duration, Failure> {
    let [first, next] = names;
    broker.register(first).await?;
    broker.register(next).await?;
    let (took, mut takeovers) = tokio::sync::mpsc::unbounded_channel();
    let _next = broker.process(next, Worker { ends_it: true, took: Some(took) }).await?;
    let place = format!("{}\n{}\n{first}", broker.address, broker.ca().display());
    let mut child =
        Command::new(std::env::current_exe()?).env(WORKER_VARIABLE, place).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let mut line = move || lines.next().ok_or("the worker has ended");
    line()??; // it is there
    let silence = prost_types::Duration { seconds: i64::try_from(SILENCE)?, nanos: 0 };
    let request = v1::HandoffRequest { silence_timeout: Some(silence), ..request() };
    let about = About::task(&format!("bench-{}", SystemIds.message_id(SystemClock.now())), 1);
    let lending = tokio::spawn({
        let (link, about, first, next) = (lender.link.clone(), about, first.to_owned(), next.to_owned());
        async move {
            let limit = Some(Duration::from_secs(60));
            match link.delegate(&first, &about, &request, Vec::new(), limit).await {
                Err(HandOverError::Recalled { task_id, epoch, .. }) => {
                    let about = About::task(&task_id, epoch);
                    drop(link.delegate(&next, &about, &request, Vec::new(), limit).await);
                }
                other => eprintln!("the loan to the killed worker ended otherwise: {other:?}"),
            }
        }
    });
    tokio::task::spawn_blocking(move || line().map(drop)).await??; // it owns the task
    child.kill()?;
    let killed = Moment::now();
    child.wait()?;
    lending.await?;
    let took = takeovers.recv().await.ok_or("nobody took the task over")?;
    Ok(took.since(killed))
}

/// The worker that is killed: says that it is there, and that it owns the task; and never ends it.
async fn be_killed(place: &str) -> Result<(), Failure> {
    let [address, ca, name] = place.split('\n').collect::<Vec<_>>().try_into().map_err(|_| "not a place")?;
    let (took, mut takeovers) = tokio::sync::mpsc::unbounded_channel();
    let _process = Process::start(address, ca.into(), name, Worker { ends_it: false, took: Some(took) }).await?;
    println!("there");
    takeovers.recv().await.ok_or("no task came")?;
    println!("took it over");
    std::future::pending().await
}

/// The time below which this part of all times lies, in milliseconds.
fn percentile(times: &mut [Duration], part: usize) -> f64 {
    times.sort();
    let place = (times.len() * part).div_ceil(100).saturating_sub(1);
    times.get(place).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    if let Ok(place) = std::env::var(WORKER_VARIABLE) {
        return be_killed(&place).await;
    }
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (mut rounds, mut wanted) = (10, Vec::new());
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--rounds" => rounds = arguments.next().ok_or("--rounds needs a number")?.parse()?,
            "--test" => return Ok(()), // as `cargo test --benches` calls it
            "results" | "takeovers" => wanted.push(argument),
            _ => return Err(format!("{argument} is neither results nor takeovers").into()),
        }
    }
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|it| it == name);
    if runs("results") {
        println!("{:>9}  {:>9}  {:>10}  {:>10}  {:>6}", "processes", "results", "median ms", "p99 ms", "ratio");
        let mut base = None;
        for count in [1, 2, 3, 8] {
            let (mut times, asked) = results(count).await?;
            let (median, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
            let ratio = median / *base.get_or_insert(median);
            let came = format!("{} of {asked}", times.len());
            println!("{count:>9}  {came:>9}  {median:>10.1}  {p99:>10.1}  {ratio:>6.2}");
        }
    }
    if runs("takeovers") {
        let broker = Broker::start()?;
        broker.register("lender").await?;
        let lender = broker.process("lender", Lender).await?;
        let mut times = Vec::new();
        for round in 0..rounds {
            let names = [format!("killed-{round}"), format!("next-{round}")];
            times.push(takeover(&broker, &lender, [&names[0], &names[1]]).await?);
        }
        let (median, p99) = (percentile(&mut times, 50) / 1000.0, percentile(&mut times, 99) / 1000.0);
        println!(
            "{rounds} kills, silence_timeout {SILENCE} s: takeover after {median:.2} s (median), {p99:.2} s (p99)"
        );
    }
    Ok(())
}
