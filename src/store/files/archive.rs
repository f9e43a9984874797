//! An archive file of fjall: named sections, with a table of contents at the end.
//!
//! ```text
//! sections, "TOC!", count u32, (position u64, length u64, length of the name u16, name)...,
//! "SFA!", 1, 0, XXH3-128 of the contents u128, position of the contents u64, length of the contents u64
//! ```

use std::{
    fs::File,
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::xxh3_128;

use super::{Damage, numbers::Reader};

const TRAILER: u64 = 38;

/// A section's name, and its range of bytes in the file.
type Section = (Vec<u8>, Range<u64>);

/// An open archive file with its sections.
pub(super) struct Archive {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) length: u64,
    /// Empty if the end of the file is damaged.
    pub(super) sections: Vec<Section>,
}

impl Archive {
    /// Opens an archive. If the end of the file is damaged, the archive has no sections.
    pub(super) fn open(path: &Path) -> Result<Self, Damage> {
        let unreadable = |error: std::io::Error| Damage::unreadable(path, &error);
        let file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let mut archive = Self { path: path.into(), file, length, sections: Vec::new() };
        archive.sections = archive.read_contents()?.unwrap_or_default();
        Ok(archive)
    }

    /// Fails if the archive has no sections.
    pub(super) fn with_sections(self) -> Result<Self, Damage> {
        match self.sections.is_empty() {
            true => Err(Damage::new(&self.path, "its end is damaged or missing")),
            false => Ok(self),
        }
    }

    pub(super) fn section(&self, name: &str) -> Result<Range<u64>, Damage> {
        let found = self.sections.iter().find(|(known, _)| known == name.as_bytes());
        found.map(|(_, place)| place.clone()).ok_or_else(|| Damage::new(&self.path, format!("it has no {name}")))
    }

    pub(super) fn read(&self, place: Range<u64>) -> Result<Vec<u8>, Damage> {
        let fits = place.end.checked_sub(place.start).filter(|_| place.end <= self.length);
        let Some(count) = fits.and_then(|count| usize::try_from(count).ok()) else {
            return Err(Damage::new(&self.path, "it is too short"));
        };
        let mut bytes = vec![0; count];
        self.file.read_exact_at(&mut bytes, place.start).map_err(|error| Damage::unreadable(&self.path, &error))?;
        Ok(bytes)
    }

    fn read_contents(&self) -> Result<Option<Vec<Section>>, Damage> {
        let Some(trailer_at) = self.length.checked_sub(TRAILER) else { return Ok(None) };
        let trailer = self.read(trailer_at..self.length)?;
        let Some((at, checksum)) = parse_trailer(&trailer).filter(|(at, _)| *at <= trailer_at) else {
            return Ok(None);
        };
        let contents = self.read(at..trailer_at)?;
        Ok(if xxh3_128(&contents) == checksum { parse_contents(&contents, at) } else { None })
    }
}

fn parse_trailer(bytes: &[u8]) -> Option<(u64, u128)> {
    let mut reader = Reader(bytes);
    (reader.bytes(6)? == b"SFA!\x01\x00").then_some(())?;
    let checksum = reader.u128()?;
    Some((reader.u64()?, checksum))
}

fn parse_contents(bytes: &[u8], end: u64) -> Option<Vec<Section>> {
    let mut reader = Reader(bytes);
    (reader.bytes(4)? == b"TOC!").then_some(())?;
    let count = reader.u32()?;
    let mut sections = Vec::new();
    for _ in 0..count {
        let (at, length, name) = (reader.u64()?, reader.u64()?, reader.u16()?);
        let place = at..at.checked_add(length).filter(|section_end| *section_end <= end)?;
        sections.push((reader.bytes(usize::from(name))?.to_vec(), place));
    }
    Some(sections)
}
