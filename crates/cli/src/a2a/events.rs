//! A stream of server-sent events, out of the bytes as they come.

use bytes::{Bytes, BytesMut};

use super::http::{BODY_MAX, Problem};

/// The data of events, cut out of a stream of bytes.
#[derive(Debug, Default)]
pub(super) struct EventData {
    /// The bytes after the last whole line.
    rest: BytesMut,
    /// The data lines of the event that has begun.
    data: Vec<u8>,
    has_data: bool,
}

impl EventData {
    pub(super) fn push(&mut self, bytes: &Bytes) -> Result<(), Problem> {
        if self.rest.len() + self.data.len() + bytes.len() > 2 * BODY_MAX {
            return Err(Problem::Invalid(format!("an event of over {BODY_MAX} bytes")));
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }

    /// The data of the next whole event.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line = self.rest.split_to(end + 1);
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                if std::mem::take(&mut self.has_data) {
                    return Some(std::mem::take(&mut self.data));
                }
                continue;
            }
            // The names of events, their ids and comments say nothing in A2A.
            let Some(value) = line.strip_prefix(b"data:") else { continue };
            if self.has_data {
                self.data.push(b'\n');
            }
            self.has_data = true;
            self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_in_pieces_of_any_length() {
        let text = b": hello\n\ndata: {\"a\":1}\r\n\r\nid: 7\nevent: x\ndata:two\ndata: lines\n\n\ndata: cut";
        for size in 1..text.len() {
            let (mut events, mut found) = (EventData::default(), Vec::new());
            for piece in text.chunks(size) {
                events.push(&Bytes::copy_from_slice(piece)).unwrap();
                while let Some(data) = events.next() {
                    found.push(String::from_utf8(data).unwrap());
                }
            }
            assert_eq!(found, ["{\"a\":1}", "two\nlines"], "pieces of {size}");
        }
    }

    #[test]
    fn an_event_without_an_end_is_bounded() {
        let mut events = EventData::default();
        let piece = Bytes::from(vec![b'x'; BODY_MAX]);
        assert_eq!((events.push(&piece), events.push(&piece)), (Ok(()), Ok(())));
        assert!(matches!(events.push(&piece), Err(Problem::Invalid(_))));
    }
}
