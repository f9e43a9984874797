//! Acts: a page says what an act will do, names the same act of the command line, and has the button that does it. The
//! act is the command of the gRPC call, so it has the same rights and the same entry in the audit log.
//!
//! A refused act shows its page again, with the reader's entries, the reason, and what to do. Nothing has changed
//! then.

mod agents;
mod dead_letters;
mod negotiations;
mod plans;
mod runs;
mod subtasks;
mod tasks;

use askama::Template;
use axum::{Router, response::Response, routing::get};
use http::StatusCode;

pub(super) use self::{
    agents::{of_agent, of_key, to_invite},
    dead_letters::of_dead_letter,
    negotiations::of_negotiation,
    plans::of_plan,
    runs::of_run,
    subtasks::of_subtask,
    tasks::of_task,
};
use crate::{
    broker::{BrokerError, Refused, access::Caller, queries::View},
    codes::{ErrorCode, Refusal},
    wire::console::{Console, page, read, refused, see_other, status_of},
};

/// The routes of the acts: GET shows what an act will do, POST does it.
pub(super) fn router() -> Router<Console> {
    Router::new()
        .route("/tasks/{id}/reassign", get(tasks::review).post(tasks::reassign))
        .route("/plans/{id}/cancel", get(plans::review_cancel).post(plans::cancel))
        .route("/plans/{id}/retry", get(plans::review_retry).post(plans::retry))
        .route("/plans/{id}/subtasks/{subtask}/cancel", get(subtasks::review_cancel).post(subtasks::cancel))
        .route("/plans/{id}/subtasks/{subtask}/retry", get(subtasks::review_retry).post(subtasks::retry))
        .route("/plans/{id}/subtasks/{subtask}/reassign", get(subtasks::review_reassign).post(subtasks::reassign))
        .route("/runs/{id}/cancel", get(runs::review).post(runs::cancel))
        .route("/negotiations/{id}/cancel", get(negotiations::review).post(negotiations::cancel))
        .route("/agents/{id}/deregister", get(agents::review_deregister).post(agents::deregister))
        .route("/agents/{id}/keys/{key}/revoke", get(agents::review_revoke).post(agents::revoke))
        .route("/invite", get(agents::review_invite).post(agents::invite))
        .route("/dead-letters/{number}/redrive", get(dead_letters::review_redrive).post(dead_letters::redrive))
        .route("/dead-letters/{number}/discard", get(dead_letters::review_discard).post(dead_letters::discard))
}

/// An act that can be done now, as a page offers it.
pub(super) struct Offered {
    pub(super) name: &'static str,
    pub(super) href: String,
    /// The right that the reader lacks. Empty: none.
    pub(super) missing: String,
}

impl Offered {
    fn new(name: &'static str, href: String, right: Result<(), BrokerError>) -> Self {
        let missing = match right {
            Ok(()) => String::new(),
            Err(BrokerError::PermissionDenied(denied)) => denied.action_name.to_owned(),
            Err(other) => other.code().name().to_owned(),
        };
        Self { name, href, missing }
    }
}

/// The page of an act.
#[derive(Template, Default)]
#[template(path = "act.html")]
struct Act {
    who: String,
    /// The part of the navigation: the first segment of the path of the page before.
    section: &'static str,
    /// The question that the button answers.
    title: String,
    /// What the act is about, in an agent's words. Empty: the title says it all.
    about: String,
    effects: Vec<String>,
    /// The entry that the act gets in the audit log.
    audit: String,
    path: String,
    back: String,
    fields: Vec<Field>,
    button: &'static str,
    command: Vec<Word>,
    problem: Option<Problem>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Check,
    Hidden,
    Number,
}

/// A field of the form.
struct Field {
    kind: Kind,
    name: &'static str,
    label: &'static str,
    value: String,
    placeholder: &'static str,
    is_required: bool,
    /// The most letters that a browser lets in. The broker counts bytes.
    most: usize,
    /// What a browser suggests.
    choices: Vec<String>,
}

impl Field {
    fn text(name: &'static str, label: &'static str, value: &str, most: usize) -> Self {
        let (value, choices) = (value.to_owned(), Vec::new());
        Self { kind: Kind::Text, name, label, value, placeholder: "", is_required: false, most, choices }
    }

    fn reason(value: &str, most: usize) -> Self {
        Self { placeholder: "for people to read", ..Self::text("reason", "Reason", value, most) }
    }

    fn check(name: &'static str, label: &'static str, is_set: bool) -> Self {
        let value = if is_set { "yes" } else { "" };
        Self { kind: Kind::Check, ..Self::text(name, label, value, 0) }
    }

    fn hidden(name: &'static str, value: &str) -> Self {
        Self { kind: Kind::Hidden, ..Self::text(name, "", value, 0) }
    }
}

