//! W3C trace context (<https://www.w3.org/TR/trace-context/>).

use std::fmt;

/// The most bytes of a tracestate.
const STATE_MAX: usize = 512;

/// The place of a span in a trace, as it goes from one program to another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The id of the trace; not 0.
    pub trace_id: [u8; 16],
    /// The id of the span; not 0.
    pub span_id: [u8; 8],
    /// The flags: [`Self::SAMPLED`], and others that are passed on.
    pub flags: u8,
    /// The tracestate, which is passed on unread. At most 512 bytes.
    pub state: String,
}

impl TraceContext {
    /// The flag of a trace that is recorded.
    pub const SAMPLED: u8 = 1;

    /// Parses a traceparent. `None`: it is not valid. A tracestate over 512 bytes counts as empty.
    pub fn parse(traceparent: &str, tracestate: &str) -> Option<Self> {
        let mut fields = traceparent.split('-');
        let (version, trace, span, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let [version] = of_hex(version)?;
        // Version 0 has four fields. A later one may have more; 255 is forbidden.
        if version == 0xff || (version == 0 && fields.next().is_some()) {
            return None;
        }
        let ([flags], trace_id, span_id) = (of_hex(flags)?, of_hex(trace)?, of_hex(span)?);
        let state = Some(tracestate).filter(|state| state.len() <= STATE_MAX).unwrap_or_default().to_owned();
        let is_valid = trace_id != [0; 16] && span_id != [0; 8];
        is_valid.then_some(Self { trace_id, span_id, flags, state })
    }

    /// Whether the trace is recorded.
    pub const fn is_sampled(&self) -> bool {
        self.flags & Self::SAMPLED != 0
    }
}

impl fmt::Display for TraceContext {
    /// Writes the traceparent, 55 characters.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (hex::encode(self.trace_id), hex::encode(self.span_id));
        write!(formatter, "00-{trace}-{span}-{:02x}", self.flags)
    }
}

/// Decodes lower-case hexadecimal digits of exactly `N` bytes.
fn of_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let is_lower = text.bytes().all(|byte| !byte.is_ascii_uppercase());
    (is_lower && hex::decode_to_slice(text, &mut bytes).is_ok()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_survives_parsing_and_printing() {
        let context = TraceContext::parse(PARENT, "rojo=1").unwrap();
        assert!(context.is_sampled());
        assert_eq!(context.to_string(), PARENT);
        assert_eq!(context.state, "rojo=1");
    }

    #[test]
    fn a_traceparent_that_is_not_valid_is_none() {
        let wrong = [
            "",
            "00-aa-bb-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        ];
        for traceparent in wrong {
            assert_eq!(TraceContext::parse(traceparent, ""), None, "{traceparent}");
        }
        let later = PARENT.replacen("00", "01", 1);
        assert!(TraceContext::parse(&later, "").is_some(), "a later version has the same first fields");
        assert_eq!(TraceContext::parse(PARENT, &"x".repeat(513)).unwrap().state, "");
    }
}
