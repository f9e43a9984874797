//! The line ends of HTTP/1 heads: each is CR LF.
//!
//! Owns finding a bare LF in the head of a request, before HTTP reads it. A proxy that ends lines otherwise would see other
//! requests than the broker does. Must not know the meaning of a head, beyond whether a body follows.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// The bytes of a line that are looked at. Enough for each name of a header that announces a body.
const LINE_BYTES: usize = 64;

/// The heads of one connection. Stops at the first request with a body, whose end only HTTP can find: the connection ends with
/// that request.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// The beginning of the line in hand, in lower case.
    line: Vec<u8>,
    ends_with_cr: bool,
    /// Whether the head in hand has a line.
    has_begun: bool,
    has_body: bool,
    /// Whether the bytes of a body have begun.
    is_over: Arc<AtomicBool>,
}

impl Heads {
    /// Whether the heads are no longer checked. The connection must then end after the answer.
    pub(super) fn is_over(&self) -> Arc<AtomicBool> {
        self.is_over.clone()
    }

    /// The place of the first bare LF of a head in these bytes.
    pub(super) fn bare_line_feed(&mut self, bytes: &[u8]) -> Option<usize> {
        for (place, byte) in bytes.iter().enumerate() {
            if self.is_over.load(Ordering::Relaxed) {
                return None;
            }
            match *byte {
                b'\n' if self.ends_with_cr => self.end_line(),
                b'\n' => return Some(place),
                b'\r' => {}
                other if self.line.len() < LINE_BYTES => self.line.push(other.to_ascii_lowercase()),
                _ => {}
            }
            self.ends_with_cr = *byte == b'\r';
        }
        None
    }

    fn end_line(&mut self) {
        if !self.line.is_empty() {
            // The first line is the request's, and announces nothing.
            self.has_body |= self.has_begun && announces_body(&self.line);
            self.has_begun = true;
            self.line.clear();
        } else if self.has_begun {
            self.is_over.store(self.has_body, Ordering::Relaxed);
            self.has_begun = false;
        }
    }
}

/// Whether a body follows the head with this line, of which only the beginning is known.
fn announces_body(line: &[u8]) -> bool {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else { return false };
    match &line[..colon] {
        b"content-length" => line[colon + 1..].trim_ascii() != b"0",
        b"transfer-encoding" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place of the first bare LF in these bytes, which arrive in parts of this size, and whether the heads are over.
    fn found(text: &str, part: usize) -> (Option<usize>, bool) {
        let mut heads = Heads::default();
        let mut parts = text.as_bytes().chunks(part).enumerate();
        let place = parts.find_map(|(number, bytes)| Some(number * part + heads.bare_line_feed(bytes)?));
        (place, heads.is_over().load(Ordering::Relaxed))
    }

    #[test]
    fn a_bare_line_feed_of_any_head_is_found() {
        for (text, is_bare, is_over) in [
            ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", false, false),
            ("GET / HTTP/1.1\n", true, false),
            ("GET / HTTP/1.1\r\nhost: a\n", true, false),
            ("GET / HTTP/1.1\r\nhost: a\r\n\n", true, false),
            ("\r\nGET / HTTP/1.1\r\n\r\nGET /\n", true, false),
            ("POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET /\n", true, false),
            ("POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n\n\nGET /\n", false, true),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\n", false, true),
            ("content-length: 5\r\nhost: a\r\n\r\n\n", true, false),
        ] {
            let expected = is_bare.then(|| text.len() - 1);
            for part in [1, 3, text.len()] {
                assert_eq!(found(text, part), (expected, is_over), "{text:?} in parts of {part}");
            }
        }
    }
}
