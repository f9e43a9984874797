//! The check of a context: its deltas applied, and its sections against the schemas that they name.

use std::{collections::BTreeMap, sync::Arc};

use prost::Message as _;
use serde_json::Value;

use super::{CheckedContext, CheckedSection, Findings, Interrupted, Preparation};
use crate::{
    BrokerError,
    codes::FieldViolation,
    contexts::{JSON, content_of, content_section, payload_in, whole_section},
    domain::context::{BASES_MAX, Origin, Rejection, Section, Version},
    envelope::{PAYLOAD_BYTES_MAX, VerifiedEnvelope, history, read_checked_json, sections, signing},
    json_schema::{JsonSchema, VIOLATIONS_MAX, Work},
    proto::v1::{self, context_section::Content},
    records::{ContextVersionRecord, SchemaRecord, TaskRecord},
    refused,
    store::{Key, Record},
};

/// The most bytes of all sections that the deltas of one message are applied to. A whole context has at most a quarter of
/// it.
const BASES_BYTES_MAX: u64 = 4 * PAYLOAD_BYTES_MAX as u64;

impl Preparation<'_> {
    pub(super) fn context(&self, envelope: &VerifiedEnvelope, is_last: bool) -> Result<Findings, Interrupted> {
        let header = envelope.header();
        let transfer: v1::TaskContextTransfer = payload_in(envelope.raw()).ok_or(BrokerError::Internal)?;
        let stored = match &header.task {
            Some(task) => self.store.get(&TaskRecord::key(task))?,
            None => None,
        };
        let record = stored.map(|stored| TaskRecord::decode(&stored.value)).transpose()?;
        // The machine refuses the context of an agent that does not own the task, and its sender learns nothing about
        // schemas and versions.
        let Some(record) = record.filter(|record| record.task.owner == header.sender) else {
            return Self::missing(is_last, Findings::None);
        };
        let bases = self.bases(&record, &transfer)?;
        if bases.as_ref().is_err_and(|rejection| matches!(rejection, Rejection::BaseUnknown { .. })) {
            Self::missing(is_last, ())?;
        }
        let schemas = self.schemas_of(&transfer)?;
        let names = transfer.sections.iter().map(|section| &section.schema_id).chain([&transfer.schema_id]);
        if names.filter(|name| !name.is_empty()).count() > schemas.len() {
            Self::missing(is_last, ())?;
        }
        let sections = match bases {
            Ok(bases) => self.sections(&transfer, &bases, &schemas)?,
            Err(rejection) => Err(rejection),
        };
        let misfit = match &sections {
            Ok(sections) => self.misfit(&transfer, sections, &schemas)?,
            Err(_) => None,
        };
        Ok(Findings::Context(CheckedContext { transfer, sections, misfit: misfit.map(refused) }.into()))
    }

    /// The bases of the deltas, by the index of the section. Looks at names, digests and sizes alone.
    fn bases(
        &self,
        record: &TaskRecord,
        transfer: &v1::TaskContextTransfer,
    ) -> Result<Result<BTreeMap<usize, Base>, Rejection>, BrokerError> {
        let mut left: BTreeMap<usize, (&str, &v1::ContextDelta)> = BTreeMap::new();
        for (index, section) in transfer.sections.iter().enumerate() {
            if let Some(Content::Delta(delta)) = &section.content {
                left.insert(index, (&section.name, delta));
            }
        }
        let mut found = BTreeMap::new();
        let mut latest: BTreeMap<usize, [u8; 32]> = BTreeMap::new();
        let last = record.context_versions;
        for number in (last.saturating_sub(BASES_MAX) + 1..=last).rev() {
            if left.is_empty() {
                break;
            }
            let key = ContextVersionRecord::key(&record.task.id, number);
            // A removal in the background may have taken a version of the range.
            let Some(stored) = self.store.get(&key)? else { continue };
            let version = Arc::new(ContextVersionRecord::decode(&key.key, &stored.value)?.0);
            left.retain(|index, (name, delta)| {
                let Some(section) = version.section(name) else { return true };
                latest.entry(*index).or_insert(section.sha256);
                if delta.base_sha256 != section.sha256[..] {
                    return true;
                }
                found.insert(*index, Base { version: version.clone(), section: section.clone() });
                false
            });
        }
        if let Some((index, (name, _))) = left.first_key_value() {
            return Ok(Err(Rejection::BaseUnknown { section: (*name).to_owned(), known: latest.get(index).copied() }));
        }
        let invalid = |base: &Base, problem: String| {
            Ok(Err(Rejection::DeltaInvalid { section: base.section.name.clone(), problem, expected: None }))
        };
        if let Some(base) = found.values().find(|base| !base.section.is_json()) {
            return invalid(base, "the base is bytes, and only JSON can be changed".to_owned());
        }
        let bytes: u64 = found.values().map(|base| base.section.size).sum();
        match found.values().next_back() {
            Some(base) if bytes > BASES_BYTES_MAX => invalid(
                base,
                format!("the bases of all deltas have {bytes} bytes, over the limit of {BASES_BYTES_MAX}"),
            ),
            Some(_) | None => Ok(Ok(found)),
        }
    }

    /// The registered schemas that the context and its sections name, by id and version.
    fn schemas_of(&self, transfer: &v1::TaskContextTransfer) -> Result<Schemas, BrokerError> {
        let of_sections = transfer.sections.iter().map(|section| (&*section.schema_id, &*section.schema_version));
        let names = of_sections.chain([(&*transfer.schema_id, &*transfer.schema_version)]);
        let mut found = Schemas::default();
        for (id, version) in names.filter(|(id, _)| !id.is_empty()) {
            let text = match history::is_schema(id, version) {
                true => Some(history::SCHEMA_JSON.to_owned()),
                false => match self.store.get(&SchemaRecord::key(id, version))? {
                    Some(stored) => Some(SchemaRecord::decode(&stored.value)?.schema.schema_json),
                    None => None,
                },
            };
            if let Some(text) = text {
                found.named += 1;
                found.texts.insert((id.to_owned(), version.to_owned()), text);
            }
        }
        Ok(found)
    }

    /// The sections of the new version. Applies the deltas, up to the first one that cannot be.
    fn sections(
        &self,
        transfer: &v1::TaskContextTransfer,
        bases: &BTreeMap<usize, Base>,
        schemas: &Schemas,
    ) -> Result<Result<Vec<CheckedSection>, Rejection>, BrokerError> {
        let mut checked = Vec::with_capacity(transfer.sections.len());
        let mut bytes = transfer.encoded_len();
        for (index, section) in transfer.sections.iter().enumerate() {
            let is_known = schemas.text(&section.schema_id, &section.schema_version).is_some();
            let Some(Content::Delta(delta)) = &section.content else {
                checked.push(CheckedSection { section: content_section(section, is_known)?, result: None });
                continue;
            };
            let base = bases.get(&index).ok_or(BrokerError::Internal)?;
            let text = match self.result_of(base, delta)? {
                Ok(text) => text,
                Err(rejection) => return Ok(Err(rejection)),
            };
            // The coordinator sends the context without deltas, so it must fit a payload.
            bytes = (bytes + text.len()).saturating_sub(delta.merge_patch.len());
            if bytes > PAYLOAD_BYTES_MAX {
                let problem =
                    format!("the whole context has more than {PAYLOAD_BYTES_MAX} bytes, the limit of a payload");
                return Ok(Err(Rejection::DeltaInvalid { section: section.name.clone(), problem, expected: None }));
            }
            let section = Section {
                name: section.name.clone(),
                sha256: signing::sha256(&[text.as_bytes()]),
                size: text.len() as u64,
                media_type: JSON.to_owned(),
                origin: Origin::Delta { base: base.section.sha256 },
                schema: (section.schema_id.clone(), section.schema_version.clone()),
                is_checked: is_known,
                is_secret: section.secret,
                summary: section.summary.clone(),
            };
            checked.push(CheckedSection { section, result: Some((text, base.version.number)) });
        }
        Ok(Ok(checked))
    }

    /// Applies a delta to its base.
    fn result_of(&self, base: &Base, delta: &v1::ContextDelta) -> Result<Result<String, Rejection>, BrokerError> {
        let invalid = |problem: String, expected| {
            Ok(Err(Rejection::DeltaInvalid { section: base.section.name.clone(), problem, expected }))
        };
        let get = |key: &Key| Ok::<Option<Record>, BrokerError>(self.store.get(key)?);
        let Some(Content::Json(text)) = content_of(&base.version, &base.section, get)? else {
            let (task, number) = (&base.version.task, base.version.number);
            tracing::error!(%task, number, section = base.section.name, "the content of a section is missing in the store");
            return Err(BrokerError::Internal);
        };
        let result = match sections::apply(&text, &delta.merge_patch) {
            Ok(result) => result,
            Err(error) => return invalid(error.to_string(), None),
        };
        let expected = signing::sha256(&[result.as_bytes()]);
        match delta.result_sha256 == expected[..] {
            true => Ok(Ok(result)),
            false => invalid(format!("the result has the digest {}", hex::encode(expected)), Some(expected)),
        }
    }

    /// The reason why a context does not fit its schemas. `None`: it fits.
    fn misfit(
        &self,
        transfer: &v1::TaskContextTransfer,
        sections: &[CheckedSection],
        schemas: &Schemas,
    ) -> Result<Option<BrokerError>, BrokerError> {
        let (mut violations, mut work) = (Vec::new(), Work::new());
        for (index, (section, checked)) in transfer.sections.iter().zip(sections).enumerate() {
            let path = format!("envelope.payload.sections[{index}]");
            let Some(schema) = schemas.text(&section.schema_id, &section.schema_version) else {
                if let Some(refusal) = self.unregistered(&section.schema_id, &section.schema_version, &path) {
                    return Ok(Some(refusal));
                }
                continue;
            };
            let Some(text) = json_of(section, checked) else { continue };
            let (path, left) = (format!("{path}.json"), VIOLATIONS_MAX.saturating_sub(violations.len()));
            match read_checked_json(text) {
                Ok(data) => violations.extend(self.compiled(schema)?.misfits(&data, &path, left, &mut work)),
                // The text is JSON, so it is the result of a delta that is read otherwise.
                Err(error) if left > 0 => {
                    let problem = format!("cannot be checked against its schema: {error}");
                    violations.push(FieldViolation { path, problem });
                }
                Err(_) => {}
            }
        }
        if let Some(schema) = schemas.text(&transfer.schema_id, &transfer.schema_version) {
            let all = transfer.sections.iter().zip(sections);
            let members = all.map(|(section, checked)| whole_section(&checked.section, json_of(section, checked)));
            let whole = Value::Object(members.collect());
            let (path, left) = ("envelope.payload.sections", VIOLATIONS_MAX.saturating_sub(violations.len()));
            violations.extend(self.compiled(schema)?.misfits(&whole, path, left, &mut work));
        } else if let Some(refusal) =
            self.unregistered(&transfer.schema_id, &transfer.schema_version, "envelope.payload")
        {
            return Ok(Some(refusal));
        }
        Ok((!violations.is_empty()).then_some(BrokerError::ContextSchemaViolation { violations }))
    }

    fn compiled(&self, schema: &str) -> Result<Arc<JsonSchema>, BrokerError> {
        self.schemas.get(schema).map_err(|problem| {
            tracing::error!(problem, "a registered schema does not compile");
            BrokerError::Internal
        })
    }

    /// The refusal of a name that no schema has. `None`: no schema is named, or an unregistered one is permitted.
    fn unregistered(&self, id: &str, version: &str, path: &str) -> Option<BrokerError> {
        (!id.is_empty() && self.settings.require_registered_schemas).then(|| BrokerError::SchemaUnknown {
            schema: id.to_owned(),
            version: version.to_owned(),
            violations: vec![FieldViolation {
                path: format!("{path}.schema_id"),
                problem: "must name a registered schema".to_owned(),
            }],
        })
    }
}

