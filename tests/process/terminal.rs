//! Commands on a terminal of their own: what they leave behind there.

use std::{
    fs::{File, OpenOptions},
    io::Read as _,
    os::unix::process::ExitStatusExt as _,
    process::Child,
    sync::mpsc,
    time::Duration,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Termios, tcgetattr},
};

use crate::broker::Broker;

/// The longest wait for an output. It only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// The longest output of a test, in bytes: some minutes of a view.
const OUTPUT_MAX: usize = 500_000;

/// A terminal, and what was written to it.
struct Terminal {
    /// The side of the program. It stays open, so that the other side does not end with the program.
    program: File,
    written: mpsc::Receiver<Vec<u8>>,
    text: String,
}

impl Terminal {
    fn open() -> Self {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap().into_string().unwrap();
        let program = OpenOptions::new().read(true).write(true).open(name).unwrap();
        let (sender, written) = mpsc::channel();
        let mut screen = File::from(screen);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = screen.read(&mut buffer) {
                if sender.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { program, written, text: String::new() }
    }

    /// Starts `baton top` here.
    fn top(&self, broker: &Broker) -> Child {
        self.start(broker, &["top", "--every", "100ms"])
    }

    fn start(&self, broker: &Broker, arguments: &[&str]) -> Child {
        let side = || self.program.try_clone().unwrap();
        broker.command(arguments).stdin(side()).stdout(side()).stderr(side()).spawn().unwrap()
    }

    /// Waits until this is written.
    #[track_caller]
    fn shows(&mut self, wanted: &str) {
        while !self.text.contains(wanted) {
            // The view is drawn again and again, so the output alone does not end.
            assert!(self.text.len() < OUTPUT_MAX, "no {wanted:?} in {:?}", self.text);
            let some = self.written.recv_timeout(PATIENCE);
            let some = some.unwrap_or_else(|_| panic!("no {wanted:?} in {:?}", self.text));
            self.text.push_str(&String::from_utf8_lossy(&some));
        }
    }

    fn modes(&self) -> Termios {
        tcgetattr(&self.program).unwrap()
    }
}

#[test]
fn top_leaves_the_terminal_as_it_was_however_it_ends() {
    for signal in [Signal::INT, Signal::TERM] {
        let broker = Broker::start();
        let mut terminal = Terminal::open();
        let before = terminal.modes();
        let mut top = terminal.top(&broker);
        terminal.shows("\x1b[?1049h\x1b[?25l");
        terminal.shows("\x1b[H");
        kill_process(Pid::from_child(&top), signal).unwrap();
        let status = top.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(0), None), "{signal:?}");
        // The last that is written: the cursor is there again, and the former screen.
        terminal.shows("\x1b[?25h\x1b[?1049l");
        assert!(terminal.text.ends_with("\x1b[?25h\x1b[?1049l"), "{:?}", terminal.text);
        let after = terminal.modes();
        assert_eq!((after.local_modes, after.output_modes), (before.local_modes, before.output_modes));
    }
}

#[test]
fn top_shows_that_the_broker_is_gone_and_leaves_the_terminal_when_it_ends() {
    let broker = Broker::start();
    let mut terminal = Terminal::open();
    let mut top = terminal.top(&broker);
    terminal.shows("\x1b[H");
    drop(broker);
    terminal.shows("THE BROKER DOES NOT ANSWER");
    kill_process(Pid::from_child(&top), Signal::INT).unwrap();
    assert!(top.wait().unwrap().success());
    terminal.shows("\x1b[?25h\x1b[?1049l");
}

#[test]
fn console_prints_its_address_on_a_line_of_its_own() {
    let broker = Broker::start();
    let mut terminal = Terminal::open();
    let mut console = terminal.start(&broker, &["console"]);
    terminal.shows("Open within a minute, once:\r\n  https://");
    assert!(console.wait().unwrap().success());
    assert!(!terminal.text.contains("\\n"), "{:?}", terminal.text);
}
