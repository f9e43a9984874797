//! The engines of a shared log: one conformance suite for all, and what each promises for itself.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use baton_cluster::{
    conformance::{self, Fixture},
    engines::{directory::Directory, memory::Memory},
    log::{AppendError, ReadError, Register, SharedLog},
};
use bytes::Bytes;

/// Each name is a log in memory.
#[derive(Default)]
struct InMemory(std::sync::Mutex<std::collections::BTreeMap<String, Memory>>);

impl InMemory {
    fn named(&self, name: &str) -> Arc<Memory> {
        Arc::new(self.0.lock().unwrap().entry(name.into()).or_default().clone())
    }
}

#[async_trait]
impl Fixture for InMemory {
    async fn log(&self, name: &str) -> Arc<dyn SharedLog> {
        self.named(name)
    }

    async fn register(&self, name: &str) -> Arc<dyn Register> {
        self.named(name)
    }
}

/// Each name is a folder in this one.
struct InFolder(PathBuf);

#[async_trait]
impl Fixture for InFolder {
    async fn log(&self, name: &str) -> Arc<dyn SharedLog> {
        Arc::new(Directory::open(&self.0.join(name)).unwrap())
    }

    async fn register(&self, name: &str) -> Arc<dyn Register> {
        Arc::new(Directory::open(&self.0.join(name)).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_conforms() {
    let fixture = InMemory::default();
    conformance::check_log(&fixture).await.unwrap();
    conformance::check_register(&fixture).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = InFolder(folder.path().into());
    conformance::check_log(&fixture).await.unwrap();
    conformance::check_register(&fixture).await.unwrap();
}

/// An engine that acknowledges an append behind the wrong entry is found: the suite can see.
#[tokio::test(flavor = "multi_thread")]
async fn the_suite_finds_a_log_without_a_compare() {
    struct Careless(InMemory);
    struct CarelessLog(Arc<Memory>);

    #[async_trait]
    impl SharedLog for CarelessLog {
        async fn append(&self, _: u64, entry: Bytes) -> Result<(), AppendError> {
            self.0.append_now(self.0.end_now(), entry)
        }
        async fn end(&self) -> Result<u64, baton_cluster::log::Unavailable> {
            self.0.end().await
        }
        async fn read(&self, from: u64, bytes: usize) -> Result<Vec<(u64, Bytes)>, ReadError> {
            SharedLog::read(&*self.0, from, bytes).await
        }
        async fn trim(&self, before: u64) -> Result<(), baton_cluster::log::Unavailable> {
            self.0.trim(before).await
        }
        async fn size_bytes(&self) -> Result<u64, baton_cluster::log::Unavailable> {
            self.0.size_bytes().await
        }
        fn entry_bytes_max(&self) -> usize {
            self.0.entry_bytes_max()
        }
        async fn settings(&self) -> Result<baton_cluster::log::Settings, baton_cluster::log::Unavailable> {
            self.0.settings().await
        }
    }

    #[async_trait]
    impl Fixture for Careless {
        async fn log(&self, name: &str) -> Arc<dyn SharedLog> {
            Arc::new(CarelessLog(self.0.named(name)))
        }
        async fn register(&self, name: &str) -> Arc<dyn Register> {
            self.0.register(name).await
        }
    }

    let fixture = Careless(InMemory::default());
    assert!(conformance::interface(&fixture).await.is_err());
    assert!(conformance::p2_acknowledged_stays(&fixture).await.is_err());
    assert!(conformance::p4_late_appends_are_fenced(&fixture).await.is_err());
}

fn names(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_in_a_folder_is_private_and_leaves_no_draft() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let log = Directory::open(folder.path()).unwrap();
    log.append(0, Bytes::from_static(b"one")).await.unwrap();
    log.append(0, Bytes::from_static(b"fenced")).await.unwrap_err();
    let file = folder.path().join("log/00000000000000000001");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(names(&folder.path().join("drafts")), Vec::<String>::new());
}

/// A writer that stopped between its look and its link: the name was used and trimmed meanwhile, and is free again.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_in_front_of_the_beginning_is_no_entry() {
    let folder = tempfile::tempdir().unwrap();
    let log = Directory::open(folder.path()).unwrap();
    for after in 0..6 {
        log.append(after, Bytes::from(format!("entry {after}"))).await.unwrap();
    }
    log.trim(5).await.unwrap();
    std::fs::write(folder.path().join("log/00000000000000000002"), "late").unwrap();
    assert_eq!(SharedLog::read(&log, 2, 1).await, Err(ReadError::Trimmed { first: 5 }));
    let late = log.append(2, Bytes::from_static(b"later")).await;
    assert!(matches!(late, Err(AppendError::Unknown(_))), "a name in front of the beginning: {late:?}");
    assert_eq!(SharedLog::read(&log, 3, 1).await, Err(ReadError::Trimmed { first: 5 }));
    assert_eq!(log.end().await, Ok(6));
    log.trim(6).await.unwrap();
    assert_eq!(names(&folder.path().join("log")), ["00000000000000000006", "begin.00000000000000000006"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_gone_is_unknown_and_not_fenced() {
    let folder = tempfile::tempdir().unwrap();
    let log = Directory::open(folder.path()).unwrap();
    std::fs::remove_dir_all(folder.path().join("drafts")).unwrap();
    let outcome = log.append(0, Bytes::from_static(b"one")).await;
    assert!(matches!(outcome, Err(AppendError::Unknown(_))), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_leads_out_of_the_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let register = Directory::open(folder.path()).unwrap();
    for name in ["", "../log/1", "/etc/passwd", "member/", "a//b", "member/.", "ä"] {
        assert!(register.write(name, None, Bytes::new()).await.is_err(), "{name}");
        assert!(Register::read(&register, name).await.is_err(), "{name}");
    }
}
