//! Pages that several readers see. All open pages ask again at the same change, so each page is made once for readers
//! with the same rights, and its bytes are shared.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{body, response::Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::sync::Mutex as AsyncMutex;

use crate::{broker::access::Caller, time::Timestamp};

/// The oldest page that is shared. Rights that a caller has lost since then may show for as long.
const AGE_MAX: Duration = Duration::from_secs(1);
/// The most pages in memory.
const PAGES_MAX: usize = 128;
/// The most bytes of a page that is shared. Larger ones are made for each reader.
const PAGE_BYTES_MAX: usize = 256 * 1024;

/// The caller as a text, and the path with its query.
type Key = (String, String);

/// A page, while it is made and afterwards.
type Slot = Arc<AsyncMutex<Option<Page>>>;

#[derive(Debug, Clone)]
struct Page {
    made_at: Timestamp,
    headers: HeaderMap,
    text: Bytes,
}

/// The pages that were made lately.
#[derive(Debug, Default)]
pub(super) struct SharedPages {
    slots: Mutex<HashMap<Key, Slot>>,
}

impl SharedPages {
    /// The page at this path for this caller: one that is at most a second old, or else what `make` makes.
    pub(super) async fn page(
        &self,
        caller: &Caller,
        path: &str,
        now: impl Fn() -> Timestamp,
        make: impl Future<Output = Response>,
    ) -> Response {
        let slot = self.slot((caller.to_string(), path.to_owned()));
        // Readers that come meanwhile wait for the one that makes the page.
        let mut kept = slot.lock().await;
        let is_fresh = |page: &&Page| page.made_at <= now() && now().since(page.made_at) < AGE_MAX;
        if let Some(page) = kept.as_ref().filter(is_fresh) {
            return page.answer();
        }
        *kept = None;
        let made_at = now();
        let (head, content) = make.await.into_parts();
        // Only a whole page is shared; a refusal is for its reader alone.
        if head.status != StatusCode::OK {
            return Response::from_parts(head, content);
        }
        let Ok(text) = body::to_bytes(content, PAGE_BYTES_MAX).await else {
            return super::plain(StatusCode::INTERNAL_SERVER_ERROR, "This page is too long to be kept up to date.\n");
        };
        let page = Page { made_at, headers: head.headers, text };
        kept.insert(page).answer()
    }

    fn slot(&self, key: Key) -> Slot {
        let mut slots = self.slots.lock().expect("no holder panics");
        if slots.len() >= PAGES_MAX && !slots.contains_key(&key) {
            slots.clear();
        }
        Arc::clone(slots.entry(key).or_default())
    }
}

impl Page {
    fn answer(&self) -> Response {
        let mut answer = Response::new(body::Body::from(self.text.clone()));
        answer.headers_mut().clone_from(&self.headers);
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use axum::response::IntoResponse as _;

    use super::*;

    async fn text(answer: Response) -> String {
        String::from_utf8(body::to_bytes(answer.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn readers_with_the_same_rights_share_a_page_for_a_second() {
        let pages = SharedPages::default();
        let made = Cell::new(0);
        let ask = async |name: &str, path: &str, milliseconds: i64| {
            let caller = Caller::Operator(name.to_owned());
            let now = Timestamp::from_parts(1_000, 0).unwrap();
            let now = now.plus(Duration::from_millis(milliseconds.unsigned_abs()));
            let make = async {
                made.set(made.get() + 1);
                made.get().to_string().into_response()
            };
            text(pages.page(&caller, path, || now, make).await).await
        };
        assert_eq!(ask("a", "/handoffs", 0).await, "1");
        assert_eq!(ask("a", "/handoffs", 999).await, "1");
        assert_eq!(ask("a", "/handoffs?state=all", 0).await, "2", "another page");
        assert_eq!(ask("b", "/handoffs", 0).await, "3", "other rights");
        assert_eq!(ask("a", "/handoffs", 1000).await, "4", "too old");
        assert_eq!(ask("a", "/handoffs", 0).await, "5", "a page from the future, after the clock was set back");
        assert_eq!(made.get(), 5);
    }

    #[tokio::test]
    async fn readers_that_come_together_wait_for_one_page() {
        let pages = SharedPages::default();
        let caller = Caller::Operator("a".to_owned());
        let now = Timestamp::from_parts(1_000, 0).unwrap();
        let made = Cell::new(0);
        let make = async || {
            made.set(made.get() + 1);
            tokio::task::yield_now().await;
            "page".into_response()
        };
        let ask = || pages.page(&caller, "/", || now, make());
        tokio::join!(ask(), ask(), ask());
        assert_eq!(made.get(), 1);
    }

    #[tokio::test]
    async fn a_refusal_is_not_shared() {
        let pages = SharedPages::default();
        let caller = Caller::Operator("a".to_owned());
        let now = Timestamp::from_parts(1_000, 0).unwrap();
        let denied = pages.page(&caller, "/", || now, async { StatusCode::FORBIDDEN.into_response() }).await;
        assert_eq!(denied.status(), StatusCode::FORBIDDEN);
        let shown = pages.page(&caller, "/", || now, async { "page".into_response() }).await;
        assert_eq!(text(shown).await, "page");
    }
}
