//! The memory and the disk that open work takes, with an engine over a store on disk, without a network.
//!
//!     cargo bench --profile dev -p baton-broker-core --bench footprint -- plans 300
//!     cargo bench --profile dev -p baton-broker-core --bench footprint -- requests 100
//!     cargo bench --profile dev -p baton-broker-core --bench footprint -- runs 400
//!
//! `plans` submits plans of 256 subtasks and 160 KB each, `requests` asks 990 agents for offers each time, `runs` starts runs
//! of a graph of 515 KB. Each prints the resident memory that the work has added, and the bytes on disk.

use std::{path::PathBuf, process::Command as Process, sync::Arc};

use baton_broker_core::{
    BrokerIdentity, Reply, Resources, Settings, Signer,
    access::{Caller, Operator},
    directory::Entry,
    domain::{
        EntityId, Input,
        routing::{self, Graph, Node, RunId, Start},
    },
    engine::{Command, Engine, Revision},
    envelope::{self, UnverifiedEnvelope, keys::PrivateKey, signing},
    ids::{AgentId, AgentType, GraphId, IdSource as _, KeyId, NodeId, SystemIds},
    proto::v1::{self, MessageType},
    records::AgentRecord,
    send_outputs,
    store::EmbeddedStore,
    time::Timestamp,
};
use prost::{Message, Name};

struct Load {
    engine: Engine,
    now: Timestamp,
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    status.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number of pages") * 4096
}

fn disk_bytes(folder: &std::path::Path) -> u64 {
    let listed = Process::new("du").arg("-sb").arg(folder).output().expect("du runs");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    text.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).expect("du says a number")
}

impl Load {
    fn open(folder: &std::path::Path) -> Self {
        let mut settings = Settings { unsigned_allowed: true, ..Settings::default() };
        settings.limits.running_plans_max = 0;
        settings.limits.open_negotiations_max = 0;
        let now = Timestamp::from_parts(1_700_000_000, 0).expect("a time");
        let store = Arc::new(EmbeddedStore::open(folder).expect("the store opens"));
        let identity = BrokerIdentity {
            key_id: KeyId::parse("broker-1").expect("a name"),
            key: PrivateKey::from_seed(&[9; 32]),
            coordinator: Signer::new(PrivateKey::from_seed(&[77; 32])),
        };
        let engine = Engine::open(store, identity, Arc::new(settings), Resources::default(), Arc::new(SystemIds), now);
        Self { engine: engine.expect("the store is empty"), now }
    }

    fn finish(&mut self) {
        self.engine.tick(self.now);
        self.engine.finish(self.now);
        send_outputs(&mut self.engine);
    }

    fn settle(&mut self) {
        self.finish();
        while self.engine.next_deadline().is_some_and(|due| due <= self.now) {
            self.finish();
        }
    }

    fn register(&mut self, agent: &str, agent_type: &str) {
        let key = PrivateKey::from_seed(&signing::sha256(&[agent.as_bytes()]));
        let public_key = key.public().as_bytes().to_vec().into();
        let keys = vec![v1::AgentKey { key_id: "k1".into(), public_key, ..Default::default() }];
        let agent_types = vec![agent_type.to_owned()];
        let card = v1::AgentCard { agent_id: agent.to_owned(), agent_types, keys, ..Default::default() };
        let entry = Box::new(Entry::parse(AgentRecord::new(card, self.now)).expect("the card is good"));
        let (reply, _) = Reply::once();
        let caller = operator();
        self.engine.handle(Command::Register { entry, caller, invitation: String::new(), reply }, self.now);
    }

