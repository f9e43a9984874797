//! The house: which room may import which. ARCHITECTURE.md has the reasons; this holds the table.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Each room, and the rooms of this crate that it may import.
const ROOMS: [(&str, &[&str]); 20] = [
    ("codes", &[]),
    ("disk", &[]),
    ("ids", &["time"]),
    ("time", &[]),
    ("proto", &[]),
    // The same as nothing, but in a test build.
    ("policy", &["ids"]),
    ("domain", &["codes", "ids", "time"]),
    ("envelope", &["codes", "disk", "domain", "ids", "proto", "time"]),
    ("store", &["disk", "ids"]),
    ("records", &["codes", "domain", "envelope", "ids", "proto", "store", "time"]),
    ("broker", &["codes", "domain", "envelope", "ids", "policy", "proto", "records", "store", "time"]),
    ("audit", &["codes", "domain", "envelope", "ids", "proto", "time"]),
    ("wire", &["broker", "codes", "domain", "envelope", "ids", "proto", "records", "time"]),
    ("config", &["broker", "domain", "policy"]),
    ("server", &["broker", "config", "disk", "envelope", "ids", "policy", "proto", "records", "store", "time", "wire"]),
    ("client", &["codes", "envelope", "ids", "proto", "time"]),
    ("conformance", &["audit", "client", "codes", "envelope", "ids", "proto", "time"]),
    // Only `dev` and `serve` know the server, and that only to start it.
    (
        "cli",
        &[
            "audit",
            "client",
            "codes",
            "config",
            "conformance",
            "envelope",
            "ids",
            "policy",
            "proto",
            "records",
            "server",
            "store",
            "time",
            "wire",
        ],
    ),
    // No part of the program: it hands made-up bytes to whoever reads any.
    (
        "fuzzing",
        &["audit", "broker", "config", "envelope", "ids", "policy", "proto", "records", "store", "time", "wire"],
    ),
    ("main", &[]),
];

/// What rooms must not see of the outside world.
const FORBIDDEN: [(&str, &[&str]); 12] = [
    ("domain", &["tokio", "tonic", "prost", "fjall", "std::fs", "std::net", "std::thread"]),
    ("envelope", &["tokio", "tonic", "fjall", "std::net"]),
    ("policy", &["tokio", "tonic", "prost", "fjall", "std::net"]),
    ("store", &["tokio", "tonic", "prost"]),
    ("records", &["tokio", "tonic"]),
    ("audit", &["tokio", "tonic", "fjall", "std::fs", "std::net"]),
    ("broker", &["tonic", "rustls", "hyper", "std::net"]),
    // It says what is to be sent; the driver sends it.
    ("broker/engine", &["tokio", "std::thread", "std::fs"]),
    // Parts of a room: the port knows no call and no route, and HTTP no gRPC.
    ("wire/edge", &["tonic", "prost", "axum", "grpc::", "http::router", "crate::proto"]),
    ("wire/http", &["tonic", "prost", "grpc::", "crate::proto", "crate::broker"]),
    ("config", &["tokio", "tonic"]),
    ("client", &["fjall", "rustls::"]),
];

fn files_of(room: &str) -> Vec<PathBuf> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let single = src.join(format!("{room}.rs"));
    let mut files = if single.exists() { vec![single] } else { Vec::new() };
    let mut folders = vec![src.join(room)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files
}

/// Whether the module that the file is in declares it for test builds alone.
fn is_for_tests(path: &Path) -> bool {
    let (folder, name) = (path.parent().unwrap(), path.file_stem().unwrap().to_str().unwrap());
    let parents = [folder.join("mod.rs"), folder.with_extension("rs")];
    parents.iter().filter_map(|parent| fs::read_to_string(parent).ok()).any(|text| {
        ["mod", "pub(crate) mod"].iter().any(|module| text.contains(&format!("#[cfg(test)]\n{module} {name};")))
    })
}

/// The file's own code: without its unit tests and its comments. A file that is for tests alone has none.
fn code_of(path: &Path) -> String {
    if is_for_tests(path) {
        return String::new();
    }
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    code.lines().filter(is_code).collect::<Vec<_>>().join("\n")
}

/// The rooms that stand behind `crate::` in the code, also in `use crate::{a::b, c}`.
fn imports(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for rest in code.split("crate::").skip(1) {
        let names: Vec<&str> = match rest.strip_prefix('{') {
            Some(list) => top_level_entries(list),
            None => vec![rest],
        };
        let name = |text: &str| -> String {
            text.trim().chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
        };
        found.extend(names.into_iter().map(name).filter(|name| !name.is_empty()));
    }
    found
}

fn top_level_entries(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut entries) = (0, 0, Vec::new());
    for (place, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                entries.push(&list[start..place]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                entries.push(&list[start..place]);
                start = place + 1;
            }
            _ => {}
        }
    }
    entries
}

#[test]
fn a_room_imports_only_what_the_table_allows() {
    for (room, allowed) in ROOMS {
        let files = files_of(room);
        assert!(!files.is_empty(), "there is no room {room}");
        for path in files {
            for import in imports(&code_of(&path)) {
                let known = ROOMS.iter().any(|(name, _)| *name == import);
                let fine = !known || import == room || allowed.contains(&import.as_str());
                assert!(fine, "{} imports {import}, which {room} may not", path.display());
            }
        }
    }
}

#[test]
fn every_room_is_in_the_table() {
    let lib = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    let rooms = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    for room in rooms {
        assert!(ROOMS.iter().any(|(name, _)| *name == room), "room {room} is not in the table");
    }
}

#[test]
fn rooms_do_not_see_what_is_not_theirs() {
    for (room, forbidden) in FORBIDDEN {
        let files = files_of(room);
        assert!(!files.is_empty(), "there is no room {room}");
        for path in files {
            let code = code_of(&path);
            for word in forbidden {
                // The store's own engine and the key files are the places where files are theirs.
                assert!(!code.contains(word), "{} mentions {word}", path.display());
            }
        }
    }
}

#[test]
fn only_one_file_builds_a_grpc_status() {
    let mut files: Vec<PathBuf> = ROOMS.iter().flat_map(|(room, _)| files_of(room)).collect();
    files.retain(|path| !path.ends_with("wire/status.rs"));
    for path in files {
        let code = code_of(&path);
        for maker in
            ["Status::new(", "Status::with_", "Status::internal(", "Status::invalid_argument(", "Status::not_found("]
        {
            let fine = !code.contains(maker) || path.ends_with("client/error.rs") // which reads one that came
                || path.ends_with("conformance/client/refusal.rs"); // which says what another broker would
            assert!(fine, "{} builds a status", path.display());
        }
    }
}

#[test]
fn no_bare_allow_and_no_file_of_too_many_lines() {
    for (room, _) in ROOMS {
        for path in files_of(room) {
            let text = fs::read_to_string(&path).unwrap();
            assert!(!text.contains("#[allow(") && !text.contains("#![allow("), "{}", path.display());
            let lines = code_of(&path).lines().count();
            assert!(lines <= 600, "{} has {lines} lines of code: is it one thing?", path.display());
        }
    }
}
