//! What a service manager hears from a broker: a socket of this test stands in for systemd.

use std::{
    os::unix::net::UnixDatagram,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
};

use crate::broker::{Broker, PATIENCE, baton};

/// A socket for notifications, and the notifications as they come.
fn socket(folder: &std::path::Path) -> (std::path::PathBuf, Receiver<String>) {
    let path = folder.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let (heard, receiver) = channel();
    // Ends with the test: the socket is not closed by the sender's end.
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length) = socket.recv(&mut bytes) {
            if heard.send(String::from_utf8_lossy(&bytes[..length]).into_owned()).is_err() {
                return;
            }
        }
    });
    (path, receiver)
}

fn start(folder: &Arc<tempfile::TempDir>, watchdog: Option<&str>) -> (Broker, Receiver<String>) {
    let (path, heard) = socket(folder.path());
    let mut command = baton();
    command.env("NOTIFY_SOCKET", path).args(["dev", "--port", "0", "--data"]).arg(folder.path().join("data"));
    if let Some(microseconds) = watchdog {
        command.env("WATCHDOG_USEC", microseconds);
    }
    (Broker::spawn(command, folder.clone()), heard)
}

#[tokio::test]
async fn a_broker_says_ready_after_its_start_lives_and_stops() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let (broker, heard) = start(&folder, Some("20000"));
    let next = || heard.recv_timeout(PATIENCE).expect("a notification");
    assert_eq!(next().trim_end(), "STATUS=opening the store");
    let ready = next();
    assert!(ready.contains("READY=1\n"), "{ready}");
    assert!(ready.contains(&format!("STATUS=ready on {}", broker.address)), "{ready}");
    for _ in 0..3 {
        assert_eq!(next().trim_end(), "WATCHDOG=1");
    }
    broker.stop().await;
    let last: Vec<String> = heard.try_iter().filter(|text| text.trim_end() != "WATCHDOG=1").collect();
    assert_eq!(last.len(), 1, "{last:?}");
    assert!(last[0].contains("STOPPING=1\n"), "{last:?}");
}

#[tokio::test]
async fn without_a_watchdog_there_are_no_signs_of_life() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let (broker, heard) = start(&folder, None);
    broker.stop().await;
    let all: Vec<String> = heard.try_iter().collect();
    assert!(all.iter().any(|text| text.contains("READY=1")), "{all:?}");
    assert!(!all.iter().any(|text| text.contains("WATCHDOG=1")), "{all:?}");
}

#[test]
fn a_broker_that_does_not_start_does_not_say_ready() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let other = Broker::start();
    let (path, heard) = socket(folder.path());
    let mut command = baton();
    command.env("NOTIFY_SOCKET", path).args(["dev", "--port", "0", "--data"]).arg(other.data());
    assert_eq!(command.output().unwrap().status.code(), Some(4));
    let first = heard.recv_timeout(PATIENCE).unwrap();
    assert_eq!(first.trim_end(), "STATUS=opening the store");
    assert_eq!(heard.try_iter().count(), 0);
}
