//! Conversions of a store of an older format, at the start.
//!
//! Owns the list of conversions, and that a conversion that is cut off begins again: first a copy of the store is made
//! beside it, then `CONVERTING` names the copy, and only after the last step is the number in `FORMAT` the new one. A start that finds
//! `CONVERTING` beside an older format takes the copy back, and begins again.
//!
//! A step must not depend on code that later versions change: it has its own copy of the messages that it reads. To
//! change the format, raise [`FORMAT`], add the step from the former number to [`CONVERSIONS`], and keep the folder of
//! the former number in `tests/formats`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    backup::{self, Backup},
    layout::{
        FORMAT, FORMAT_FILE, LOCK_FILE, OpenError, UNFINISHED_FILE, format_error, name_of_format, number_of_format,
    },
};
use crate::disk;

/// Why a step failed.
pub type ConversionError = Box<dyn std::error::Error + Send + Sync>;

/// A step from one format to the next one.
#[derive(Debug, Clone, Copy)]
pub struct Conversion {
    /// The number of the format that the step reads. It writes the next one.
    pub from: u32,
    /// Converts the store in this folder, which no process has open. See [`EmbeddedStore::open_to_convert`].
    ///
    /// [`EmbeddedStore::open_to_convert`]: super::EmbeddedStore::open_to_convert
    pub convert: fn(&Path) -> Result<(), ConversionError>,
}

/// The steps of this version. Formats below 22 were never released.
pub(super) const CONVERSIONS: &[Conversion] = &[];

/// In a store that is being converted: the name of its copy.
const CONVERTING_FILE: &str = "CONVERTING";

/// The steps from a format to the present one; `None` if one is missing. No step is needed for the present format.
pub(super) fn steps(conversions: &[Conversion], from: u32) -> Option<Vec<Conversion>> {
    let step = |number| conversions.iter().find(|step| step.from == number).copied();
    (from <= FORMAT).then(|| (from..FORMAT).map(step).collect())?
}

/// Brings a store to the present format. The caller has locked it.
pub(super) fn bring_up_to_date(store: &Path, conversions: &[Conversion]) -> Result<(), OpenError> {
    let marker = store.join(CONVERTING_FILE);
    let marker_error = |source| OpenError::File { path: marker.clone(), source };
    let format_path = store.join(FORMAT_FILE);
    let stored = fs::read(&format_path).map_err(|source| OpenError::File { path: format_path.clone(), source })?;
    let number = number_of_format(&stored).ok_or_else(|| format_error(store, &stored))?;
    if number == FORMAT {
        // The last conversion was cut off behind its last step, or there was none.
        return disk::remove_if_there(&marker).map_err(marker_error);
    }
    let steps = steps(conversions, number).ok_or_else(|| format_error(store, &stored))?;
    let copy = match fs::read_to_string(&marker) {
        Ok(name) => {
            let copy = store.with_file_name(name.trim());
            tracing::warn!(copy = %copy.display(), "a conversion of the store was cut off; it begins again from the copy");
            take_back(&copy, store, &stored)?;
            copy
        }
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
            let copy = free_name(store);
            tracing::info!(copy = %copy.display(), "copying the store before its conversion");
            let backup = Backup::begin(&copy)?;
            backup::copy_into(&copy, store, &stored)?;
            backup.finish()?;
            let name = copy.file_name().unwrap_or_default().to_string_lossy().into_owned();
            disk::write_whole(&marker, format!("{name}\n").as_bytes()).map_err(marker_error)?;
            copy
        }
        Err(error) => return Err(marker_error(error)),
    };
    for step in steps {
        tracing::info!(from = step.from, to = step.from + 1, "converting the store");
        let failed = |source| OpenError::Conversion { path: store.into(), from: step.from, copy: copy.clone(), source };
        (step.convert)(store).map_err(failed)?;
    }
    disk::write_whole(&format_path, name_of_format(FORMAT).as_bytes())
        .map_err(|source| OpenError::File { path: format_path, source })?;
    disk::remove_if_there(&marker).and_then(|()| disk::sync_folder(store)).map_err(marker_error)?;
    tracing::info!(from = number, to = FORMAT, copy = %copy.display(), "converted the store; remove the copy when all is well");
    Ok(())
}

/// Puts the files of the copy in the place of those of the store.
fn take_back(copy: &Path, store: &Path, format: &[u8]) -> Result<(), OpenError> {
    let error = |path: &Path, source| OpenError::File { path: path.into(), source };
    // Before anything is removed.
    fs::metadata(copy.join(FORMAT_FILE)).map_err(|source| error(copy, source))?;
    for entry in fs::read_dir(store).map_err(|source| error(store, source))? {
        let path = entry.map_err(|source| error(store, source))?.path();
        let kept = [LOCK_FILE, FORMAT_FILE, CONVERTING_FILE].iter().any(|name| path.ends_with(name));
        let removed = match path.is_dir() {
            true => fs::remove_dir_all(&path),
            false if kept => Ok(()),
            false => disk::remove_if_there(&path),
        };
        removed.map_err(|source| error(&path, source))?;
    }
    backup::copy_into(store, copy, format).map(drop)
}

/// The folder of the copy: beside the store, and not that of an earlier conversion.
fn free_name(store: &Path) -> PathBuf {
    let name = store.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let numbered = |number: u32| {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        store.with_file_name(format!("{name}.before-format-{FORMAT}{suffix}"))
    };
    let is_free = |path: &PathBuf| !path.exists() || path.join(UNFINISHED_FILE).exists();
    (1..).map(numbered).find(is_free).expect("a number is free")
}