    fn send<M: Message + Name>(&mut self, to: &str, kind: MessageType, payload: &M) {
        let envelope = v1::Envelope {
            message_id: SystemIds.message_id(self.now).to_string(),
            sender_id: "alice".to_owned(),
            receiver_id: to.to_owned(),
            timestamp: Some(self.now.into()),
            message_type: kind.into(),
            payload: Some(envelope::payload_of(payload)),
            ..Default::default()
        };
        let parsed = UnverifiedEnvelope::parse(envelope.encode_to_vec().into()).expect("it is a message");
        let verified = parsed.verify(&**self.engine.directory(), self.now, true).expect("it needs no signature");
        let prepared = self.engine.prepare(Box::new(verified), true).expect("the store can be read");
        let message = prepared.ready().expect("the last attempt");
        let (reply, mut receipt) = Reply::once();
        let submit = Command::Submit { message, is_from_sender: true, reply };
        self.engine.handle(submit, self.now);
        self.settle();
        if let Err(refusal) = receipt.try_recv().expect("it is answered") {
            panic!("{refusal}");
        }
    }

    fn apply(&mut self, about: EntityId, input: routing::Input) {
        let (reply, mut outcome) = Reply::once();
        let (input, caller) =
            (Box::new(Input::Routing(input)), Caller::Agent(AgentId::parse("alice").expect("a name")));
        self.engine.handle(Command::Apply { about, input, caller, reply }, self.now);
        self.settle();
        if let Err(refusal) = outcome.try_recv().expect("it is answered") {
            panic!("{refusal}");
        }
    }
}

fn operator() -> Caller {
    Caller::Operator(Operator::named("footprint"))
}

fn plan(number: usize) -> v1::Plan {
    let subtask = |place: usize| v1::Subtask {
        id: format!("s{place}"),
        description: "x".repeat(600),
        agent_type: "worker".to_owned(),
        ..Default::default()
    };
    v1::Plan { plan_id: format!("p{number}"), subtasks: (0..256).map(subtask).collect(), ..Default::default() }
}

fn graph() -> Graph {
    let node = |number: usize| Node {
        id: NodeId::parse(&format!("n{number}")).expect("a name"),
        description: "x".repeat(4000),
        agent: None,
        agent_type: Some(AgentType::parse("worker").expect("a name")),
        handoffs: None,
        outputs: vec![NodeId::parse("end").expect("a name")],
    };
    Graph {
        id: GraphId::parse("g").expect("a name"),
        description: String::new(),
        nodes: (0..128).map(node).collect(),
        entries: (0..4).map(|number| NodeId::parse(&format!("n{number}")).expect("a name")).collect(),
        steps_max: 10,
        revision: 0,
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let kind = words.first().map_or("plans", String::as_str);
    let many: usize = words.get(1).map_or(100, |word| word.parse().expect("a number"));
    let folder: PathBuf = std::env::temp_dir().join(format!("baton-footprint-{}", std::process::id()));
    let mut load = Load::open(&folder.join("store"));
    load.register("alice", "asker");
    let workers = if kind == "requests" { 990 } else { 1 };
    (0..workers).for_each(|number| load.register(&format!("worker-{number}"), "worker"));
    let revision = Box::new(Revision::Graph(graph()));
    let register =
        Command::RegisterRevision { revision, caller: operator(), etag: String::new(), reply: Reply::once().0 };
    load.engine.handle(register, load.now);
    load.settle();
    let (memory, disk) = (resident_bytes(), disk_bytes(&folder));
    for number in 0..many {
        match kind {
            "plans" => load.send(
                "",
                MessageType::PlanSubmission,
                &v1::PlanSubmission { plan: Some(plan(number)), ..Default::default() },
            ),
            "requests" => load.send("all:worker", MessageType::TaskRequest, &v1::TaskRequest::default()),
            "runs" => {
                let by = Some(AgentId::parse("alice").expect("a name"));
                let whole = std::time::Duration::from_secs(3600);
                let start = Start { graph: graph().id, by, task: None, whole };
                load.apply(EntityId::Run(RunId(SystemIds.message_id(load.now))), routing::Input::Start(start));
            }
            other => panic!("{other} is not known"),
        }
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{many} {kind}: {:.1} MiB of memory more, {:.1} MiB on disk",
        mib(resident_bytes().saturating_sub(memory)),
        mib(disk_bytes(&folder).saturating_sub(disk))
    );
    drop(load);
    std::fs::remove_dir_all(&folder).expect("the folder is there");
}
