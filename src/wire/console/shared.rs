//! Pages that several readers see. All open pages ask again at the same change, so each page is made once for readers
//! with the same rights, and its bytes are shared.
//!
//! A page is shared until the next event, so a reader that asks because of an event gets what the event tells of. A
//! reader never gets an older page than before either: a page that is opened is made anew and takes the place of the
//! shared one, and a decision removes all of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use axum::{body, response::Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::Body as _;
use tokio::sync::Mutex as AsyncMutex;

use crate::broker::access::Caller;

/// The most pages in memory.
const PAGES_MAX: usize = 128;
/// The most bytes of a page that is shared. Larger ones are made for each reader.
const PAGE_BYTES_MAX: u64 = 256 * 1024;

/// The caller with its groups as a text, and the path with its query.
type Key = (String, String);

/// A page, while it is made and afterwards.
type Slot = Arc<AsyncMutex<Option<Page>>>;

#[derive(Debug, Clone)]
struct Page {
    /// The latest event when the page was begun.
    tick: u64,
    headers: HeaderMap,
    text: Bytes,
}

/// The pages that were made lately.
#[derive(Debug, Default)]
pub(super) struct SharedPages {
    slots: Mutex<HashMap<Key, Slot>>,
}

impl SharedPages {
    /// The page at this path for this caller: what `make` makes, or for a `refresh` one that was made since the latest
    /// event.
    pub(super) async fn page(
        &self,
        (caller, path): (&Caller, &str),
        refresh: bool,
        latest: impl Fn() -> u64,
        make: impl Future<Output = Response>,
    ) -> Response {
        let slot = self.slot((format!("{caller:?}"), path.to_owned()));
        // Readers that come meanwhile wait for the one that makes the page.
        let mut kept = slot.lock().await;
        let tick = latest();
        if let Some(page) = kept.as_ref().filter(|page| refresh && page.tick == tick) {
            return page.answer();
        }
        *kept = None;
        let (head, content) = make.await.into_parts();
        // Only a whole page is shared: a refusal is for its reader alone, and a stream has no end.
        let is_short = content.size_hint().exact().is_some_and(|bytes| bytes <= PAGE_BYTES_MAX);
        if head.status != StatusCode::OK || !is_short {
            return Response::from_parts(head, content);
        }
        let Ok(text) = body::to_bytes(content, usize::MAX).await else {
            return super::plain(StatusCode::INTERNAL_SERVER_ERROR, "This page has no end.\n");
        };
        let page = Page { tick, headers: head.headers, text };
        kept.insert(page).answer()
    }

    /// Removes all pages, after a decision. A page that is being made now is not kept.
    pub(super) fn forget(&self) {
        self.slots.lock().expect("no holder panics").clear();
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

    fn operator(name: &str) -> Caller {
        Caller::Operator(crate::broker::access::Operator::named(name))
    }

    #[tokio::test]
    async fn readers_with_the_same_rights_share_a_page_until_the_next_event() {
        let pages = SharedPages::default();
        let made = Cell::new(0);
        let ask = async |name: &str, path: &str, tick: u64| {
            let make = async {
                made.set(made.get() + 1);
                made.get().to_string().into_response()
            };
            text(pages.page((&operator(name), path), true, || tick, make).await).await
        };
        assert_eq!(ask("a", "/handoffs", 7).await, "1");
        assert_eq!(ask("a", "/handoffs", 7).await, "1");
        assert_eq!(ask("a", "/handoffs?state=all", 7).await, "2", "another page");
        assert_eq!(ask("b", "/handoffs", 7).await, "3", "other rights");
        assert_eq!(ask("a", "/handoffs", 8).await, "4", "after an event");
        assert_eq!(made.get(), 4);
    }

    #[tokio::test]
    async fn no_reader_gets_an_older_page_than_before() {
        let pages = SharedPages::default();
        let caller = operator("a");
        let ask = async |refresh: bool, made: &'static str| {
            text(pages.page((&caller, "/"), refresh, || 7, async { made.into_response() }).await).await
        };
        assert_eq!(ask(true, "old").await, "old");
        assert_eq!(ask(false, "opened").await, "opened", "a page that is opened is made anew");
        assert_eq!(ask(true, "again").await, "opened");
        pages.forget();
        assert_eq!(ask(true, "after a decision").await, "after a decision");
    }

    #[tokio::test]
    async fn readers_that_come_together_wait_for_one_page() {
        let pages = SharedPages::default();
        let caller = operator("a");
        let made = Cell::new(0);
        let make = async || {
            made.set(made.get() + 1);
            tokio::task::yield_now().await;
            "page".into_response()
        };
        let ask = || pages.page((&caller, "/"), true, || 7, make());
        tokio::join!(ask(), ask(), ask());
        assert_eq!(made.get(), 1);
    }

    #[tokio::test]
    async fn a_refusal_is_not_shared() {
        let pages = SharedPages::default();
        let caller = operator("a");
        let denied = pages.page((&caller, "/"), true, || 7, async { StatusCode::FORBIDDEN.into_response() }).await;
        assert_eq!(denied.status(), StatusCode::FORBIDDEN);
        let shown = pages.page((&caller, "/"), true, || 7, async { "page".into_response() }).await;
        assert_eq!(text(shown).await, "page");
    }
}
