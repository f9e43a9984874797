//! What a command, and the receiver of a webhook, reads of its task.

use std::fmt::Write as _;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::json;

use baton_client::{
    ClientError, Link, Offer, Takeover,
    proto::v1::{self, context_section::Content},
};

/// A task as its worker reads it.
pub(crate) struct Input {
    task_id: String,
    pub(crate) handoff_id: String,
    /// The agent that offered the task.
    pub(crate) from: String,
    pub(crate) task_type: String,
    pub(crate) summary: String,
    is_resumed: bool,
    /// Each section, by its name.
    sections: Vec<(String, Section)>,
    /// The context as another agent can take it: without deltas.
    pub(crate) whole: Vec<v1::ContextSection>,
}

/// The content of a section.
enum Section {
    /// A text of JSON, as it was sent.
    Json(String),
    Text(String),
}

impl Input {
    /// The request of the offer. An offer that an earlier process of the agent accepted has none, and the broker shows it.
    pub(crate) async fn of(offer: &Offer) -> Result<Self, ClientError> {
        let mut input = Self {
            task_id: offer.task_id.clone(),
            handoff_id: offer.handoff_id.clone(),
            from: offer.sender_id.clone(),
            task_type: String::new(),
            summary: String::new(),
            is_resumed: offer.is_resumed(),
            sections: Vec::new(),
            whole: Vec::new(),
        };
        if let Some(request) = offer.request() {
            (input.task_type, input.summary) = (request.task_type.clone(), request.initial_context_summary.clone());
        } else if let Some(handoff) = handoff_of(offer.link(), offer).await? {
            (input.handoff_id, input.from) = (handoff.handoff_id, handoff.sender_id);
            (input.task_type, input.summary) = (handoff.task_type, handoff.initial_context_summary);
        }
        Ok(input)
    }

    pub(crate) async fn read_context(&mut self, takeover: &Takeover) -> Result<(), ClientError> {
        for sent in &takeover.context().sections {
            // A delta is applied to its base.
            if let Some(content) = takeover.section(&sent.name).await? {
                self.whole.push(v1::ContextSection { content: Some(content.clone()), ..sent.clone() });
                self.sections.push((sent.name.clone(), Section::of(content)));
            }
        }
        Ok(())
    }

    /// The request by which the task goes back to its former owner, for this reason.
    pub(super) fn request_back(&self, reason: &str) -> v1::HandoffRequest {
        v1::HandoffRequest {
            task_type: self.task_type.clone(),
            initial_context_summary: self.summary.clone(),
            reason_text: reason.to_owned(),
            ..Default::default()
        }
    }

    pub(crate) fn environment(&self) -> [(&'static str, String); 2] {
        [("BATON_TASK_ID", self.task_id.clone()), ("BATON_HANDOFF_ID", self.handoff_id.clone())]
    }

    /// One JSON object. A section of JSON keeps each digit: its text becomes a part of this one.
    pub(crate) fn json(&self) -> String {
        let mut text = String::from("{");
        let head = [
            ("task_id", &self.task_id),
            ("handoff_id", &self.handoff_id),
            ("from", &self.from),
            ("task_type", &self.task_type),
            ("summary", &self.summary),
        ];
        for (name, value) in head {
            write!(text, "\"{name}\":{},", json!(value)).expect("a text grows");
        }
        write!(text, "\"resumed\":{},\"context\":{{", self.is_resumed).expect("a text grows");
        for (place, (name, section)) in self.sections.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            match section {
                Section::Json(value) => write!(text, "{comma}{}:{value}", json!(name)),
                Section::Text(value) => write!(text, "{comma}{}:{}", json!(name), json!(value)),
            }
            .expect("a text grows");
        }
        text.push_str("}}\n");
        text
    }

    /// The summary, and each section below its name.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}\n", self.summary);
        for (name, Section::Json(value) | Section::Text(value)) in &self.sections {
            write!(text, "\n## {name}\n\n{value}\n").expect("a text grows");
        }
        text
    }
}

impl Section {
    fn of(content: Content) -> Self {
        match content {
            Content::Json(text) => Self::Json(text),
            Content::Bytes(bytes) => match String::from_utf8(bytes.data.to_vec()) {
                Ok(text) if bytes.media_type.starts_with("text/") => Self::Text(text),
                _ => {
                    let data = BASE64_STANDARD.encode(&bytes.data);
                    Self::Json(json!({"media_type": bytes.media_type, "base64": data}).to_string())
                }
            },
            Content::Reference(found) => Self::Json(
                json!({
                    "uri": found.uri, "sha256": hex::encode(&found.sha256), "size_bytes": found.size_bytes,
                    "media_type": found.media_type,
                })
                .to_string(),
            ),
            // `Takeover::section` has applied it.
            Content::Delta(_) => Self::Json("null".to_owned()),
        }
    }
}

/// The handoff by which the agent got the task; `None` if the broker has it no more.
async fn handoff_of(link: &Link, offer: &Offer) -> Result<Option<v1::Handoff>, ClientError> {
    let handoff_id = match offer.is_resumed() {
        false => offer.handoff_id.clone(),
        true => {
            let task = link.get_task(&offer.task_id).await?;
            task.hops.last().map(|hop| hop.handoff_id.clone()).unwrap_or_default()
        }
    };
    if handoff_id.is_empty() {
        return Ok(None);
    }
    match link.get_handoff(&handoff_id).await {
        Ok(handoff) => Ok(Some(handoff)),
        Err(error) if error.reason() == Some("HANDOFF_UNKNOWN") => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_reads_each_section_as_it_was_sent() {
        let bytes = |media_type: &str, data: &'static [u8]| {
            Section::of(Content::Bytes(v1::ContextBytes { media_type: media_type.into(), data: data.into() }))
        };
        let input = Input {
            task_id: "t".into(),
            handoff_id: "h".into(),
            from: "alice".into(),
            task_type: "review".into(),
            summary: "look at \"it\"".into(),
            is_resumed: false,
            sections: vec![
                ("goals".into(), Section::of(Content::Json(r#"[9007199254740993.10]"#.into()))),
                ("note".into(), bytes("text/plain", b"line")),
                ("image".into(), bytes("image/png", b"\xff")),
            ],
            whole: Vec::new(),
        };
        let expected = concat!(
            r#"{"task_id":"t","handoff_id":"h","from":"alice","task_type":"review","summary":"look at \"it\"","#,
            r#""resumed":false,"context":{"goals":[9007199254740993.10],"note":"line","#,
            r#""image":{"media_type":"image/png","base64":"/w=="}}}"#,
            "\n"
        );
        assert_eq!(input.json(), expected);
        assert!(input.text().starts_with("look at \"it\"\n\n## goals\n\n[9007199254740993.10]\n\n## note\n\nline\n"));
    }
}
