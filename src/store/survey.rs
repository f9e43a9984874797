//! What a store's folder holds, seen without opening it and without changing anything.
//!
//! Owns whether a folder may be opened at all. fjall mends what it opens, and what it mends is lost; so it gets to see only
//! a folder of which every file that it reads at a start is whole, and whose last group is there.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Table,
    engine::GROUPS,
    files::{Damage, Entry, Folder, Item, Newest},
    rows::group_proven,
};

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Whether nothing was ever stored.
    pub(super) is_new: bool,
    /// The keyspaces and their numbers.
    pub(super) keyspaces: HashMap<String, u64>,
    /// The number of the last group.
    pub(super) last_group: u64,
    /// The journal that is, or should be, written to.
    pub(super) journal: Option<PathBuf>,
    /// A journal whose end was not written to its end, and where that begins.
    pub(super) unfinished: Option<(PathBuf, u64)>,
    /// Files that are not what was written.
    pub(super) damages: Vec<Damage>,
}

/// Reads the journals, and what says how the table files belong together. `found` hears of each item of a journal.
pub(super) fn survey(folder: &Folder, mut found: impl FnMut(Item, u64, &Arc<Path>)) -> Survey {
    let mut survey = Survey::default();
    match folder.is_new() {
        Ok(true) => return Survey { is_new: true, ..survey },
        Ok(false) => {}
        Err(damage) => survey.damages.push(damage),
    }
    let mut ends = HashMap::<u64, u64>::new();
    let journals = folder.read_journals(|item, seqno, path| {
        if let Some(group) = group_number(&item) {
            let last = ends.entry(item.keyspace).or_default();
            *last = group.max(*last);
        }
        found(item, seqno, path);
    });
    match journals {
        Ok(journals) => {
            survey.damages.extend(journals.damages);
            survey.journal = journals.newest;
            survey.unfinished = journals.unfinished;
        }
        Err(damage) => survey.damages.push(damage),
    }
    let mut damaged_names = Vec::new();
    survey.keyspaces = folder.keyspaces(&mut damaged_names);
    if !damaged_names.is_empty() {
        add_usual_numbers(folder, &mut survey.keyspaces);
        survey.damages.extend(damaged_names);
    }
    if let Some(groups) = survey.keyspaces.get(GROUPS).copied() {
        let in_tables = last_group_in_tables(folder, groups, &mut survey.damages);
        survey.last_group = ends.get(&groups).copied().unwrap_or(0).max(in_tables);
    }
    survey
}

/// Checks all that fjall reads when it opens the folder. Fails with the first damage.
pub(super) fn check(folder: &Folder) -> Result<Survey, Damage> {
    let survey = survey(folder, |_, _, _| {});
    if let Some(damage) = survey.damages.first() {
        return Err(damage.clone());
    }
    if !survey.is_new {
        folder.check_names()?;
        survey.keyspaces.values().try_for_each(|number| folder.check_frame(*number))?;
    }
    Ok(survey)
}

/// Checks every byte of every table file. Takes as long as reading all of them.
pub(super) fn check_tables(folder: &Folder) -> Result<(), Damage> {
    survey(folder, |_, _, _| {}).keyspaces.values().try_for_each(|number| folder.check_whole(*number))
}

/// Cuts off what was written behind this group, which is the last that was answered. Nobody knows whether the rest would
/// still be there after a power cut, though it can be read now.
pub(super) fn cut_behind(folder: &Folder, last: u64) -> Result<(), Damage> {
    let Some(groups) = folder.keyspaces(&mut Vec::new()).get(GROUPS).copied() else { return Ok(()) };
    folder.cut_behind(last, |item| group_number(item).filter(|_| item.keyspace == groups))
}

/// The group that an item of the journal proves to have been written, if it is one of the keyspace of groups.
fn group_number(item: &Item) -> Option<u64> {
    group_proven(&item.key, item.value.as_deref())
}

fn last_group_in_tables(folder: &Folder, groups: u64, damages: &mut Vec<Damage>) -> u64 {
    let sources = match folder.table_sources(groups) {
        Ok(sources) => sources,
        Err(damage) => {
            damages.push(damage);
            return 0;
        }
    };
    let mut last = 0;
    for entry in Newest::of(sources) {
        match entry {
            Ok(Entry { key, value, .. }) => last = group_proven(&key, value.as_deref()).unwrap_or(0).max(last),
            Err(damage) => damages.push(damage),
        }
    }
    last
}

/// A store makes its keyspaces in this order. Where a name cannot be read, this is the best guess, and the checksum of each
/// record says whether it was right.
fn add_usual_numbers(folder: &Folder, keyspaces: &mut HashMap<String, u64>) {
    let known: Vec<_> = keyspaces.values().copied().collect();
    let names = Table::ALL.iter().map(|table| table.name()).chain([GROUPS]);
    for (name, number) in names.zip(1..) {
        if !known.contains(&number) && folder.keyspace(number).exists() {
            keyspaces.entry(name.to_owned()).or_insert(number);
        }
    }
}
