//! Spans, as a collector gets them: the test is the collector.

use std::{
    collections::BTreeSet,
    process::Command,
    sync::{Arc, Mutex},
};

use baton::proto::v1::{self, MessageType};
use baton_client::{
    About, Delivered, Handler, Link, NotTaken, TraceContext, context_of, current_trace, in_trace, session::Agent,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use serde_json::json;
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::{
    broker::{Broker, PATIENCE, a_request, baton, eventually, exit_of, new_task, write},
    plans::Submitter,
};

/// A collector on a free port.
#[derive(Clone, Default)]
struct Collector {
    batches: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.batches.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    async fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let collector = Self::default();
        let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(collector.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        (collector, format!("http://{address}"))
    }

    fn spans(&self) -> Vec<Span> {
        let batches = self.batches.lock().unwrap();
        let resources = batches.iter().flat_map(|batch| &batch.resource_spans);
        resources.flat_map(|of| &of.scope_spans).flat_map(|of| of.spans.clone()).collect()
    }

    /// The spans of this name, once there are so many.
    async fn named(&self, name: &str, many: usize) -> Vec<Span> {
        let found = || self.spans().into_iter().filter(|span| span.name == name).collect::<Vec<_>>();
        eventually(name, async || found().len() >= many).await;
        found()
    }

    fn service(&self) -> String {
        let batches = self.batches.lock().unwrap();
        let resource = batches[0].resource_spans[0].resource.clone().unwrap();
        text(&resource.attributes, "service.name")
    }
}

fn text(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == name).and_then(|found| found.value.clone());
    match found.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{name} is {other:?}"),
    }
}

/// The span that the only link of a span leads to.
fn linked(span: &Span) -> Vec<u8> {
    assert_eq!(span.links.len(), 1, "{span:?}");
    assert_eq!(span.links[0].trace_id, span.trace_id);
    span.links[0].span_id.clone()
}

fn dev(folder: &tempfile::TempDir) -> Command {
    let mut command = baton();
    command.args(["dev", "--port", "0", "--data"]).arg(folder.path().join("data"));
    command.args(["--metrics-listen", "127.0.0.1:0"]).env("OTEL_BSP_SCHEDULE_DELAY", "50");
    command
}

fn start_in(folder: Arc<tempfile::TempDir>, endpoint: &str) -> Broker {
    let mut command = dev(&folder);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env("BATON_LOG", "baton=debug");
    Broker::spawn(command, folder)
}

fn start(endpoint: &str) -> Broker {
    start_in(Arc::new(tempfile::tempdir().unwrap()), endpoint)
}

fn context(span: u8, flags: u8) -> TraceContext {
    TraceContext { trace_id: [7; 16], span_id: [span; 8], flags, state: "rojo=1".to_owned() }
}

