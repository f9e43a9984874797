//! Compressed gRPC messages: the encodings of a call, and unpacking its frames before tonic sees them.
//!
//! Owns gathering the bytes of a frame, and the bound on its unpacked size. Must not know calls, quotas or statuses.
//! tonic could unpack too, but its refusals carry no reason, and the quotas would not see the unpacked bytes.

use std::io::Read;

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};

use crate::envelope::FRAME_BYTES_MAX;

/// The header that names the encoding of a request's compressed messages.
const ENCODING: &str = "grpc-encoding";
/// The header that names the encodings that its sender reads.
pub(crate) const ACCEPT_ENCODING: &str = "grpc-accept-encoding";
/// The encodings that the broker reads, as [`ACCEPT_ENCODING`] lists them.
pub(crate) const ACCEPTED: HeaderValue = HeaderValue::from_static("identity,gzip,zstd");

/// The bytes before the message of a frame: the flag of compression, then the length.
const PREFIX_BYTES: usize = 5;
/// The first bytes of a zstd stream.
const ZSTD_MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();
/// The largest window of a zstd stream, as a power of two: 8 MiB, which RFC 8878 recommends.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// The most bytes of a compressed message that is small.
const SMALL_BYTES: usize = 256;

/// How messages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// gzip, RFC 1952.
    Gzip,
    /// Zstandard, RFC 8878.
    Zstd,
}

impl Encoding {
    /// The name in the headers.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// The header names an encoding that the broker does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EncodingUnknown;

/// Why a frame is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnpackError {
    /// The message unpacks to more than [`FRAME_BYTES_MAX`] bytes.
    TooLarge,
    /// The bytes are not exactly one whole stream of the encoding, or its window is over 8 MiB.
    Broken(Encoding),
}

/// Takes the encoding of a request from its headers, and leaves the headers of a request without compression.
///
/// The answers of the call may be compressed only if the request is: many clients offer to read gzip in every call, and
/// compressing each receipt would cost more time than its bytes.
pub(crate) fn take_encoding(headers: &mut HeaderMap) -> Result<Option<Encoding>, EncodingUnknown> {
    let named = headers.remove(ENCODING);
    let encoding = match named.as_ref().map(HeaderValue::as_bytes) {
        None | Some(b"identity") => None,
        Some(b"gzip") => Some(Encoding::Gzip),
        Some(b"zstd") => Some(Encoding::Zstd),
        Some(_) => return Err(EncodingUnknown),
    };
    let read = |name: &&str| {
        let lists = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|list| list.to_str().ok());
        lists.flat_map(|list| list.split(',')).any(|each| each.trim() == *name)
    };
    let answered = encoding.map(Encoding::name).filter(read);
    headers.remove(ACCEPT_ENCODING);
    if let Some(name) = answered {
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(name));
    }
    Ok(encoding)
}

/// The frames of a body whose messages may be compressed.
#[derive(Debug)]
pub(crate) struct Unpacking {
    encoding: Encoding,
    gathered: BytesMut,
}

/// A frame that has arrived in full.
#[derive(Debug)]
pub(crate) enum Whole {
    /// It is not compressed.
    Plain(Bytes),
    /// It is compressed.
    Packed(Packed),
}

/// A compressed message.
#[derive(Debug)]
pub(crate) struct Packed {
    encoding: Encoding,
    message: Bytes,
}

impl Packed {
    /// Whether it takes under a millisecond to unpack, whatever it is. gzip makes a byte to at most about a thousand, and
    /// zstd writes long runs faster than that.
    pub(crate) fn is_small(&self) -> bool {
        self.message.len() <= SMALL_BYTES
    }

    /// The frame without compression. Its message has at most [`FRAME_BYTES_MAX`] bytes. May take some 10 ms.
    pub(crate) fn unpack(&self) -> Result<Bytes, UnpackError> {
        unpack(self.encoding, &self.message, FRAME_BYTES_MAX)
    }
}

impl Unpacking {
    pub(crate) fn new(encoding: Encoding) -> Self {
        Self { encoding, gathered: BytesMut::new() }
    }

    /// Adds bytes of the body. The caller has checked the lengths of their frames.
    pub(crate) fn gather(&mut self, data: &[u8]) {
        self.gathered.extend_from_slice(data);
    }

    /// The number of bytes that no frame has taken yet.
    pub(crate) fn gathered(&self) -> usize {
        self.gathered.len()
    }

    /// The next frame that is whole. `None`: more bytes are needed.
    pub(crate) fn next_frame(&mut self) -> Option<Whole> {
        let ([flag, length @ ..], _) = self.gathered.split_first_chunk::<PREFIX_BYTES>()?;
        let (flag, length) = (*flag, u32::from_be_bytes(*length) as usize);
        if self.gathered.len() < PREFIX_BYTES + length {
            return None;
        }
        let mut frame = self.gathered.split_to(PREFIX_BYTES + length).freeze();
        // Other flags than 1 are for tonic to read or to refuse.
        if flag != 1 {
            return Some(Whole::Plain(frame));
        }
        frame.advance(PREFIX_BYTES);
        Some(Whole::Packed(Packed { encoding: self.encoding, message: frame }))
    }