/// The base of a delta.
struct Base {
    version: Arc<Version>,
    section: Section,
}

/// The registered schemas that a context names.
#[derive(Default)]
struct Schemas {
    texts: BTreeMap<(String, String), String>,
    /// The sections, and the whole context, that name one of them.
    named: usize,
}

impl Schemas {
    fn text(&self, id: &str, version: &str) -> Option<&String> {
        self.texts.get(&(id.to_owned(), version.to_owned()))
    }

    const fn len(&self) -> usize {
        self.named
    }
}

/// The JSON of a section, or the result of its delta. `None`: it is no JSON.
fn json_of<'a>(section: &'a v1::ContextSection, checked: &'a CheckedSection) -> Option<&'a str> {
    match (&checked.result, &section.content) {
        (Some((text, _)), _) | (None, Some(Content::Json(text))) => Some(text),
        (None, _) => None,
    }
}

/// A context without deltas and schemas. `None`: it has some.
pub(super) fn short_context(transfer: v1::TaskContextTransfer) -> Option<CheckedContext> {
    let is_short = |section: &v1::ContextSection| {
        section.schema_id.is_empty() && !matches!(section.content, Some(Content::Delta(_)) | None)
    };
    if !transfer.schema_id.is_empty() || !transfer.sections.iter().all(is_short) {
        return None;
    }
    let sections = transfer
        .sections
        .iter()
        .map(|section| Some(CheckedSection { section: content_section(section, false).ok()?, result: None }));
    let sections = Ok(sections.collect::<Option<_>>()?);
    Some(CheckedContext { transfer, sections, misfit: None })
}
