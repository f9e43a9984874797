//! The place of an entity in a trace, a part of its record.

use super::{DecodeError, Reader};
use crate::{domain::TraceContext, proto::storage};

/// The place of an entity in a trace, given when the entity begins. It outlives the process, so that the span of an
/// entity is whole also after a crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracePlace {
    /// The context that messages about the entity continue: the entity's own span, or where the broker records no spans,
    /// that of the message that opened the entity.
    pub continued: TraceContext,
    /// The parent of the entity's own span. `None`: the span is the root of its trace.
    pub parent: Option<[u8; 8]>,
    /// Whether `continued` is the entity's own span, which is then sampled.
    pub is_own: bool,
    /// The cause that the entity's own span links to: the redriven handoff, the negotiation of an award, or the plan of a
    /// subtask. Its flags and its state are not kept.
    pub link: Option<TraceContext>,
}

pub(super) fn context_to_storage(context: &TraceContext) -> storage::TraceRecord {
    storage::TraceRecord {
        trace_id: context.trace_id.to_vec().into(),
        span_id: context.span_id.to_vec().into(),
        flags: context.flags.into(),
        state: context.state.clone(),
        ..Default::default()
    }
}

pub(super) fn context_from_storage(reader: &Reader, stored: storage::TraceRecord) -> Result<TraceContext, DecodeError> {
    let id = |_| reader.error("an id of a trace has another length");
    Ok(TraceContext {
        trace_id: stored.trace_id[..].try_into().map_err(id)?,
        span_id: stored.span_id[..].try_into().map_err(id)?,
        flags: u8::try_from(stored.flags).map_err(|_| reader.error("the flags of a trace are more than a byte"))?,
        state: stored.state,
    })
}

pub(super) fn place_to_storage(place: &TracePlace) -> storage::TraceRecord {
    storage::TraceRecord {
        parent_span_id: place.parent.map(|span| span.to_vec().into()).unwrap_or_default(),
        is_own: place.is_own,
        linked_trace_id: place.link.as_ref().map(|link| link.trace_id.to_vec().into()).unwrap_or_default(),
        linked_span_id: place.link.as_ref().map(|link| link.span_id.to_vec().into()).unwrap_or_default(),
        ..context_to_storage(&place.continued)
    }
}

pub(super) fn place_from_storage(
    reader: &Reader,
    stored: Option<storage::TraceRecord>,
) -> Result<Option<Box<TracePlace>>, DecodeError> {
    let Some(stored) = stored else { return Ok(None) };
    let length = |_| reader.error("an id of a trace has another length");
    let parent = match stored.parent_span_id.is_empty() {
        true => None,
        false => Some(stored.parent_span_id[..].try_into().map_err(length)?),
    };
    let link = match stored.linked_trace_id.is_empty() {
        true => None,
        false => Some(TraceContext {
            trace_id: stored.linked_trace_id[..].try_into().map_err(length)?,
            span_id: stored.linked_span_id[..].try_into().map_err(length)?,
            flags: 0,
            state: String::new(),
        }),
    };
    let is_own = stored.is_own;
    Ok(Some(Box::new(TracePlace { continued: context_from_storage(reader, stored)?, parent, is_own, link })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_comes_back() {
        let context = |byte| TraceContext { trace_id: [byte; 16], span_id: [byte; 8], flags: 0, state: String::new() };
        let continued = TraceContext { flags: 3, state: "a=1".to_owned(), ..context(1) };
        for (parent, link) in [(None, None), (Some([2; 8]), Some(context(3)))] {
            let place = TracePlace { continued: continued.clone(), parent, is_own: link.is_some(), link };
            let read = place_from_storage(&Reader("handoffs"), Some(place_to_storage(&place))).unwrap();
            assert_eq!(read.as_deref(), Some(&place));
        }
    }

    #[test]
    fn ids_of_another_length_are_damage() {
        let stored = storage::TraceRecord { trace_id: vec![1; 15].into(), ..Default::default() };
        assert!(place_from_storage(&Reader("handoffs"), Some(stored)).is_err());
    }
}