/// A part of the command line. The script of the pages keeps those of a field up to date.
struct Word {
    text: String,
    /// The field that the part repeats. Empty: none.
    of: &'static str,
    flag: &'static str,
    /// The part while the field is empty.
    unset: &'static str,
}

impl Word {
    fn fixed(text: impl Into<String>) -> Self {
        Self { text: text.into(), of: "", flag: "", unset: "" }
    }

    /// A value of the broker, as a shell reads it.
    fn value(text: &str) -> Self {
        Self::fixed(format!(" {}", quoted(text)))
    }

    /// The value of a field, after its flag.
    fn field(of: &'static str, flag: &'static str, value: &str, unset: &'static str) -> Self {
        let text = if value.is_empty() { unset.to_owned() } else { format!("{flag}{}", quoted(value)) };
        Self { text, of, flag, unset }
    }

    /// A flag that a check sets.
    fn switch(of: &'static str, flag: &'static str, is_set: bool) -> Self {
        Self { text: if is_set { flag.to_owned() } else { String::new() }, of, flag, unset: "" }
    }
}

/// The text as one word of a shell. The script of the pages has the same rule.
fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_./:@,=+-".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Why an act was refused, and what its reader can do.
struct Problem {
    code: &'static str,
    message: String,
    advice: &'static str,
}

impl Problem {
    fn new(error: &dyn Refusal) -> Self {
        Self { code: error.code().name(), message: error.to_string(), advice: advice(error.code()) }
    }
}

fn advice(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::StaleEpoch | ErrorCode::EpochAhead => {
            "The task has moved on. This page shows it as it is now: read it again, and confirm, or go back."
        }
        ErrorCode::TaskFinal
        | ErrorCode::PlanFinal
        | ErrorCode::RunFinal
        | ErrorCode::NegotiationClosed
        | ErrorCode::DeadLetterSettled
        | ErrorCode::KeyRevoked => "It has ended already, so this act is not needed. Go back to see how.",
        ErrorCode::PermissionDenied | ErrorCode::NotAsked => {
            "A policy gives the right. The page Policy says which rule decides."
        }
        ErrorCode::ReceiverInvalid | ErrorCode::ReceiverUnknown | ErrorCode::AgentUnknown | ErrorCode::AgentGone => {
            "Choose another agent, or type:NAME for any agent of a type. The page Agents shows who is there."
        }
        ErrorCode::AgentBusy => "Reassign its tasks first, or set the mark below.",
        ErrorCode::FieldInvalid => "Correct the field, and confirm again.",
        ErrorCode::SubtaskState => "The subtask has moved on. Go back to see how, and what can be done now.",
        ErrorCode::PlanRunning => "Wait until the plan has ended, or cancel it first.",
        ErrorCode::LimitExceeded | ErrorCode::QuotaExceeded => "Wait a moment, and confirm again.",
        _ => "Nothing has changed. Correct the form, or go back.",
    }
}

/// Shows what an act will do.
async fn reviewed(
    console: &Console,
    caller: &Caller,
    make: impl FnOnce(View<'_>) -> Result<Act, BrokerError> + Send + 'static,
) -> Response {
    let made = read(console, caller, make).await;
    made.map_or_else(|error| refused(caller, &error), |act| page(StatusCode::OK, &act))
}

/// The answer to an act: the page that it leads to, or its form again with the reason of the refusal.
async fn answered(
    console: &Console,
    caller: &Caller,
    outcome: Result<(), Refused>,
    to: &str,
    again: impl FnOnce(View<'_>) -> Result<Act, BrokerError> + Send + 'static,
) -> Response {
    let Err(error) = outcome else { return see_other(to) };
    let made = read(console, caller, again).await;
    match made {
        Ok(act) => page(status_of(error.code()), &Act { problem: Some(Problem::new(&*error)), ..act }),
        // The page itself is refused now, for example because the reader lacks the right.
        Err(_) => refused(caller, &*error),
    }
}

/// The name in a path, encoded.
fn encoded(name: &str) -> String {
    form_urlencoded::byte_serialize(name.as_bytes()).collect::<String>().replace('+', "%20")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_one_word_of_a_shell() {
        assert_eq!(quoted("type:expert"), "type:expert");
        assert_eq!(quoted("no time"), "'no time'");
        assert_eq!(
            quoted("it's $(rm -r /); `x`\n"),
            r"'it'\''s $(rm -r /); `x`
'"
        );
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_field_of_the_command_shows_its_value_or_what_it_stands_for() {
        assert_eq!(Word::field("to", " --to ", "bob", " --to AGENT").text, " --to bob");
        assert_eq!(Word::field("to", " --to ", "", " --to AGENT").text, " --to AGENT");
        assert_eq!(Word::field("reason", " --reason ", "a b", "").text, " --reason 'a b'");
        assert_eq!(
            (Word::switch("force", " --force", true).text, Word::switch("force", " --force", false).text),
            (" --force".to_owned(), String::new())
        );
    }
}
