//! Table context_versions: the versions of a task's context. Table context_sections: the results of deltas, by the
//! section's name and the digest.

use bytes::Bytes;
use prost::Message;

use super::{DecodeError, List, Reader, by_name_and_number, id_bytes, moment, number_of, range_of_name};
use crate::{
    domain::context::{Origin, Section, Version},
    ids::{AgentId, TaskId},
    proto::{storage, v1::SectionOrigin},
    store::{Key, KeyRange, Table},
};

/// The range of all records of a task in one of the two tables.
pub fn contexts_range(task: &TaskId) -> KeyRange {
    range_of_name(task.as_str())
}

/// A version as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextVersionRecord(pub Version);

impl ContextVersionRecord {
    /// The key of a version.
    pub fn key(task: &TaskId, number: u64) -> Key {
        by_name_and_number(Table::ContextVersions, task.as_str(), number)
    }

    /// The versions of a task, by their numbers.
    pub fn list(task: &TaskId) -> List {
        List::of_name(Table::ContextVersions, task.as_str())
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let version = &self.0;
        storage::ContextVersionRecord {
            epoch: version.epoch,
            author_id: version.author.to_string(),
            receiver_id: version.receiver.as_ref().map(ToString::to_string).unwrap_or_default(),
            handoff_id: version.handoff.map(id_bytes).unwrap_or_default(),
            message_id: id_bytes(version.message),
            digest: Bytes::copy_from_slice(&version.digest),
            created_at: version.created_at.unix_nanoseconds(),
            sections: version.sections.iter().map(section_to_storage).collect(),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the record under this key.
    pub fn decode(key: &[u8], value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("context_versions");
        let stored: storage::ContextVersionRecord = reader.message(value)?;
        // The last nine bytes are a zero byte and the number.
        let task = key.get(..key.len().saturating_sub(9)).and_then(|id| std::str::from_utf8(id).ok());
        let receiver = Some(stored.receiver_id).filter(|id| !id.is_empty());
        Ok(Self(Version {
            task: reader.some(task.and_then(|id| TaskId::parse(id).ok()), "the task in a key")?,
            number: number_of(&reader, key)?,
            epoch: stored.epoch,
            author: reader.agent(&stored.author_id)?,
            receiver: receiver.map(|id| reader.agent(&id)).transpose()? as Option<AgentId>,
            handoff: reader.optional_message_id(&stored.handoff_id)?,
            message: reader.message_id(&stored.message_id)?,
            digest: reader.digest(&stored.digest)?,
            created_at: moment(stored.created_at),
            sections: stored
                .sections
                .into_iter()
                .map(|section| section_from_storage(&reader, section))
                .collect::<Result<_, _>>()?,
        }))
    }
}

fn section_to_storage(section: &Section) -> storage::ContextSectionInfoRecord {
    let (origin, is_json, uri, base) = match &section.origin {
        Origin::Value { is_json } => (SectionOrigin::Value, *is_json, "", None),
        Origin::Reference { uri } => (SectionOrigin::Reference, false, uri.as_str(), None),
        Origin::Delta { base } => (SectionOrigin::Delta, true, "", Some(base)),
    };
    storage::ContextSectionInfoRecord {
        name: section.name.clone(),
        sha256: Bytes::copy_from_slice(&section.sha256),
        size: section.size,
        media_type: section.media_type.clone(),
        origin: origin.into(),
        is_json,
        uri: uri.to_owned(),
        base_sha256: base.map(|base| Bytes::copy_from_slice(base)).unwrap_or_default(),
        schema_id: section.schema.0.clone(),
        schema_version: section.schema.1.clone(),
        schema_checked: section.is_checked,
        secret: section.is_secret,
        summary: section.summary.clone(),
    }
}

fn section_from_storage(reader: &Reader, stored: storage::ContextSectionInfoRecord) -> Result<Section, DecodeError> {
    let origin = match SectionOrigin::try_from(stored.origin) {
        Ok(SectionOrigin::Value) => Origin::Value { is_json: stored.is_json },
        Ok(SectionOrigin::Reference) => Origin::Reference { uri: stored.uri },
        Ok(SectionOrigin::Delta) => Origin::Delta { base: reader.digest(&stored.base_sha256)? },
        Ok(SectionOrigin::Unspecified) | Err(_) => return Err(reader.error("the origin of a section is unknown")),
    };
    Ok(Section {
        name: stored.name,
        sha256: reader.digest(&stored.sha256)?,
        size: stored.size,
        media_type: stored.media_type,
        origin,
        schema: (stored.schema_id, stored.schema_version),
        is_checked: stored.schema_checked,
        is_secret: stored.secret,
        summary: stored.summary,
    })
}

/// The result of a delta as stored. A content that came by value is in the envelope of its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextSectionRecord {
    /// The number of the latest version that has the result.
    pub version: u64,
    /// The result, canonical JSON.
    pub content: String,
}

impl ContextSectionRecord {
    /// The key of a result.
    pub fn key(task: &TaskId, name: &str, sha256: &[u8; 32]) -> Key {
        let key = [task.as_str().as_bytes(), &[0], name.as_bytes(), &[0], sha256].into();
        Key { table: Table::ContextSections, key }
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        storage::ContextSectionRecord { version: self.version, content: self.content.clone() }.encode_to_vec().into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let stored: storage::ContextSectionRecord = Reader("context_sections").message(value)?;
        Ok(Self { version: stored.version, content: stored.content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ids::MessageId, time::Timestamp};

    #[test]
    fn versions_and_sections_come_back() {
        let section = |origin| Section {
            name: "goals".to_owned(),
            sha256: [3; 32],
            size: 7,
            media_type: "application/json".to_owned(),
            origin,
            schema: ("s".to_owned(), "1".to_owned()),
            is_checked: true,
            is_secret: true,
            summary: "short".to_owned(),
        };
        let origins = [
            Origin::Value { is_json: true },
            Origin::Value { is_json: false },
            Origin::Reference { uri: "https://x".to_owned() },
            Origin::Delta { base: [9; 32] },
        ];
        let version = Version {
            task: TaskId::parse("crash-7").unwrap(),
            number: 12,
            epoch: 3,
            author: AgentId::parse("alice").unwrap(),
            receiver: Some(AgentId::parse("bob").unwrap()),
            handoff: Some(MessageId::from_bytes([1; 16])),
            message: MessageId::from_bytes([2; 16]),
            digest: [4; 32],
            created_at: Timestamp::from_parts(9, 5).unwrap(),
            sections: origins.map(section).to_vec(),
        };
        let key = ContextVersionRecord::key(&version.task, 12);
        for version in [version.clone(), Version { receiver: None, handoff: None, ..version }] {
            let record = ContextVersionRecord(version);
            assert_eq!(ContextVersionRecord::decode(&key.key, &record.encode()), Ok(record.clone()));
            assert!(ContextVersionRecord::decode(b"short", &record.encode()).is_err());
        }
        let record = ContextSectionRecord { version: 8, content: "{}".to_owned() };
        assert_eq!(ContextSectionRecord::decode(&record.encode()), Ok(record));
    }
}
