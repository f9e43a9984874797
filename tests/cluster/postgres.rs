//! The engine over PostgreSQL. `tests/cluster/postgres.sh` starts a server, and says in `BATON_POSTGRES` where it is; without
//! that these tests do nothing.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use baton_cluster::{
    conformance::{self, Fixture},
    engines::postgres::Postgres,
    log::{AppendError, Register, Settings, SharedLog, WriteError},
};
use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
};

/// The port of the server on 127.0.0.1.
fn port() -> Option<u16> {
    std::env::var("BATON_POSTGRES").ok().map(|port| port.parse().unwrap())
}

fn address(port: u16) -> String {
    format!("host=127.0.0.1 port={port} user=postgres dbname=postgres")
}

struct InDatabase(u16);

#[async_trait]
impl Fixture for InDatabase {
    async fn log(&self, name: &str) -> Arc<dyn SharedLog> {
        Arc::new(Postgres::open(&address(self.0), name).await.unwrap())
    }

    async fn register(&self, name: &str) -> Arc<dyn Register> {
        Arc::new(Postgres::open(&address(self.0), name).await.unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_conforms() {
    let Some(port) = port() else { return };
    conformance::check_log(&InDatabase(port)).await.unwrap();
    conformance::check_register(&InDatabase(port)).await.unwrap();
}

/// A proxy that forwards each request, and cuts every third connection before one of the answers.
async fn cutting_proxy(to: u16, cuts: Arc<AtomicUsize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        for count in 0_usize.. {
            let Ok((client, _)) = listener.accept().await else { return };
            let server = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
            let cuts = cuts.clone();
            tokio::spawn(async move {
                let (mut of_client, mut to_client) = client.into_split();
                let (mut of_server, mut to_server) = server.into_split();
                let forth = tokio::spawn(async move { copy(&mut of_client, &mut to_server).await });
                // The first answers are those of the start of a connection.
                let answers = 4 + count % 5;
                let mut buffer = vec![0; 64 * 1024];
                for _ in 0..answers {
                    match of_server.read(&mut buffer).await {
                        Ok(bytes) if bytes > 0 => to_client.write_all(&buffer[..bytes]).await.unwrap_or_default(),
                        _ => return,
                    }
                }
                // The server has done the request when its answer comes, and nobody is told.
                drop(of_server.read(&mut buffer).await);
                cuts.fetch_add(1, Ordering::SeqCst);
                forth.abort();
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_cut_off_is_unknown_and_settles() {
    let Some(port) = port() else { return };
    let cuts = Arc::new(AtomicUsize::new(0));
    let proxy = cutting_proxy(port, cuts.clone()).await;
    let direct = Postgres::open(&address(port), "cut").await.unwrap();
    // The proxy may cut the start off, too.
    let cut = loop {
        if let Ok(cut) = Postgres::open(&address(proxy), "cut").await {
            break cut;
        }
    };
    let (mut unknown, mut found_by_reading) = (0, 0);
    for after in 0..300 {
        let entry = Bytes::from(format!("entry {after}"));
        loop {
            match cut.append(after, entry.clone()).await {
                Ok(()) => break,
                Err(AppendError::Unknown(_)) => unknown += 1,
                Err(AppendError::Fenced) => {
                    let found = SharedLog::read(&direct, after + 1, 1).await.unwrap();
                    assert_eq!(found, [(after + 1, entry)], "the first try was in");
                    found_by_reading += 1;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(unknown > 30 && found_by_reading > 10, "{unknown} unknown, {found_by_reading} of them in");
    assert!(cuts.load(Ordering::SeqCst) > 30);
    let found = SharedLog::read(&direct, 1, usize::MAX).await.unwrap();
    let expected: Vec<(u64, Bytes)> =
        (0..300).map(|after| (after + 1, Bytes::from(format!("entry {after}")))).collect();
    assert_eq!(found, expected, "each entry is there once");
}

#[tokio::test(flavor = "multi_thread")]
async fn unsafe_settings_are_said_with_what_to_set() {
    let Some(port) = port() else { return };
    let safe = settings(port, "").await;
    assert_eq!(safe.unsafe_ones, Vec::<String>::new());
    assert!(safe.warnings.len() == 1 && safe.warnings[0].contains("no synchronous standby"), "{safe:?}");
    let found = settings(port, "-c synchronous_commit=off").await.unsafe_ones;
    check_problem(&found, "synchronous_commit = off", "set it to on");
    let found = settings(port, "-c default_transaction_read_only=on").await.unsafe_ones;
    check_problem(&found, "read-only", "set default_transaction_read_only to off");
}

// No table is made on a server with unsafe settings, so the logs of the other tests would miss theirs.
#[tokio::test]
#[ignore = "changes the settings of the other tests' server: tests/cluster/postgres.sh runs it alone"]
async fn unsafe_settings_of_the_server_are_said_with_what_to_set() {
    let Some(port) = port() else { return };
    for name in ["fsync", "full_page_writes"] {
        sql(port, &format!("ALTER SYSTEM SET {name} = off; SELECT pg_reload_conf()")).await;
        let found = loop {
            let found = settings(port, "").await.unsafe_ones;
            if !found.is_empty() {
                break found;
            }
            tokio::task::yield_now().await; // a reload takes its time
        };
        sql(port, &format!("ALTER SYSTEM RESET {name}; SELECT pg_reload_conf()")).await;
        check_problem(&found, &format!("{name} = off"), "set it to on");
        while !settings(port, "").await.unsafe_ones.is_empty() {
            tokio::task::yield_now().await;
        }
    }
}

/// What the engine says of the server's settings, with these options of the connection.
async fn settings(port: u16, options: &str) -> Settings {
    let address = format!("{} options='{options}'", address(port));
    Postgres::open(&address, "settings").await.unwrap().settings().await.unwrap()
}

#[track_caller]
fn check_problem(found: &[String], word: &str, remedy: &str) {
    assert!(found.len() == 1 && found[0].contains(word) && found[0].contains(remedy), "{found:?}");
}

async fn sql(port: u16, statements: &str) {
    let (client, connection) = tokio_postgres::connect(&address(port), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    for statement in statements.split("; ") {
        client.batch_execute(statement).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_is_unknown_and_not_fenced() {
    let Some(port) = port() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let free = listener.local_addr().unwrap().port();
    drop(listener);
    assert!(Postgres::open(&address(free), "gone").await.is_err());
    // Connected once, and cut off behind that.
    let proxy = cutting_proxy(port, Arc::default()).await;
    let Ok(log) = Postgres::open(&address(proxy), "gone").await else { return };
    let mut outcomes = Vec::new();
    for _ in 0..20 {
        outcomes.push(log.write("leader", None, Bytes::new()).await);
    }
    assert!(outcomes.iter().any(|outcome| matches!(outcome, Err(WriteError::Unknown(_)))), "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_without_its_head_takes_no_entry_and_says_what_is_missing() {
    let Some(port) = port() else { return };
    let log = Postgres::open(&address(port), "headless").await.unwrap();
    for after in 0..3 {
        assert_eq!(log.append(after, Bytes::from_static(b"an entry")).await, Ok(()));
    }
    assert_eq!(log.append(2, Bytes::from_static(b"another")).await, Err(AppendError::Fenced));
    sql(port, "DELETE FROM baton_log_head WHERE cluster = 'headless'").await;
    let next = Bytes::from_static(b"the next one");
    let words = "baton_log_head has no row for cluster \"headless\"";
    match log.append(3, next.clone()).await {
        Err(AppendError::Unknown(problem)) => {
            assert!(problem.contains(words) && problem.contains("restart one broker"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
    let problem = log.end().await.unwrap_err().0;
    assert!(problem.contains(words), "{problem}");
    // A start makes the head where the entries end, and the same append goes on.
    let started = Postgres::open(&address(port), "headless").await.unwrap();
    assert_eq!(started.end().await, Ok(3));
    assert_eq!(log.append(3, next).await, Ok(()));
    assert_eq!(SharedLog::read(&log, 1, usize::MAX).await.unwrap().len(), 4);
}

/// The number of connections with TLS that come from the register and the log of this name.
async fn with_tls(port: u16, application: &str) -> i64 {
    let (client, connection) = tokio_postgres::connect(&address(port), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let statement =
        "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND application_name = $1";
    client.query_one(statement, &[&application]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_has_tls_if_the_address_says_so() {
    let (Some(port), Ok(ca)) = (port(), std::env::var("BATON_POSTGRES_CA")) else { return };
    for (name, options) in [
        ("verified", format!("sslmode=verify-full&sslrootcert={ca}")),
        ("unverified", "sslmode=require".to_owned()),
        ("plain", "sslmode=disable".to_owned()),
        ("local", "connect_timeout=5".to_owned()),
    ] {
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?application_name={name}&{options}");
        let log = Postgres::open(&url, name).await.unwrap();
        assert_eq!(log.append(0, Bytes::from_static(b"an entry")).await, Ok(()), "{name}");
        assert_eq!(SharedLog::read(&log, 1, 1).await.unwrap().len(), 1, "{name}");
        let expected = if matches!(name, "verified" | "unverified") { 2 } else { 0 };
        assert_eq!(with_tls(port, name).await, expected, "{name}: a connection for appends, and one for reads");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_verified_gets_no_password() {
    let (Some(port), Ok(ca)) = (port(), std::env::var("BATON_POSTGRES_CA")) else { return };
    let open = async |url: String| Postgres::open(&url, "unverified").await.map(drop).unwrap_err().0;
    // Its certificate has the address and not this name.
    let problem =
        open(format!("postgres://postgres@localhost:{port}/postgres?sslmode=verify-full&sslrootcert={ca}")).await;
    assert!(problem.contains("certificate"), "{problem}");
    // No CA of the system has signed it.
    let problem = open(format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=verify-full")).await;
    assert!(problem.contains("certificate") || problem.contains("CA"), "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_gets_no_password() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        // The request for TLS, and the answer that there is none.
        stream.read_exact(&mut [0; 8]).await.unwrap();
        stream.write_all(b"N").await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        rest
    });
    let url = format!("postgres://postgres:secret@127.0.0.1:{port}/postgres?sslmode=require");
    let problem = Postgres::open(&url, "downgraded").await.map(drop).unwrap_err().0;
    assert!(problem.contains("TLS"), "{problem}");
    assert!(server.await.unwrap().is_empty(), "nothing follows");
}

/// P2 and P3 where they count. `BATON_POSTGRES_CRASH` ends the server as a power cut would, and starts it again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "ends the server of the other tests: tests/cluster/postgres.sh runs it alone"]
async fn what_is_acknowledged_outlives_a_crash_of_the_server() {
    let (port, crash) = (port().unwrap(), std::env::var("BATON_POSTGRES_CRASH").unwrap());
    let log = Arc::new(Postgres::open(&address(port), "crash").await.unwrap());
    let (writer, mut acknowledged) = (log.clone(), 0);
    let writing = tokio::spawn(async move {
        while let Ok(()) = writer.append(acknowledged, Bytes::from(format!("entry {acknowledged}"))).await {
            acknowledged += 1;
        }
        acknowledged
    });
    while log.end().await.unwrap() < 50 {
        tokio::task::yield_now().await;
    }
    assert!(Command::new(&crash).status().unwrap().success());
    let acknowledged = writing.await.unwrap();
    let found = loop {
        if let Ok(found) = SharedLog::read(&*log, 1, usize::MAX).await {
            break found;
        }
    };
    assert!(acknowledged >= 50 && found.len() as u64 >= acknowledged, "{} of {acknowledged}", found.len());
    // The entry in flight is in, or it can be appended: the log has one end.
    let (end, entry) = (log.end().await.unwrap(), Bytes::from_static(b"after the crash"));
    assert_eq!(end, found.len() as u64);
    assert_eq!(log.append(end, entry).await, Ok(()));
}
