//! The content of a store's folder, read without opening the store and without changing a file.
//!
//! Owns whether a folder may be opened at all. fjall repairs the files that it opens, and a repair can discard data. So
//! fjall opens only a folder of which every file read at start is intact and which has the last committed group.

use std::{collections::HashMap, path::Path, sync::Arc};

use super::{
    Key, Record, Table,
    engine::ENGINE_FOLDER,
    files::{Damage, Folder},
    folder::LOG_FOLDER,
    log,
    rows::decode_writes,
};

/// The result of a survey.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Whether fjall's folder does not exist yet.
    pub(super) is_new: bool,
    /// The keyspaces: names to numbers.
    pub(super) keyspaces: HashMap<String, u64>,
    pub(super) log: log::Contents,
    /// Damaged files, those of the log among them.
    pub(super) damages: Vec<Damage>,
}

/// A group that the tables may not have completely.
pub(super) struct Group {
    pub(super) number: u64,
    pub(super) writes: Vec<(Key, Option<Record>)>,
    /// The length of its content in the log.
    pub(super) log_bytes: usize,
    /// The log file that holds it.
    pub(super) path: Arc<Path>,
}

/// Reads the log, and the files that say how the table files belong together. `found` is called for each group, in
/// order.
pub(super) fn survey(store: &Path, mut found: impl FnMut(Group)) -> Survey {
    let log_folder = store.join(LOG_FOLDER);
    let mut unknown = Vec::new();
    let mut log = log::read(&log_folder, |number, content, path| {
        let log_bytes = content.len();
        match decode_writes(content) {
            Some(writes) => found(Group { number, writes, log_bytes, path: path.clone() }),
            None => unknown.push(Damage::new(path, format!("what group {number} says is not known"))),
        }
    });
    let mut damages = std::mem::take(&mut log.damages);
    damages.extend(unknown);
    let mut survey = Survey { damages, log, ..Survey::default() };
    let folder = engine_folder(store);
    match folder.is_new() {
        Ok(is_new) => survey.is_new = is_new,
        Err(damage) => survey.damages.push(damage),
    }
    if survey.is_new {
        // The log says that records are in the tables, so a missing folder is a lost one.
        if survey.log.settled > 0 {
            survey.damages.push(Damage::new(folder.path(), "it is not there"));
        }
        return survey;
    }
    let mut damaged_names = Vec::new();
    survey.keyspaces = folder.keyspaces(&mut damaged_names);
    if !damaged_names.is_empty() {
        add_usual_numbers(&folder, &mut survey.keyspaces);
        survey.damages.extend(damaged_names);
    }
    if survey.log.newest().is_none() {
        // Records reach a table only through the log, so tables with data and no log mean that the log is lost.
        let has_data = |number: &u64| folder.has_data(*number);
        match survey.keyspaces.values().map(has_data).collect::<Result<Vec<_>, _>>() {
            Ok(found) if found.contains(&true) => survey.damages.push(Damage::new(&log_folder, "it is not there")),
            Ok(_) => {}
            Err(damage) => survey.damages.push(damage),
        }
    }
    survey
}

/// Checks every file that opening the store reads. Fails with the first damage.
pub(super) fn check(store: &Path, found: impl FnMut(Group)) -> Result<Survey, Damage> {
    let survey = survey(store, found);
    if let Some(damage) = survey.damages.first() {
        return Err(damage.clone());
    }
    if !survey.is_new {
        let folder = engine_folder(store);
        if !folder.has_journal()? {
            return Err(Damage::new(folder.path(), "its journal is not there"));
        }
        folder.check_names()?;
        survey.keyspaces.values().try_for_each(|number| folder.check_frame(*number))?;
    }
    Ok(survey)
}

pub(super) fn engine_folder(store: &Path) -> Folder {
    Folder::new(store.join(ENGINE_FOLDER))
}

/// Checks every byte of every table file. Reads all of them.
pub(super) fn check_tables(store: &Path) -> Result<(), Damage> {
    let folder = engine_folder(store);
    survey(store, drop).keyspaces.values().try_for_each(|number| folder.check_whole(*number))
}

/// Adds the usual numbers of keyspaces whose names cannot be read. A store creates its keyspaces in the order of
/// [`Table::ALL`], so the number follows from the table; the checksum of each record tells whether the guess is right.
fn add_usual_numbers(folder: &Folder, keyspaces: &mut HashMap<String, u64>) {
    let known: Vec<_> = keyspaces.values().copied().collect();
    let names = Table::ALL.iter().map(|table| table.name());
    for (name, number) in names.zip(1..) {
        if !known.contains(&number) && folder.keyspace(number).exists() {
            keyspaces.entry(name.to_owned()).or_insert(number);
        }
    }
}
