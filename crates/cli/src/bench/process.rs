//! The resource usage of a process, as Linux reports it in /proc.

use std::{fs, time::Duration};

/// The unit of process times in /proc: Linux reports them in hundredths of a second on every machine.
const TICK: Duration = Duration::from_millis(10);

/// The resources that a process has used since its start.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    /// Processor time in user and kernel mode.
    pub(super) cpu: Duration,
    /// Bytes written to storage.
    pub(super) written_bytes: u64,
}

/// The memory of a process.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Memory {
    pub(super) resident_bytes: u64,
    /// The highest resident size so far.
    pub(super) resident_max_bytes: u64,
}

/// `None` if the process does not exist, or without /proc.
pub(super) fn usage(pid: u32) -> Option<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name in parentheses may contain any character, so fields are counted from the last parenthesis: the
    // 12th and 13th after it are the times.
    let numbers: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = numbers.get(11)?.parse::<u32>().ok()? + numbers.get(12)?.parse::<u32>().ok()?;
    let written_bytes = field(&format!("/proc/{pid}/io"), "write_bytes:")?;
    Some(Usage { cpu: TICK * ticks, written_bytes })
}

/// `None` if the process does not exist, or without /proc.
pub(super) fn memory(pid: u32) -> Option<Memory> {
    let status = format!("/proc/{pid}/status");
    let bytes = |name| field(&status, name).map(|kib| kib * 1024);
    Some(Memory { resident_bytes: bytes("VmRSS:")?, resident_max_bytes: bytes("VmHWM:")? })
}

fn field(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_uses_is_found_and_grows() {
        let pid = std::process::id();
        let before = usage(pid).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &vec![7; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let (after, memory) = (usage(pid).unwrap(), memory(pid).unwrap());
        assert!(after.cpu >= before.cpu && after.written_bytes >= before.written_bytes);
        assert!(memory.resident_bytes > 1 << 20 && memory.resident_max_bytes >= memory.resident_bytes, "{memory:?}");
        assert!(usage(u32::MAX).is_none());
    }
}
