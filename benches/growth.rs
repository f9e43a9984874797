//! The cost of a handoff for the engine and its store as the store grows, without network and signatures.
//!
//!     cargo bench --bench growth -- [--tasks N] [--mailboxes N] [--open N] [--ended] [--keep-ms MS] [--data FOLDER]
//!
//! The bench fills a store with whole handoffs, 256 at a time, and prints the cost of a handoff as the store grows.
//! `--ended` ends each task after its handoff; `--keep-ms` is the retention time of ended tasks and message ids in that
//! case. `--mailboxes` sends one message to each of N disconnected agents. `--open` leaves N handoffs open, and
//! measures the next start.

#[path = "growth/load.rs"]
mod load;

use std::{path::PathBuf, process::Command as Process, time::Duration};

use load::{Load, resident_bytes};

struct Options {
    tasks: u64,
    mailboxes: u64,
    open: u64,
    ended: bool,
    keep: Option<Duration>,
    data: Option<PathBuf>,
}

fn options() -> Options {
    let mut options = Options { tasks: 20_000, mailboxes: 0, open: 0, ended: false, keep: None, data: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number =
            || words.next().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{word} needs a number"));
        match word.as_str() {
            "--tasks" => options.tasks = number(),
            "--mailboxes" => options.mailboxes = number(),
            "--open" => options.open = number(),
            "--keep-ms" => options.keep = Some(Duration::from_millis(number())),
            "--ended" => options.ended = true,
            "--data" => options.data = words.next().map(PathBuf::from),
            "--bench" => {} // added by cargo
            other => panic!("{other} is not known"),
        }
    }
    options
}

fn disk_bytes(folder: &std::path::Path) -> u64 {
    let listed = Process::new("du").arg("-sb").arg(folder).output().expect("du runs");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    text.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).expect("du says a number")
}

fn main() {
    let options = options();
    let temporary = tempfile::tempdir().expect("there is room for a folder");
    let folder = options.data.clone().unwrap_or_else(|| temporary.path().join("store"));
    let mut load = Load::open(&folder, options.keep);
    println!(
        "{:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "tasks", "wall us", "engine us", "all us", "worst ms", "disk MB", "sent MB", "RSS MB"
    );
    let mut next = 1000;
    while load.tasks() < options.tasks {
        let goal = next.min(options.tasks);
        let cost = load.hand_over(goal - load.tasks(), options.ended);
        report(&load, &folder, &cost);
        next = if next < 100_000 { next * 10 } else { next + 100_000 };
    }
    for (what, count) in [("mailboxes", options.mailboxes), ("open handoffs", options.open)] {
        if count == 0 {
            continue;
        }
        println!("{count} {what}");
        let mut done = 0;
        while done < count {
            let some = (count - done).min((count / 10).max(1000));
            let before = resident_bytes();
            let cost = if what == "mailboxes" { load.write_to_the_absent(done, some) } else { load.leave_open(some) };
            report(&load, &folder, &cost);
            done += some;
            println!("          {} bytes of memory each", resident_bytes().saturating_sub(before) / some);
        }
    }
    if options.open > 0 || options.mailboxes > 0 {
        let (spent, bytes) = load.start_again(&folder);
        println!("started again in {spent:?}, with {} MB of memory more than empty", bytes / 1_000_000);
        let cost = load.hand_over(1000, options.ended);
        report(&load, &folder, &cost);
    }
}

fn report(load: &Load, folder: &std::path::Path, cost: &load::Cost) {
    println!(
        "{:>9} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9} {:>9} {:>9}",
        load.tasks(),
        cost.wall_us,
        cost.engine_us,
        cost.process_us,
        cost.worst_ms,
        disk_bytes(folder) / 1_000_000,
        load.written_bytes() / 1_000_000,
        resident_bytes() / 1_000_000
    );
}
