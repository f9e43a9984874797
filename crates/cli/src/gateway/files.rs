//! Files of a gateway: each is written whole or not at all, and only its owner can read it.

use std::{
    fs,
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::Path,
};

use super::super::Failure;

/// Makes a folder for its owner alone, if it is missing.
pub(super) fn make_folder(path: &Path) -> Result<(), Failure> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Failure::writing(path, &error)),
        _ => Ok(()),
    }
}

/// Checks that other users cannot read a folder. `maker` is the command that makes it.
pub(super) fn check_folder(path: &Path, maker: &str) -> Result<(), Failure> {
    let found = fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::file(path, format!("there is no such folder; `{maker}` makes it")),
        _ => Failure::file(path, error),
    })?;
    let mode = found.mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let path_text = path.display();
    Err(Failure::file(path, format!("other users can read it (mode {mode:04o}); run chmod 700 {path_text}")))
}

/// Writes a new file into its folder. Fails if a file has this name.
pub(super) fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let folder = folder_of(path);
    temporary(folder, text)?.persist_noclobber(path)?;
    fs::File::open(folder)?.sync_all()
}

/// Writes a file into its folder, in the place of an earlier one.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = folder_of(path);
    temporary(folder, text)?.persist(path)?;
    fs::File::open(folder)?.sync_all()
}

/// The text of a file, at most `bytes_max` of it; `None` without a file.
pub(super) fn read(path: &Path, bytes_max: u64) -> io::Result<Option<String>> {
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = String::new();
    file.take(bytes_max).read_to_string(&mut text)?;
    Ok(Some(text))
}

/// Removes a file. Returns whether the folder had it.
pub(super) fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

fn temporary(folder: &Path, text: &str) -> io::Result<tempfile::NamedTempFile> {
    // Temporary files have mode 0600.
    let mut new = tempfile::Builder::new().prefix(".new").tempfile_in(folder)?;
    new.write_all(text.as_bytes())?;
    new.as_file().sync_all()?;
    Ok(new)
}

/// Work with files, beside the threads that serve connections.
pub(super) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string()))
}
