//! `baton top`: a live view of handoffs, agents and rates.
//!
//! The view follows `WatchHandoffs`, and lists the agents at each refresh. `view` has its content and its lines,
//! `screen` the terminal.

mod screen;
mod view;

use std::time::Duration;

use clap::Args;
use tokio_stream::StreamExt as _;
use tonic::Streaming;

use self::{screen::Screen, view::View};
use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs},
    duration, output,
    output::Output,
};
use baton_client::{
    Client,
    proto::v1,
    time::{Clock as _, Moment, SystemClock},
};

/// Show the open handoffs, the agents and the rates, and refresh them until ctrl-C.
///
/// Handoffs with the least time left come first, then agents with the most mail. On a terminal the view fills the screen,
/// and ctrl-C leaves the terminal as it was. Elsewhere, and with -o json, each refresh is one document on a line.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton top
  baton top --every 10s
  baton top --once -o json
  baton top --id bob --key bob.pem")]
pub(super) struct TopArgs {
    /// The time between two refreshes, from 100ms.
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = duration::parse)]
    every: Duration,
    /// Show the view once, and end. It has no rates.
    #[arg(long)]
    once: bool,
    /// The most handoffs and the most agents to show. Default: as many as fit on the screen, otherwise 50.
    #[arg(long, value_name = "NUMBER")]
    limit: Option<usize>,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

const EVERY_MIN: Duration = Duration::from_millis(100);
/// The most handoffs and agents of a view that is not bound by a screen.
const ROWS: usize = 50;

pub(super) async fn run(args: TopArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    if args.every < EVERY_MIN {
        return Err(Failure::usage("--every must be at least 100ms"));
    }
    let client = args.identity.client(connection).await?;
    let mut top = Top { client, view: View::default(), updates: None, limit: args.limit };
    top.connect().await?;
    top.catch_up().await?;
    top.look_at_agents().await?;
    if args.once {
        return top.show(*output);
    }
    let screen = output.is_table().then(Screen::enter);
    // The screen is left by its drop, also after a failure.
    tokio::select! {
        ended = top.follow(args.every, screen.as_ref(), *output) => ended,
        _ = tokio::signal::ctrl_c() => Ok(()),
        () = terminated() => Ok(()),
    }
}

/// Waits for SIGTERM.
async fn terminated() {
    match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(mut signal) => drop(signal.recv().await),
        // Without the signal the process ends at once, as any other does.
        Err(_) => std::future::pending().await,
    }
}

struct Top {
    client: Client,
    view: View,
    /// `None`: the broker has ended the watch, and does not answer yet.
    updates: Option<Streaming<v1::WatchHandoffsResponse>>,
    limit: Option<usize>,
}

impl Top {
    async fn connect(&mut self) -> Result<(), Failure> {
        let request = v1::WatchHandoffsRequest { after_cursor: self.view.cursor, ..Default::default() };
        self.updates = Some(self.client.answer(self.client.handoffs().watch_handoffs(request).await)?);
        self.view.is_connected = true;
        Ok(())
    }

    /// Takes updates until all handoffs that are there are known.
    async fn catch_up(&mut self) -> Result<(), Failure> {
        while !self.view.has_caught_up {
            let next = match &mut self.updates {
                Some(updates) => updates.next().await,
                None => None,
            };
            let update = next.ok_or_else(|| Failure::failed("the broker has ended the watch"))?;
            let update = self.client.answer(update.map(tonic::Response::new))?;
            self.view.take(update, Moment::now());
        }
        Ok(())
    }

    async fn look_at_agents(&mut self) -> Result<(), Failure> {
        let client = &self.client;
        self.view.agents = output::pages(u32::MAX, async |page_size, page_token| {
            let request = v1::ListAgentsRequest { page_size, page_token, ..Default::default() };
            let page = client.answer(client.agents().list_agents(request).await)?;
            Ok((page.agents, page.next_page_token))
        })
        .await?;
        Ok(())
    }

    async fn follow(&mut self, every: Duration, screen: Option<&Screen>, output: Output) -> Result<(), Failure> {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let update = async {
                match &mut self.updates {
                    Some(updates) => updates.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                update = update => match update {
                    Some(Ok(update)) => self.view.take(update, Moment::now()),
                    // The next refresh connects again, and continues after the last update.
                    Some(Err(_)) | None => self.updates = None,
                },
                _ = ticks.tick() => {
                    self.refresh().await;
                    match screen {
                        Some(screen) => screen.draw(&self.lines(screen.size())),
                        None => self.show(output)?,
                    }
                }
            }
        }
    }

    /// Lists the agents. A broker that does not answer keeps its last handoffs and agents on the screen.
    async fn refresh(&mut self) {
        let is_connected = self.updates.is_some() || self.connect().await.is_ok();
        self.view.is_connected = is_connected && self.look_at_agents().await.is_ok();
    }

    fn lines(&self, (columns, rows): (usize, usize)) -> Vec<String> {
        let limit = self.limit.unwrap_or(usize::MAX);
        self.view.lines(columns, rows, limit, (SystemClock.now(), Moment::now()))
    }

    /// Prints the view once.
    fn show(&self, output: Output) -> Result<(), Failure> {
        let (limit, now) = (self.limit.unwrap_or(ROWS), (SystemClock.now(), Moment::now()));
        if output.is_table() {
            let (columns, _) = screen::size();
            say_lines!("{}", self.view.lines(columns, usize::MAX, limit, now).join("\n"));
            return Ok(());
        }
        output.next(&self.view.document(limit, now)?)
    }
}

#[cfg(test)]
mod tests {
    use v1::watch_handoffs_response::Event;

    use super::*;

    #[test]
    fn a_screen_of_eighty_columns_has_all_lines_within_it() {
        let mut view = View::default();
        let handoff = v1::Handoff {
            handoff_id: "0198c0de-0000-7000-8000-000000000001".into(),
            task_id: "a-rather-long-task-id-of-a-ticket-system-4711".into(),
            sender_id: "a-sender-with-a-long-name".into(),
            candidate_id: "a-candidate-with-a-long-name".into(),
            state: v1::HandoffState::ContextSent.into(),
            ..Default::default()
        };
        let event = Some(Event::Handoff(Box::new(handoff)));
        view.take(v1::WatchHandoffsResponse { event, cursor: 0 }, Moment::now());
        let card = v1::AgentCard { agent_id: "an-agent-with-quite-a-long-name".into(), ..Default::default() };
        view.agents = vec![v1::Agent { card: Some(card), ..Default::default() }; 30];
        let lines = view.lines(80, 24, usize::MAX, (SystemClock.now(), Moment::now()));
        assert!(lines.len() <= 24, "{lines:#?}");
        let widest = lines.iter().map(|line| unicode_width::UnicodeWidthStr::width(line.as_str())).max();
        assert!(widest.unwrap() <= 80, "{lines:#?}");
    }
}
