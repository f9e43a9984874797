//! Push notifications of A2A: a file for each task beside the grants, and requests by the gateway's sender.

use std::{
    fs,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

use baton_client::ids::check_name;
use baton_faces::http::{Notification, Outbox, Posted};
use http::HeaderMap;

use super::{
    super::Failure,
    files,
    sender::{Answer, Delivered, Post, Sender, Verdict},
};

/// The folder within that of the gateway.
const FOLDER: &str = "push";
const SUFFIX: &str = ".json";
/// The largest file, in bytes: each of its texts is bounded.
const FILE_BYTES_MAX: u64 = 256 * 1024;

type Waiting<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The folder of a gateway's push notifications, with their sender.
#[derive(Debug)]
pub(super) struct Pushes {
    folder: PathBuf,
    sender: Arc<Sender>,
}

impl Pushes {
    /// Opens the folder within that of the gateway, and makes a missing one.
    pub(super) fn within(gateway: &Path, sender: Arc<Sender>) -> Result<Self, Failure> {
        let folder = gateway.join(FOLDER);
        files::make_folder(&folder)?;
        files::check_folder(&folder, "baton gateway")?;
        Ok(Self { folder, sender })
    }
}

impl Outbox for Pushes {
    fn check(&self, url: &str) -> Result<(), String> {
        self.sender.target(url).map(drop)
    }

    fn all(&self) -> Waiting<'_, Result<Vec<(String, String)>, String>> {
        let folder = self.folder.clone();
        Box::pin(files::on_thread(move || read_all(&folder).map_err(|problem| problem.to_string())))
    }

    fn keep<'a>(&'a self, task_id: &'a str, text: Option<String>) -> Waiting<'a, Result<(), String>> {
        let file = self.folder.join(format!("{task_id}{SUFFIX}"));
        Box::pin(files::on_thread(move || {
            let kept = match &text {
                Some(text) => files::replace(&file, text),
                None => files::remove(&file).map(drop),
            };
            kept.map_err(|problem| format!("{}: {problem}", file.display()))
        }))
    }

    fn post(&self, notification: Notification) -> Waiting<'_, Posted> {
        Box::pin(async move {
            let Ok(target) = self.sender.target(&notification.url) else { return Posted::Ended };
            let head = || {
                let named = notification.head.iter().cloned();
                named.map(|(name, value)| (http::HeaderName::from_static(name), value)).collect::<HeaderMap>()
            };
            let post = Post { id: &notification.id, head: &head, body: notification.body.clone().into() };
            let taken = |answer: &Answer| match answer.status.is_success() {
                true => Verdict::Done(()),
                false => Verdict::Again(format!("status {}", answer.status.as_u16())),
            };
            match self.sender.deliver(&target, &post, taken).await {
                Delivered::Done(()) => Posted::Taken,
                Delivered::Off | Delivered::GivenUp(_) => Posted::Ended,
            }
        })
    }
}

fn read_all(folder: &Path) -> std::io::Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        // Files of others are left alone.
        let task_id = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)).filter(|name| check_name(name).is_ok());
        let Some(task_id) = task_id else { continue };
        if let Some(text) = files::read(&folder.join(&name), FILE_BYTES_MAX)? {
            all.push((task_id.to_owned(), text));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[tokio::test]
    async fn a_task_is_kept_for_the_owner_alone_until_it_is_removed() {
        let gateway = tempfile::tempdir().unwrap();
        let open = || Pushes::within(gateway.path(), Arc::new(Sender::new(false).unwrap())).unwrap();
        let pushes = open();
        pushes.keep("a2a-1", Some("one".to_owned())).await.unwrap();
        pushes.keep("a2a-1", Some("two".to_owned())).await.unwrap();
        let file = gateway.path().join("push/a2a-1.json");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        fs::write(gateway.path().join("push/README"), "mine").unwrap();
        assert_eq!(open().all().await.unwrap(), [("a2a-1".to_owned(), "two".to_owned())]);
        pushes.keep("a2a-1", None).await.unwrap();
        pushes.keep("a2a-1", None).await.unwrap();
        assert!(open().all().await.unwrap().is_empty() && !file.exists());
        assert!(pushes.check("https://a.example/").is_ok() && pushes.check("http://127.0.0.1/").is_err());
    }
}
