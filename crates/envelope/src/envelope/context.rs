//! Contexts with their digests.

use super::signing;
use crate::proto::v1::{self, context_section::Content};

/// A context of these sections, with its digest.
pub fn context_of_sections(sections: Vec<v1::ContextSection>) -> v1::TaskContextTransfer {
    let context_digest = digest_of(&sections).to_vec().into();
    v1::TaskContextTransfer { sections, context_digest, ..Default::default() }
}

/// The context with only the wanted sections, in their order in the context. An empty list stands for all sections.
pub fn only_sections(context: v1::TaskContextTransfer, wanted: &[String]) -> v1::TaskContextTransfer {
    if wanted.is_empty() {
        return context;
    }
    let mut sections = context.sections;
    sections.retain(|section| wanted.contains(&section.name));
    context_of_sections(sections)
}

/// The digest of a context, computed from its sections.
pub fn digest_of(sections: &[v1::ContextSection]) -> [u8; 32] {
    signing::context_digest(sections.iter().map(|section| {
        // The broker refuses a section without content, a delta, and a digest of another size than 32 bytes. So
        // the default values in these arms never pass.
        let digest = match &section.content {
            Some(Content::Json(json)) => signing::sha256(&[json.as_bytes()]),
            Some(Content::Bytes(bytes)) => signing::sha256(&[&bytes.data]),
            Some(Content::Reference(reference)) => reference.sha256.as_ref().try_into().unwrap_or_default(),
            Some(Content::Delta(delta)) => delta.result_sha256.as_ref().try_into().unwrap_or_default(),
            None => [0; 32],
        };
        (section.name.as_str(), digest)
    }))
}