/// The sum of all series with this beginning on the page of metrics.
fn figure(broker: &Broker, series: &str) -> f64 {
    use std::io::{Read as _, Write as _};
    let log = broker.log();
    let line = log.lines().find(|line| line.contains("serving metrics")).unwrap();
    let address = line.split('"').find(|word| word.starts_with("127.0.0.1:")).unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let of_series = page.lines().filter(|line| line.starts_with(series));
    of_series.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Hands the task from alice to bob, who are on sessions. Returns the id of the handoff.
async fn hand_over(broker: &Broker, task: &str) -> String {
    let (alice, bob) = (broker.agent("alice").await, broker.agent("bob").await);
    let receipt = alice.request("bob", task, 1, &a_request()).await.unwrap();
    bob.accept(&bob.take().await.unwrap()).await.unwrap();
    let accept = alice.take().await.unwrap();
    alice.send_context(&accept, &context_of([("current_status", "[1]".to_owned())])).await.unwrap();
    bob.complete(&bob.take().await.unwrap()).await.unwrap();
    alice.take().await.unwrap();
    receipt.handoff_id
}

#[tokio::test]
async fn a_handoff_is_one_span_with_an_event_for_each_step() {
    let (collector, endpoint) = Collector::start().await;
    let broker = start(&endpoint);
    let task = new_task();
    let id = in_trace(context(1, 1), hand_over(&broker, &task)).await;
    let span = collector.named("handoff", 1).await.remove(0);
    assert_eq!((span.trace_id.as_slice(), span.parent_span_id.as_slice()), (&[7; 16][..], &[1; 8][..]));
    assert_eq!(span.trace_state, "rojo=1");
    let events: Vec<&str> = span.events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(
        events,
        ["REQUESTED", "DELIVERED", "ACCEPTED", "CONTEXT_STORED", "DELIVERED", "COMPLETED", "OWNERSHIP_MOVED"]
    );
    let of = |name| text(&span.attributes, name);
    assert_eq!((of("baton.task.id"), of("baton.handoff.id")), (task, id));
    assert_eq!((of("baton.sender.id"), of("baton.receiver.id")), ("alice".to_owned(), "bob".to_owned()));
    assert_eq!((of("baton.outcome"), of("messaging.system")), ("COMPLETED".to_owned(), "baton".to_owned()));
    assert_eq!(collector.service(), "baton");
    eventually("the span is counted", async || figure(&broker, "baton_spans_total{result=\"SENT\"}") >= 1.0).await;
    broker.stop().await;
}

#[tokio::test]
async fn the_span_of_a_handoff_survives_a_kill_with_its_id_and_its_start() {
    let (collector, endpoint) = Collector::start().await;
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let broker = start_in(folder.clone(), &endpoint);
    let (alice, bob) = (broker.agent("alice").await, broker.agent("bob").await);
    let receipt = alice.request("bob", &new_task(), 1, &a_request()).await.unwrap();
    let offered = bob.take().await.unwrap();
    let of_offer = offered.trace_context().expect("the handoff's span");
    bob.accept(&offered).await.unwrap();
    broker.kill();
    let broker = start_in(folder, &endpoint);
    let (alice, bob) = (broker.agent_session("alice").await, broker.agent_session("bob").await);
    let accept = alice.take().await.unwrap();
    assert_eq!(accept.trace_context(), Some(of_offer.clone()), "the accept has no context of its own");
    alice.send_context(&accept, &context_of([("current_status", "[1]".to_owned())])).await.unwrap();
    bob.complete(&bob.take().await.unwrap()).await.unwrap();
    let span = collector.named("handoff", 1).await.remove(0);
    let digest = baton::envelope::signing::sha256(&[format!("handoff {}", receipt.handoff_id).as_bytes()]);
    assert_eq!(span.span_id, digest[..8], "derived from the handoff alone");
    assert_eq!((span.span_id.as_slice(), span.trace_id.as_slice()), (&of_offer.span_id[..], &of_offer.trace_id[..]));
    assert_eq!(span.start_time_unix_nano, span.events[0].time_unix_nano, "it began before the kill");
    let accepted = receipt.accept_time.unwrap();
    let nanoseconds = accepted.seconds as u64 * 1_000_000_000 + accepted.nanos as u64;
    assert_eq!(span.start_time_unix_nano, nanoseconds);
    assert_eq!(collector.named("handoff", 1).await.len(), 1, "and it is sent once");
}

/// An agent that accepts each handoff, and hands its task on to the next agent.
struct Relay {
    next: Option<&'static str>,
    done: mpsc::UnboundedSender<()>,
}

impl Handler for Relay {
    async fn handle(&self, link: Link, delivered: Delivered) -> Result<(), NotTaken> {
        match delivered.kind() {
            MessageType::HandoffRequest => link.accept(&delivered, &v1::HandoffAccept::default()).await?,
            MessageType::TaskContextTransfer => {
                let task = link.complete(&delivered).await?;
                let sections = delivered.payload::<v1::TaskContextTransfer>().sections;
                match self.next {
                    Some(next) => {
                        // The answers come once the context is acked, which ends this handler.
                        let handing_on =
                            async move { drop(task.hand_over(next, &a_request(), sections).await.unwrap()) };
                        tokio::spawn(in_trace(current_trace().expect("the delivery has one"), handing_on));
                    }
                    None => {
                        task.finish(None).await?;
                        self.done.send(()).unwrap();
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_chain_of_handoffs_is_one_trace_with_one_root_and_no_orphan() {
    let (collector, endpoint) = Collector::start().await;
    let broker = start(&endpoint);
    let (done, mut ended) = mpsc::unbounded_channel();
    let mut links = Vec::new();
    for (name, next) in [("alice", None), ("bob", Some("carol")), ("carol", None)] {
        broker.agent(name).await;
        let (link, relay) = (broker.link(name).await, Relay { next, done: done.clone() });
        let serving = link.clone();
        tokio::spawn(async move { serving.serve(relay, CancellationToken::new()).await });
        links.push(link);
    }
    let sections = context_of([("current_status", "[1]".to_owned())]).sections;
    links[0].hand_over("bob", &About::task(&new_task(), 1), &a_request(), sections).await.unwrap();
    tokio::time::timeout(PATIENCE, ended.recv()).await.unwrap().unwrap();
    let spans = collector.named("handoff", 2).await;
    let traces: BTreeSet<&[u8]> = spans.iter().map(|span| span.trace_id.as_slice()).collect();
    assert_eq!((spans.len(), traces.len()), (2, 1));
    let (roots, children): (Vec<&Span>, Vec<&Span>) = spans.iter().partition(|span| span.parent_span_id.is_empty());
    assert_eq!((roots.len(), children.len()), (1, 1));
    assert_eq!(children[0].parent_span_id, roots[0].span_id);
    assert_eq!(text(&roots[0].attributes, "baton.receiver.id"), "bob");
}

#[tokio::test]
async fn another_candidate_and_another_attempt_are_linked_spans() {
    let (collector, endpoint) = Collector::start().await;
    let broker = start(&endpoint);
    let (alice, bob) = (broker.agent("alice").await, broker.agent("bob").await);
    let carol = broker.agent("carol").await;
    let request = v1::HandoffRequest { fallback_candidates: vec!["carol".to_owned()], ..a_request() };
    alice.request("bob", &new_task(), 1, &request).await.unwrap();
    let offered = bob.next().await.unwrap();
    let failure = v1::Nack { cause: v1::NackCause::Shutdown.into(), ..Default::default() };
    bob.session.nack(&offered.delivery.delivery_id, failure).await.unwrap();
    let offered = bob.take().await.unwrap();
    assert_eq!(offered.delivery.attempt, 2);
    let reason = v1::RejectReason::NoSkill.into();
    bob.reject(&offered, &v1::HandoffReject { reason, ..Default::default() }).await.unwrap();
    carol.reject(&carol.take().await.unwrap(), &v1::HandoffReject { reason, ..Default::default() }).await.unwrap();
    let handoff = collector.named("handoff", 1).await.remove(0);
    assert_eq!(text(&handoff.attributes, "baton.reason"), "NO_CANDIDATE");
    let offers = collector.named("offer", 2).await;
    assert!(offers.iter().all(|offer| offer.parent_span_id == handoff.span_id));
    assert_eq!(linked(&offers[1]), offers[0].span_id);
    assert_eq!(text(&offers[1].attributes, "baton.receiver.id"), "carol");
    let attempts = collector.named("delivery", 2).await;
    assert!(attempts.iter().all(|attempt| attempt.parent_span_id == handoff.span_id));
    assert_eq!(linked(&attempts[1]), attempts[0].span_id);
    let outcomes: Vec<String> = attempts.iter().map(|attempt| text(&attempt.attributes, "baton.outcome")).collect();
    assert_eq!(outcomes, ["SHUTDOWN", "ACKED"]);
}

/// Why the only link of a span is there.
fn reason_of_link(span: &Span) -> String {
    text(&span.links[0].attributes, "baton.link")
}

async fn turn_down(agent: &Agent) {
    let reject = v1::HandoffReject { reason: v1::RejectReason::NoSkill.into(), ..Default::default() };
    agent.reject(&agent.take().await.unwrap(), &reject).await.unwrap();
}

#[tokio::test]
async fn a_redriven_handoff_is_linked_to_the_one_that_failed() {
    let (collector, endpoint) = Collector::start().await;
    let broker = start(&endpoint);
    let (alice, bob) = (broker.agent("alice").await, broker.agent("bob").await);
    alice.request("bob", &new_task(), 1, &a_request()).await.unwrap();
    let poison = v1::Nack { cause: v1::NackCause::Poison.into(), ..Default::default() };
    bob.session.nack(&bob.next().await.unwrap().delivery.delivery_id, poison).await.unwrap();
    assert_eq!(bob.take().await.unwrap().kind(), MessageType::ErrorNotification);
    let letter = broker.lines(&["dlq", "list"]).remove(0)["deadLetterId"].as_str().unwrap().to_owned();
    broker.lines(&["dlq", "redrive", &letter]);
    turn_down(&bob).await;
    let handoffs = collector.named("handoff", 2).await;
    assert!(handoffs[0].links.is_empty(), "{:?}", handoffs[0]);
    assert_eq!(
        (linked(&handoffs[1]), reason_of_link(&handoffs[1])),
        (handoffs[0].span_id.clone(), "redrive".to_owned())
    );
}

#[tokio::test]
async fn a_recall_is_linked_to_the_handoff_that_lent_the_task() {
    let (collector, endpoint) = Collector::start().await;
    let broker = start(&endpoint);
    let (alice, bob) = (broker.agent("alice").await, broker.agent("bob").await);
    let (task, lend) = (new_task(), v1::HandoffRequest { mode: v1::HandoffMode::Delegate.into(), ..a_request() });
    let handoff = alice.request("bob", &task, 1, &lend).await.unwrap().handoff_id;
    bob.accept(&bob.take().await.unwrap()).await.unwrap();
    let accept = alice.take().await.unwrap();
    alice.send_context(&accept, &context_of([("goals", "[]".to_owned())])).await.unwrap();
    bob.complete(&bob.take().await.unwrap()).await.unwrap();
    let recall = v1::TaskRecall { reason_text: "too slow".to_owned() };
    alice.send("", MessageType::TaskRecall, &About::handoff(&task, 2, &handoff), &recall).await.unwrap();
    let handoff = collector.named("handoff", 1).await.remove(0);
    let recalled = collector.named("recall", 1).await.remove(0);
    assert_eq!((linked(&recalled), reason_of_link(&recalled)), (handoff.span_id, "recall".to_owned()));
    assert_eq!(text(&recalled.attributes, "baton.receiver.id"), "alice");
}

#[tokio::test]
async fn an_award_is_linked_to_its_negotiation() {
    let (collector, endpoint) = Collector::start().await;
    let broker = start(&endpoint);
    let (alice, bob) = (broker.agent("alice").await, broker.agent_with("bob", "analyst", 16).await);
    let ask = v1::TaskRequest { task_type: "report".to_owned(), ..Default::default() };
    let asked = alice.send("all:analyst", MessageType::TaskRequest, &About::default(), &ask).await.unwrap();
    bob.take().await.unwrap();
    let about = About { correlation_id: asked.message_id, ..About::default() };
    let offer = v1::TaskOffer { confidence: 0.5, ..Default::default() };
    let offer = bob.send("alice", MessageType::TaskOffer, &about, &offer).await.unwrap();
    let accept = v1::TaskAccept { offer_id: offer.message_id, handoff: Some(a_request()), ..Default::default() };
    let about = About { task_id: new_task(), epoch: 1, ..about };
    alice.send("bob", MessageType::TaskAccept, &about, &accept).await.unwrap();
    turn_down(&bob).await;
    let negotiation = collector.named("negotiation", 1).await.remove(0);
    let handoff = collector.named("handoff", 1).await.remove(0);
    assert_eq!((linked(&handoff), reason_of_link(&handoff)), (negotiation.span_id, "award".to_owned()));
}

#[tokio::test]
async fn a_subtask_is_linked_to_its_plan() {
    let (collector, endpoint) = Collector::start().await;
    let broker = start(&endpoint);
    let plan = json!({"subtasks": [{"id": "only", "description": "the work", "agent_id": "bob", "attempts_max": 1}]});
    let bob = broker.agent("bob").await;
    Submitter::new(&broker, "short", &plan).submit(&broker);
    turn_down(&bob).await;
    let plan = collector.named("plan", 1).await.remove(0);
    assert_eq!(text(&plan.attributes, "baton.outcome"), "FAILED");
    let handoff = collector.named("handoff", 1).await.remove(0);
    assert_eq!((linked(&handoff), reason_of_link(&handoff)), (plan.span_id, "subtask".to_owned()));
}

#[tokio::test]
async fn the_sender_decides_whether_its_trace_is_recorded_and_the_ratio_decides_for_all_others() {
    let (collector, endpoint) = Collector::start().await;
    let traces = format!("[traces]\nendpoint = {endpoint:?}\nsampling_ratio = 0.0\n");
    let broker = Broker::serve("enrollment = \"open\"", &traces);
    let not_recorded = new_task();
    hand_over(&broker, &not_recorded).await;
    in_trace(context(2, 0), hand_over(&broker, &new_task())).await;
    let recorded = new_task();
    in_trace(context(1, 1), hand_over(&broker, &recorded)).await;
    let span = collector.named("handoff", 1).await.remove(0);
    assert_eq!(text(&span.attributes, "baton.task.id"), recorded);
    broker.stop().await; // sends what waits
    assert_eq!(collector.spans().iter().filter(|span| span.name == "handoff").count(), 1);
}

#[tokio::test]
async fn a_collector_that_is_down_costs_spans_and_nothing_else() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let mut command = dev(&folder);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env("OTEL_EXPORTER_OTLP_TIMEOUT", "200");
    let broker = Broker::spawn(command, folder);
    hand_over(&broker, &new_task()).await;
    eventually("it is counted", async || figure(&broker, "baton_spans_total{result=\"FAILED\"}") >= 1.0).await;
    hand_over(&broker, &new_task()).await;
    assert!(broker.log().contains("failed to send spans to the collector"), "{}", broker.log());
    broker.stop().await;
}

#[tokio::test]
async fn a_collector_that_never_answers_costs_spans_and_nothing_else() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let mut command = dev(&folder);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env("OTEL_BSP_MAX_QUEUE_SIZE", "1");
    let broker = Broker::spawn(command, folder);
    for _ in 0..3 {
        hand_over(&broker, &new_task()).await;
    }
    eventually("it is counted", async || figure(&broker, "baton_spans_total{result=\"DROPPED\"}") >= 1.0).await;
    broker.stop().await;
}

#[test]
fn the_environment_turns_spans_off_and_a_wrong_address_is_refused() {
    for (name, value) in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let mut command = dev(&folder);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1").env(name, value);
        let broker = Broker::spawn(command, folder);
        assert!(!broker.log().contains("sending spans"), "{}", broker.log());
    }
    let folder = tempfile::tempdir().unwrap();
    for wrong in ["127.0.0.1:4317", "http://user:word@127.0.0.1:4317", "ftp://127.0.0.1:4317"] {
        let (code, said) = exit_of(dev(&folder).env("OTEL_EXPORTER_OTLP_ENDPOINT", wrong));
        assert!(code == Some(3) && said.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{code:?} {said}");
    }
    let config = folder.path().join("baton.toml");
    let text = "[tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n[traces]\nsampling_ratio = 1.5\n";
    write(&config, text);
    let (code, said) = exit_of(baton().args(["serve", "--config"]).arg(&config));
    assert!(code == Some(3) && said.contains("traces.sampling_ratio"), "{code:?} {said}");
}

/// Words of an agent are in no log line, no span and no figure; each line of the log is JSON, and those of a handoff name
/// its trace.
#[tokio::test]
async fn no_word_of_an_agent_is_in_logs_spans_or_figures() {
    let (collector, endpoint) = Collector::start().await;
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let mut command = dev(&folder);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env("OTEL_SERVICE_NAME", "baton-test");
    command.env("BATON_LOG", "baton=trace");
    let broker = Broker::spawn(command, folder);
    let (alice, bob) = (broker.agent("alice").await, broker.agent("bob").await);
    let token = broker.client().await.prove(&crate::broker::identity("alice")).await.unwrap();
    let planted = "planted-word";
    let word = |place: &str| format!("{planted}-{place}");
    let request =
        v1::HandoffRequest { initial_context_summary: word("summary"), reason_text: word("reason"), ..a_request() };
    alice.request("bob", &new_task(), 1, &request).await.unwrap();
    bob.accept(&bob.take().await.unwrap()).await.unwrap();
    let accept = alice.take().await.unwrap();
    let payload = format!("[\"{}\"]", word("payload"));
    alice.send_context(&accept, &context_of([("current_status", payload)])).await.unwrap();
    let sent = bob.take().await.unwrap();
    let failure = v1::HandoffComplete {
        outcome: v1::HandoffOutcome::Failure.into(),
        details: word("failure"),
        ..Default::default()
    };
    bob.send("alice", MessageType::HandoffComplete, &sent.about(), &failure).await.unwrap();
    let nack = v1::Nack { cause: v1::NackCause::Poison.into(), reason_text: word("nack"), ..Default::default() };
    let told = alice.next().await.unwrap();
    alice.session.nack(&told.delivery.delivery_id, nack).await.unwrap();
    let span = collector.named("handoff", 1).await.remove(0);
    assert_eq!(text(&span.attributes, "baton.outcome"), "FAILED");
    let log = broker.log();
    let ended = log.lines().find(|line| line.contains("a handoff has ended")).expect("it is logged");
    let ended: serde_json::Value = serde_json::from_str(ended).unwrap();
    assert_eq!(ended["fields"]["trace_id"], hex::encode(&span.trace_id).as_str(), "{ended}");
    let accepted = log.lines().find(|line| line.contains("accepted an envelope")).expect("it is logged");
    assert!(accepted.contains(&hex::encode(&span.trace_id)), "{accepted}");
    assert!(log.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "one event a line");
    assert_eq!(collector.service(), "baton-test");
    let spans = format!("{:?}", collector.batches.lock().unwrap());
    for secret in [planted, &token, &broker.operator_token(), "PRIVATE KEY"] {
        assert!(!log.contains(secret), "{secret} is in the log");
        assert!(!spans.contains(secret), "{secret} is in a span");
    }
    assert_eq!(figure(&broker, "baton_handoffs_total{outcome=\"FAILED\""), 1.0);
}