    /// The bytes of a frame that the end of the body has cut off.
    pub(crate) fn cut_off(&mut self) -> Option<Bytes> {
        (!self.gathered.is_empty()).then(|| self.gathered.split().freeze())
    }
}

/// Unpacks a message to a frame without compression, whose message has at most `most` bytes.
fn unpack(encoding: Encoding, packed: &[u8], most: usize) -> Result<Bytes, UnpackError> {
    let broken = |_| UnpackError::Broken(encoding);
    let mut frame = vec![0; PREFIX_BYTES];
    let trailing = match encoding {
        Encoding::Gzip => {
            let mut stream = flate2::bufread::GzDecoder::new(packed);
            read_within(&mut stream, most, &mut frame).map_err(broken)?;
            stream.into_inner()
        }
        // The library would read the formats from before RFC 8878 too, with decoders that know no bound of the window.
        Encoding::Zstd if !packed.starts_with(&ZSTD_MAGIC) => return Err(UnpackError::Broken(encoding)),
        Encoding::Zstd => {
            let mut stream = zstd::stream::read::Decoder::with_buffer(packed).map_err(broken)?.single_frame();
            // The decoder allocates the window that the stream names.
            stream.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(broken)?;
            read_within(&mut stream, most, &mut frame).map_err(broken)?;
            stream.finish()
        }
    };
    let length = frame.len() - PREFIX_BYTES;
    if length > most {
        return Err(UnpackError::TooLarge);
    }
    // A second stream would be many tiny ones in a bad request, and each costs the making of a decoder.
    if !trailing.is_empty() {
        return Err(UnpackError::Broken(encoding));
    }
    let length = u32::try_from(length).map_err(|_| UnpackError::TooLarge)?;
    frame[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(frame.into())
}

/// Reads to the end of the stream, or one byte more than `most`.
fn read_within(stream: &mut impl Read, most: usize, into: &mut Vec<u8>) -> std::io::Result<usize> {
    stream.take(most as u64 + 1).read_to_end(into)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const BOTH: [Encoding; 2] = [Encoding::Gzip, Encoding::Zstd];

    fn pack(encoding: Encoding, message: &[u8]) -> Vec<u8> {
        match encoding {
            Encoding::Gzip => {
                let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                writer.write_all(message).unwrap();
                writer.finish().unwrap()
            }
            Encoding::Zstd => zstd::encode_all(message, 3).unwrap(),
        }
    }

    fn frame(flag: u8, message: &[u8]) -> Vec<u8> {
        [&[flag][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
    }

    /// The next frame that is whole, uncompressed.
    fn next_frame(unpacking: &mut Unpacking) -> Result<Option<Bytes>, UnpackError> {
        match unpacking.next_frame() {
            Some(Whole::Plain(frame)) => Ok(Some(frame)),
            Some(Whole::Packed(packed)) => packed.unpack().map(Some),
            None => Ok(None),
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    /// A zstd stream of zeros in blocks of 128 KiB, each of four bytes.
    fn zeros(blocks: usize, window_log: u8) -> Vec<u8> {
        let mut stream = vec![0x28, 0xb5, 0x2f, 0xfd, 0, (window_log - 10) << 3];
        for block in 1..=blocks {
            let head = ((128 * 1024) << 3) | (1 << 1) | u32::from(block == blocks);
            stream.extend(&head.to_le_bytes()[..3]);
            stream.push(0);
        }
        stream
    }

    #[test]
    fn frames_are_unpacked_wherever_they_are_cut() {
        for encoding in BOTH {
            let texts: [&[u8]; 4] = [b"", b"a", &[7; 300], b"the app crashes on start"];
            let mut body = Vec::new();
            let mut expected = Vec::new();
            for text in texts {
                body.extend(frame(1, &pack(encoding, text)));
                // A message of the same call that its client has not compressed.
                body.extend(frame(0, text));
                expected.extend([frame(0, text), frame(0, text)]);
            }
            for piece in 1..body.len() {
                let mut unpacking = Unpacking::new(encoding);
                let mut frames = Vec::new();
                for part in body.chunks(piece) {
                    unpacking.gather(part);
                    while let Some(frame) = next_frame(&mut unpacking).unwrap() {
                        frames.push(frame);
                    }
                }
                assert_eq!(frames, expected, "{encoding:?} in pieces of {piece}");
                assert_eq!(unpacking.cut_off(), None);
            }
        }
    }

    #[test]
    fn a_message_of_exactly_the_limit_is_unpacked_and_one_more_byte_is_refused() {
        for encoding in BOTH {
            let whole = unpack(encoding, &pack(encoding, &[0; 1000]), 1000).unwrap();
            assert_eq!(whole, frame(0, &[0; 1000]));
            assert_eq!(unpack(encoding, &pack(encoding, &[0; 1001]), 1000), Err(UnpackError::TooLarge));
        }
    }

    #[test]
    fn a_bomb_is_unpacked_no_further_than_the_limit() {
        // 4 GiB in 128 KiB.
        let bomb = zeros(32 * 1024, 17);
        assert!(bomb.len() < 132 * 1024);
        assert_eq!(unpack(Encoding::Zstd, &bomb, FRAME_BYTES_MAX), Err(UnpackError::TooLarge));
        let bomb = pack(Encoding::Gzip, &vec![0; 16 * FRAME_BYTES_MAX]);
        assert_eq!(unpack(Encoding::Gzip, &bomb, FRAME_BYTES_MAX), Err(UnpackError::TooLarge));
    }

    #[test]
    fn a_window_over_8_mib_is_refused() {
        assert_eq!(unpack(Encoding::Zstd, &zeros(1, 23), FRAME_BYTES_MAX).unwrap().len(), 5 + 128 * 1024);
        assert_eq!(unpack(Encoding::Zstd, &zeros(1, 24), FRAME_BYTES_MAX), Err(UnpackError::Broken(Encoding::Zstd)));
    }

    #[test]
    fn truncated_changed_and_trailing_bytes_are_refused() {
        for encoding in BOTH {
            let broken = Err(UnpackError::Broken(encoding));
            let packed = pack(encoding, b"the app crashes on start");
            for end in 0..packed.len() {
                assert_eq!(unpack(encoding, &packed[..end], 1000), broken, "{encoding:?}, its first {end} bytes");
            }
            assert_eq!(unpack(encoding, b"no stream at all", 1000), broken);
            let of_zstd_0_7 = [0x27, 0xb5, 0x2f, 0xfd, 0, 0, 0, 0, 0];
            assert_eq!(unpack(encoding, &of_zstd_0_7, 1000), broken);
            assert_eq!(unpack(encoding, &[&packed[..], b"x"].concat(), 1000), broken);
            assert_eq!(unpack(encoding, &[&packed[..], &packed].concat(), 1000), broken);
            assert_eq!(unpack(encoding, &pack(encoding, b""), 1000).unwrap(), frame(0, b""));
        }
        let mut packed = pack(Encoding::Gzip, b"the app crashes on start");
        let middle = packed.len() / 2;
        packed[middle] ^= 1;
        assert_eq!(unpack(Encoding::Gzip, &packed, 1000), Err(UnpackError::Broken(Encoding::Gzip)));
    }

    #[test]
    fn a_frame_that_is_cut_off_is_passed_on_as_it_is() {
        let mut unpacking = Unpacking::new(Encoding::Gzip);
        let packed = frame(1, &pack(Encoding::Gzip, b"text"));
        unpacking.gather(&packed[..packed.len() - 1]);
        assert_eq!((next_frame(&mut unpacking), unpacking.gathered()), (Ok(None), packed.len() - 1));
        assert_eq!(unpacking.cut_off().unwrap(), packed[..packed.len() - 1]);
        assert_eq!(unpacking.cut_off(), None);
    }

    #[test]
    fn answers_are_compressed_only_for_a_compressed_request_whose_client_reads_it() {
        let taken = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = headers(pairs);
            let encoding = take_encoding(&mut headers);
            assert!(!headers.contains_key(ENCODING));
            (encoding, headers.get(ACCEPT_ENCODING).map(|value| value.to_str().unwrap().to_owned()))
        };
        assert_eq!(taken(&[]), (Ok(None), None));
        assert_eq!(taken(&[(ACCEPT_ENCODING, "gzip, zstd")]), (Ok(None), None));
        assert_eq!(taken(&[(ENCODING, "identity"), (ACCEPT_ENCODING, "gzip")]), (Ok(None), None));
        assert_eq!(taken(&[(ENCODING, "zstd")]), (Ok(Some(Encoding::Zstd)), None));
        assert_eq!(taken(&[(ENCODING, "zstd"), (ACCEPT_ENCODING, "gzip")]), (Ok(Some(Encoding::Zstd)), None));
        let zstd = (Ok(Some(Encoding::Zstd)), Some("zstd".to_owned()));
        assert_eq!(taken(&[(ENCODING, "zstd"), (ACCEPT_ENCODING, "identity,gzip, zstd")]), zstd);
        assert_eq!(taken(&[(ENCODING, "zstd"), (ACCEPT_ENCODING, "gzip"), (ACCEPT_ENCODING, "zstd")]), zstd);
        assert_eq!(taken(&[(ENCODING, "deflate")]).0, Err(EncodingUnknown));
        assert_eq!(taken(&[(ENCODING, "GZIP")]).0, Err(EncodingUnknown));
    }
}
