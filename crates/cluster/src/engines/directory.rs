//! A shared log and a register in a folder, for several brokers on one machine.
//!
//! An entry is written to a draft, synced, and linked to `log/POSITION`, which fails if that name exists. A value is linked
//! to `register/NAME.VERSION` likewise. So the kernel decides which of two writers is first. Not for network file systems,
//! whose links may succeed twice.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use baton_protocol::ids::{IdSource, SystemIds};
use baton_store::disk;
use bytes::Bytes;

use crate::log::{
    AppendError, Position, ReadError, Register, Settings, SharedLog, Unavailable, VALUE_BYTES_MAX, Version, WriteError,
    is_name,
};

/// The largest entry in bytes.
const ENTRY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Versions of a value that stay beside the present one: a reader that has listed the folder still finds its file.
const VERSIONS_KEPT: u64 = 8;
/// The file `begin.POSITION` says where the log begins. Entries in front of it were trimmed.
const BEGIN: &str = "begin.";

/// A log and a register in one folder.
#[derive(Debug, Clone)]
pub struct Directory {
    log: Arc<Path>,
    register: Arc<Path>,
    drafts: Arc<Path>,
}

impl Directory {
    /// Opens the folder, and makes a missing one.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let place = |name: &str| -> io::Result<Arc<Path>> {
            let path = folder.join(name);
            disk::make_folder(&path)?;
            Ok(path.into())
        };
        Ok(Self { log: place("log")?, register: place("register")?, drafts: place("drafts")? })
    }

    /// Runs the work of a call on a thread that may wait for the disk.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let own = self.clone();
        tokio::task::spawn_blocking(move || work(&own)).await.map_err(|error| Unavailable(error.to_string()))
    }

    /// Writes a file that gets its name only if the name is free. `Ok(false)`: the name is taken.
    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<bool> {
        let draft = self.drafts.join(hex::encode(SystemIds.random()));
        let linked = disk::write_whole(&draft, bytes).and_then(|()| match fs::hard_link(&draft, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            linked => linked.map(|()| true),
        });
        disk::remove_if_there(&draft)?;
        if linked? {
            disk::sync_folder(disk::folder_around(path))?;
            return Ok(true);
        }
        Ok(false)
    }

    fn entry(&self, position: Position) -> PathBuf {
        self.log.join(format!("{position:020}"))
    }

    /// The positions of the first and the last entry; (1, 0) for an empty log.
    fn bounds(&self) -> io::Result<(Position, Position)> {
        let (mut first, mut last) = (1, 0);
        for name in names_in(&self.log)? {
            if let Some(begin) = name.strip_prefix(BEGIN) {
                first = first.max(begin.parse().unwrap_or(0));
            } else {
                last = last.max(name.parse().unwrap_or(0));
            }
        }
        Ok((first, last))
    }

    fn size_now(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for name in names_in(&self.log)? {
            match fs::metadata(self.log.join(name)) {
                // Trimmed since the folder was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                found => bytes += found?.len(),
            }
        }
        Ok(bytes)
    }

    fn append_now(&self, after: Position, entry: &[u8]) -> io::Result<bool> {
        // Behind the end each name is free, so a link there would leave a gap. The entry before stays, because trimming keeps
        // the last one.
        let is_end = if after > 0 { self.entry(after).try_exists()? } else { self.bounds()?.1 == 0 };
        if !is_end || !self.create(&self.entry(after + 1), entry)? {
            return Ok(false);
        }
        // A name is also free once its entry was trimmed. Trimming says first where the log begins: a link in front of that
        // may have come after.
        if self.bounds()?.0 > after + 1 {
            return Err(io::Error::other("the log was trimmed meanwhile"));
        }
        Ok(true)
    }

    fn read_now(&self, from: Position, bytes: usize) -> Result<Vec<(Position, Bytes)>, ReadError> {
        let (first, last) = self.bounds().map_err(unavailable)?;
        if from < first {
            return Err(ReadError::Trimmed { first });
        }
        let (mut found, mut taken) = (Vec::new(), 0);
        for position in from..=last {
            match fs::read(self.entry(position)) {
                Ok(entry) => {
                    taken += entry.len();
                    found.push((position, entry.into()));
                }
                // Trimmed since the folder was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let first = self.bounds().map_err(unavailable)?.0;
                    return match position < first {
                        true => Err(ReadError::Trimmed { first }),
                        false => Err(ReadError::Damaged(format!("entry {position} is missing"))),
                    };
                }
                Err(error) => return Err(unavailable(error).into()),
            }
            if taken >= bytes {
                break;
            }
        }
        Ok(found)
    }

    fn trim_now(&self, before: Position) -> io::Result<()> {
        let (first, last) = self.bounds()?;
        let begin = before.min(last);
        if begin <= first {
            return Ok(());
        }
        disk::write_whole(&self.log.join(format!("{BEGIN}{begin:020}")), &[])?;
        for name in names_in(&self.log)? {
            let position = name.strip_prefix(BEGIN).unwrap_or(&name).parse::<Position>();
            if position.is_ok_and(|position| position < begin) {
                disk::remove_if_there(&self.log.join(name))?;
            }
        }
        disk::sync_folder(&self.log)
    }

    /// The folder of a value, and the value's last part.
    fn place<'name>(&self, name: &'name str) -> (PathBuf, &'name str) {
        match name.rsplit_once('/') {
            Some((around, last)) => (self.register.join(around), last),
            None => (self.register.to_path_buf(), name),
        }
    }

    /// The number of the present version of a value; 0 for none.
    fn version(&self, name: &str) -> io::Result<u64> {
        let (folder, last) = self.place(name);
        let number = |file: String| file.strip_prefix(last)?.strip_prefix(".v")?.parse().ok();
        Ok(names_in(&folder)?.into_iter().filter_map(number).max().unwrap_or(0))
    }

    fn value_file(&self, name: &str, version: u64) -> PathBuf {
        let (folder, last) = self.place(name);
        folder.join(format!("{last}.v{version}"))
    }

    fn value_now(&self, name: &str) -> io::Result<Option<(Version, Bytes)>> {
        loop {
            let version = self.version(name)?;
            if version == 0 {
                return Ok(None);
            }
            match fs::read(self.value_file(name, version)) {
                // Later versions were written meanwhile, and this one was removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                read => return read.map(|value| Some((Version(version.to_string()), value.into()))),
            }
        }
    }

    fn write_now(&self, name: &str, expected: u64, value: &[u8]) -> io::Result<bool> {
        disk::make_folder(&self.place(name).0)?;
        if self.version(name)? != expected || !self.create(&self.value_file(name, expected + 1), value)? {
            return Ok(false);
        }
        // The name of an old version is free once that version was removed, which happens with the write of a far later one.
        if self.version(name)? > expected + VERSIONS_KEPT {
            return Err(io::Error::other("the value was written often meanwhile"));
        }
        if let Some(old) = (expected + 1).checked_sub(VERSIONS_KEPT).filter(|old| *old > 0) {
            disk::remove_if_there(&self.value_file(name, old))?;
        }
        Ok(true)
    }

    fn names_now(&self, prefix: &str) -> io::Result<Vec<String>> {
        let (mut found, mut folders) = (Vec::new(), vec![String::new()]);
        while let Some(around) = folders.pop() {
            for file in names_in(&self.register.join(&around))? {
                let name = if around.is_empty() { file } else { format!("{around}/{file}") };
                if self.register.join(&name).is_dir() {
                    folders.push(name);
                } else if let Some((value, _)) = name.rsplit_once(".v") {
                    found.push(value.to_owned());
                }
            }
        }
        found.retain(|name| name.starts_with(prefix));
        found.sort();
        found.dedup();
        Ok(found)
    }
}

