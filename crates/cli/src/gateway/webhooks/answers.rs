//! What the answers of a webhook mean.

use std::time::Duration;

use baton_client::proto::v1::{self, RejectReason};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::sender::{Answer, Verdict};

/// The longest reason that goes to another agent, in bytes.
const WORDS_MAX: usize = 4096;

/// The answer to an offer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Decision {
    Accept,
    Reject(Box<v1::HandoffReject>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Decided {
    accept: Option<bool>,
    reject: Option<Rejected>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rejected {
    /// As `decline_task` has it.
    reason: Option<String>,
    text: Option<String>,
    retry_after_seconds: Option<u32>,
}

/// The answer to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Work {
    /// A JSON object as it was sent, so that each digit stays; empty without a result.
    Done(String),
    /// The function has the task, and reports its end by itself.
    Taken,
    /// The function cannot do the task.
    Failed(String),
}

/// Reads the answer to an offer.
pub(super) fn decision(answer: &Answer) -> Verdict<Decision> {
    if answer.status.as_u16() != 200 {
        return Verdict::Again(status_of(answer));
    }
    let decided: Decided = match serde_json::from_slice(&answer.body) {
        Ok(decided) => decided,
        Err(problem) => return Verdict::Again(format!("the answer to an offer is wrong: {problem}")),
    };
    match (decided.accept, decided.reject) {
        (Some(true), None) => Verdict::Done(Decision::Accept),
        (None | Some(false), Some(reject)) => match reject_of(reject) {
            Ok(reject) => Verdict::Done(Decision::Reject(Box::new(reject))),
            Err(problem) => Verdict::Again(problem),
        },
        _ => Verdict::Again(r#"the answer to an offer is {"accept": true} or {"reject": {…}}"#.to_owned()),
    }
}

fn reject_of(rejected: Rejected) -> Result<v1::HandoffReject, String> {
    let name = rejected.reason.as_deref().unwrap_or("OTHER");
    let reason = RejectReason::from_str_name(&format!("REJECT_REASON_{name}"));
    let reason = reason.filter(|reason| *reason != RejectReason::Unspecified);
    let reason = reason.ok_or_else(|| format!("the reason of a reject is wrong: {name:.64?}"))?;
    let retry_after = rejected.retry_after_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    Ok(v1::HandoffReject {
        reason: reason.into(),
        reason_text: cut(rejected.text.unwrap_or_default()),
        retry_after: retry_after.and_then(|span| span.try_into().ok()),
        ..Default::default()
    })
}

/// Reads the answer to a task.
pub(super) fn work(answer: &Answer) -> Verdict<Work> {
    match answer.status.as_u16() {
        200 if answer.is_cut => {
            let most = super::super::sender::ANSWER_MAX;
            Verdict::Done(Work::Failed(format!("the webhook has answered with more than {most} bytes")))
        }
        200 => match result(&answer.body) {
            Some(result) => Verdict::Done(Work::Done(result)),
            None => Verdict::Again("the answer to a task is not a JSON object".to_owned()),
        },
        202 => Verdict::Done(Work::Taken),
        204 => Verdict::Done(Work::Done(String::new())),
        422 => Verdict::Done(Work::Failed(words(&answer.body))),
        _ => Verdict::Again(status_of(answer)),
    }
}

/// Reads the answer to a wake-up: any that says that it has come.
pub(super) fn woken(answer: &Answer) -> Verdict<()> {
    match answer.status.is_success() {
        true => Verdict::Done(()),
        false => Verdict::Again(status_of(answer)),
    }
}

fn status_of(answer: &Answer) -> String {
    format!("status {}", answer.status.as_u16())
}

fn result(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?.trim();
    serde_json::from_str::<Map<String, Value>>(text).ok()?;
    Some(text.to_owned())
}

/// The words of a function that cannot do its task: `message` of an object, or the text.
fn words(body: &[u8]) -> String {
    let said = serde_json::from_slice::<Value>(body).ok();
    let said = said.and_then(|said| said.get("message")?.as_str().map(str::to_owned));
    let said = said.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned());
    if said.is_empty() { "the webhook cannot do this task".to_owned() } else { cut(said) }
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(WORDS_MAX));
    text
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::StatusCode;

    use super::*;

    fn answer(status: u16, body: &str) -> Answer {
        Answer::of(StatusCode::from_u16(status).unwrap(), Bytes::from(body.to_owned()))
    }

    #[test]
    fn an_offer_is_accepted_or_rejected() {
        let of = |body: &str| decision(&answer(200, body));
        assert_eq!(of(r#"{"accept": true}"#), Verdict::Done(Decision::Accept));
        let busy = of(r#"{"reject": {"reason": "OVERLOADED", "text": "full", "retry_after_seconds": 3}}"#);
        let Verdict::Done(Decision::Reject(reject)) = busy else { panic!("{busy:?}") };
        assert_eq!((reject.reason(), reject.reason_text.as_str()), (RejectReason::Overloaded, "full"));
        assert_eq!(reject.retry_after.unwrap().seconds, 3);
        let other = of(r#"{"accept": false, "reject": {}}"#);
        assert!(matches!(other, Verdict::Done(Decision::Reject(reject)) if reject.reason() == RejectReason::Other));
        for wrong in [
            "",
            "ok",
            "{}",
            r#"{"accept": false}"#,
            r#"{"accept": "yes"}"#,
            r#"{"accept": true, "reject": {}}"#,
            r#"{"accept": true, "result": {}}"#,
            r#"{"reject": {"reason": "UNSPECIFIED"}}"#,
            r#"{"reject": {"reason": "BORED"}}"#,
        ] {
            assert!(matches!(of(wrong), Verdict::Again(_)), "{wrong}");
        }
        for status in [201, 202, 204, 302, 404, 422, 500] {
            let again = decision(&answer(status, r#"{"accept": true}"#));
            assert_eq!(again, Verdict::Again(format!("status {status}")));
        }
    }

    #[test]
    fn a_task_is_done_taken_or_failed() {
        let of = |status, body: &str| work(&answer(status, body));
        let precise = r#"{"sum": 9007199254740993.0}"#;
        assert_eq!(of(200, &format!("{precise}\n")), Verdict::Done(Work::Done(precise.to_owned())), "as it was sent");
        assert_eq!(
            (of(202, "later"), of(204, "")),
            (Verdict::Done(Work::Taken), Verdict::Done(Work::Done(String::new())))
        );
        let failed = |words: &str| Verdict::Done(Work::Failed(words.to_owned()));
        assert_eq!(of(422, r#"{"message": "no paper"}"#), failed("no paper"));
        assert_eq!((of(422, "no ink\n"), of(422, "")), (failed("no ink"), failed("the webhook cannot do this task")));
        for (status, wrong) in
            [(200, ""), (200, "[1]"), (200, "<html>"), (201, "{}"), (301, "{}"), (400, "{}"), (500, "{}")]
        {
            assert!(matches!(of(status, wrong), Verdict::Again(_)), "{status} {wrong}");
        }
        let long = Answer { is_cut: true, ..answer(200, "{") };
        assert!(matches!(work(&long), Verdict::Done(Work::Failed(words)) if words.contains("262144")));
        assert_eq!((woken(&answer(204, "")), woken(&answer(200, "x"))), (Verdict::Done(()), Verdict::Done(())));
        assert!(matches!(woken(&answer(301, "")), Verdict::Again(_)));
    }
}
