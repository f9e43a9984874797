//! The inputs of a plan that wait in the outbox.

use super::{or_zero, unless_zero};
use crate::{
    codes::ErrorCode,
    domain::plan::PlanSignal,
    ids::MessageId,
    records::{DecodeError, Reader},
};

/// Encodes an input of a plan for the outbox, as JSON: it is rare, and has texts of any kind.
pub(in crate::records) fn encode_signal(signal: &PlanSignal) -> Vec<u8> {
    let of = |kind: &str, subtask: &str, handoff: Option<MessageId>| serde_json::json!({"kind": kind, "subtask": subtask, "handoff": handoff.map(|id| id.to_string())});
    let mut json = match signal {
        PlanSignal::NotStarted { subtask, handoff, .. } => of("not_started", subtask, Some(*handoff)),
        PlanSignal::Taken { subtask, handoff, .. } => of("taken", subtask, Some(*handoff)),
        PlanSignal::NotTaken { subtask, handoff, .. } => of("not_taken", subtask, Some(*handoff)),
        PlanSignal::Reported { subtask, handoff, .. } => of("reported", subtask, Some(*handoff)),
        PlanSignal::Recalled { subtask, handoff, is_abandoned } => {
            of(if *is_abandoned { "abandoned" } else { "recalled" }, subtask, Some(*handoff))
        }
        PlanSignal::NotAppended { subtask, .. } => of("not_appended", subtask, None),
    };
    match signal {
        PlanSignal::NotStarted { code, text, .. } => {
            json["code"] = code.number().into();
            json["text"] = text.as_str().into();
        }
        PlanSignal::NotTaken { code, text, has_waited, .. } => {
            json["code"] = code.number().into();
            json["text"] = text.as_str().into();
            json["waited"] = (*has_waited).into();
        }
        PlanSignal::Taken { owner, due, .. } => {
            json["owner"] = owner.as_str().into();
            json["due"] = or_zero(*due).into();
        }
        PlanSignal::Reported { message, is_completed, details, .. } => {
            json["message"] = message.to_string().into();
            json["completed"] = (*is_completed).into();
            json["text"] = details.as_str().into();
        }
        PlanSignal::Recalled { .. } => {}
        PlanSignal::NotAppended { topic, code, text, .. } => {
            json["topic"] = topic.as_str().into();
            json["code"] = code.number().into();
            json["text"] = text.as_str().into();
        }
    }
    json.to_string().into_bytes()
}

/// The input of a plan out of the outbox.
pub(in crate::records) fn decode_signal(reader: &Reader, bytes: &[u8]) -> Result<PlanSignal, DecodeError> {
    let json: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| reader.error(error.to_string()))?;
    let text = |name: &str| reader.some(json[name].as_str(), name).map(str::to_owned);
    let id = |name: &str| MessageId::parse(&text(name)?).map_err(|error| reader.error(error.to_string()));
    let code = || {
        let number = json["code"].as_i64().and_then(|number| i32::try_from(number).ok());
        reader.some(number.and_then(ErrorCode::from_number), "code")
    };
    let subtask = text("subtask")?;
    Ok(match text("kind")?.as_str() {
        "not_started" => {
            PlanSignal::NotStarted { subtask, handoff: id("handoff")?, code: code()?, text: text("text")? }
        }
        "taken" => {
            let due = unless_zero(reader.some(json["due"].as_i64(), "due")?);
            PlanSignal::Taken { subtask, handoff: id("handoff")?, owner: reader.agent(&text("owner")?)?, due }
        }
        "not_taken" => PlanSignal::NotTaken {
            subtask,
            handoff: id("handoff")?,
            code: code()?,
            text: text("text")?,
            has_waited: reader.some(json["waited"].as_bool(), "waited")?,
        },
        "reported" => PlanSignal::Reported {
            subtask,
            handoff: id("handoff")?,
            message: id("message")?,
            is_completed: reader.some(json["completed"].as_bool(), "completed")?,
            details: text("text")?,
        },
        "recalled" => PlanSignal::Recalled { subtask, handoff: id("handoff")?, is_abandoned: false },
        "abandoned" => PlanSignal::Recalled { subtask, handoff: id("handoff")?, is_abandoned: true },
        "not_appended" => {
            PlanSignal::NotAppended { subtask, topic: text("topic")?, code: code()?, text: text("text")? }
        }
        _ => return Err(reader.error("an input of a plan is of no known kind")),
    })
}