/// The names in a folder; none if the folder is not there.
fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
    }
}

fn unavailable(error: io::Error) -> Unavailable {
    Unavailable(error.to_string())
}

#[async_trait]
impl SharedLog for Directory {
    async fn append(&self, after: Position, entry: Bytes) -> Result<(), AppendError> {
        if entry.len() > ENTRY_BYTES_MAX {
            return Err(AppendError::TooLarge { bytes: entry.len(), bytes_max: ENTRY_BYTES_MAX });
        }
        let appended = self.blocking(move |own| own.append_now(after, &entry)).await;
        match appended.map_err(|error| AppendError::Unknown(error.0))? {
            Ok(true) => Ok(()),
            Ok(false) => Err(AppendError::Fenced),
            Err(error) => Err(AppendError::Unknown(error.to_string())),
        }
    }

    async fn end(&self) -> Result<Position, Unavailable> {
        Ok(self.blocking(Self::bounds).await?.map_err(unavailable)?.1)
    }

    async fn read(&self, from: Position, bytes: usize) -> Result<Vec<(Position, Bytes)>, ReadError> {
        self.blocking(move |own| own.read_now(from, bytes)).await?
    }

    async fn trim(&self, before: Position) -> Result<(), Unavailable> {
        self.blocking(move |own| own.trim_now(before)).await?.map_err(unavailable)
    }

    async fn size_bytes(&self) -> Result<u64, Unavailable> {
        self.blocking(Self::size_now).await?.map_err(unavailable)
    }

    fn entry_bytes_max(&self) -> usize {
        ENTRY_BYTES_MAX
    }

    async fn settings(&self) -> Result<Settings, Unavailable> {
        Ok(Settings::default())
    }
}

#[async_trait]
impl Register for Directory {
    async fn read(&self, name: &str) -> Result<Option<(Version, Bytes)>, Unavailable> {
        let name = checked(name)?;
        self.blocking(move |own| own.value_now(&name)).await?.map_err(unavailable)
    }

    async fn write(&self, name: &str, expected: Option<&Version>, value: Bytes) -> Result<Version, WriteError> {
        let unknown = |error: Unavailable| WriteError::Unknown(error.0);
        let name = checked(name).map_err(unknown)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(WriteError::Unknown(format!("a value has at most {VALUE_BYTES_MAX} bytes")));
        }
        let expected = match expected {
            None => 0,
            // A version of another engine is not the present one.
            Some(version) => version.0.parse().map_err(|_| WriteError::Changed)?,
        };
        let written = self.blocking(move |own| own.write_now(&name, expected, &value)).await.map_err(unknown)?;
        match written.map_err(|error| WriteError::Unknown(error.to_string()))? {
            true => Ok(Version((expected + 1).to_string())),
            false => Err(WriteError::Changed),
        }
    }

    async fn names(&self, prefix: &str) -> Result<Vec<String>, Unavailable> {
        let prefix = prefix.to_owned();
        self.blocking(move |own| own.names_now(&prefix)).await?.map_err(unavailable)
    }
}

fn checked(name: &str) -> Result<String, Unavailable> {
    is_name(name).then(|| name.to_owned()).ok_or_else(|| Unavailable(format!("{name:?} is no name of a value")))
}
