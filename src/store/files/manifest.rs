//! The manifest of a keyspace: which of its table files are live.
//!
//! ```text
//! current   number of the version u64, XXH3-128 of the version's file u128, 0
//! vN        an archive; section "tables": levels u8, per level runs u8, per run tables u32,
//!           per table its number u64, 0, XXH3-128 of its file u128, seqno base u64
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::xxh3_128;

use super::{Damage, archive::Archive, numbers::Reader};

/// A live table file.
#[derive(Debug, Clone)]
pub(super) struct LiveTable {
    pub(super) path: PathBuf,
    /// The XXH3-128 of the whole file; `None`: not known.
    pub(super) checksum: Option<u128>,
    /// Added to each seqno in the file.
    pub(super) seqno_base: u64,
}

/// The live table files, as runs. The files of a run do not overlap and follow each other in the order of their keys.
pub(super) fn live_runs(keyspace: &Path) -> Result<Vec<Vec<LiveTable>>, Damage> {
    let current = keyspace.join("current");
    let found = fs::read(&current).map_err(|error| Damage::unreadable(&current, &error))?;
    let Some((number, checksum)) = parse_current(&found) else {
        return Err(Damage::new(&current, "it does not say what it should"));
    };
    let path = keyspace.join(format!("v{number}"));
    let archive = Archive::open(&path)?.with_sections()?;
    if xxh3_128(&archive.read(0..archive.length)?) != checksum {
        return Err(Damage::new(&path, "its checksum is wrong"));
    }
    let tables = archive.read(archive.section("tables")?)?;
    parse_tables(&tables, &keyspace.join("tables")).ok_or_else(|| Damage::new(&path, "its list of tables is damaged"))
}

fn parse_current(bytes: &[u8]) -> Option<(u64, u128)> {
    let mut reader = Reader(bytes);
    let current = (reader.u64()?, reader.u128()?);
    (reader.0 == [0]).then_some(current)
}

fn parse_tables(bytes: &[u8], folder: &Path) -> Option<Vec<Vec<LiveTable>>> {
    let mut reader = Reader(bytes);
    let mut runs = Vec::new();
    for _level in 0..reader.u8()? {
        for _run in 0..reader.u8()? {
            let count = reader.u32()?;
            runs.push((0..count).map(|_| parse_table(&mut reader, folder)).collect::<Option<_>>()?);
        }
    }
    Some(runs)
}

fn parse_table(reader: &mut Reader<'_>, folder: &Path) -> Option<LiveTable> {
    let path = folder.join(reader.u64()?.to_string());
    (reader.u8()? == 0).then_some(())?;
    Some(LiveTable { path, checksum: Some(reader.u128()?), seqno_base: reader.u64()? })
}
