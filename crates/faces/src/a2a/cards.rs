//! Agent cards: the cards of the broker in the form of A2A.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use a2a::{
    AgentCapabilities, AgentCard, AgentInterface, AgentSkill, HttpAuthSecurityScheme, SecurityScheme,
    TRANSPORT_PROTOCOL_HTTP_JSON, TRANSPORT_PROTOCOL_JSONRPC,
};
use baton_client::proto::v1;

use super::Published;
use crate::{
    ActError, Face,
    text::{DESCRIPTION_MAX, clean},
};

/// The media types that every published agent takes and gives.
pub(crate) const MODES: [&str; 2] = ["text/plain", "application/json"];
/// The most skills of a card.
const SKILLS_MAX: usize = 256;
/// The agents of a type that are read at a time, and how many times.
const AGENTS_A_PAGE: u32 = 200;
const PAGES_MAX: usize = 5;
/// The name of the way to show a token.
const SCHEME: &str = "grant";

/// The card of a published agent or type, without its addresses. `None`: the broker has no agent of this name.
pub(crate) async fn read(face: &Face, published: &Published, version: &str) -> Result<Option<AgentCard>, ActError> {
    let client = face.client().await?;
    let cards = if published.is_type {
        let mut cards = Vec::new();
        let mut request = v1::ListAgentsRequest {
            page_size: AGENTS_A_PAGE,
            agent_type: published.name.clone(),
            ..Default::default()
        };
        for _ in 0..PAGES_MAX {
            let page = client.answer(client.agents().list_agents(request.clone()).await)?;
            cards.extend(page.agents.into_iter().filter_map(|agent| agent.card));
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        cards
    } else {
        match client.get_agent(&published.name).await {
            Ok(agent) if agent.deregister_time.is_some() => return Ok(None),
            Ok(agent) => agent.card.into_iter().collect(),
            Err(error) if matches!(error.reason(), Some("AGENT_UNKNOWN" | "RECEIVER_UNKNOWN")) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    Ok(Some(card(published, &cards, version)))
}

fn card(published: &Published, cards: &[v1::AgentCard], version: &str) -> AgentCard {
    let name = &published.name;
    let own = cards.first().map(|card| clean(&card.description, DESCRIPTION_MAX)).unwrap_or_default();
    let description = match (published.is_type, own.is_empty()) {
        (true, _) => format!("One of the agents of the type {name}."),
        (false, true) => format!("The agent {name}."),
        (false, false) => own,
    };
    let mut skills = skills(cards);
    if skills.is_empty() {
        skills.push(AgentSkill { description: format!("Takes tasks as {name}."), ..skill(name) });
    }
    let modes = || MODES.map(str::to_owned).to_vec();
    let bearer = HttpAuthSecurityScheme {
        scheme: "Bearer".to_owned(),
        description: Some("A token of `baton gateway grant`.".to_owned()),
        bearer_format: None,
    };
    AgentCard {
        name: name.clone(),
        description,
        version: version.to_owned(),
        supported_interfaces: Vec::new(),
        capabilities: AgentCapabilities {
            streaming: Some(true),
            push_notifications: Some(false),
            extensions: None,
            extended_agent_card: Some(false),
        },
        default_input_modes: modes(),
        default_output_modes: modes(),
        skills,
        provider: None,
        documentation_url: None,
        icon_url: None,
        security_schemes: Some(HashMap::from([(SCHEME.to_owned(), SecurityScheme::HttpAuth(bearer))])),
        security_requirements: Some(vec![HashMap::from([(SCHEME.to_owned(), Vec::new())])]),
        signatures: None,
    }
}

/// The card with the addresses of its two bindings, both below `url`.
pub(crate) fn at(card: AgentCard, url: &str) -> AgentCard {
    let interfaces = [TRANSPORT_PROTOCOL_JSONRPC, TRANSPORT_PROTOCOL_HTTP_JSON];
    let supported_interfaces = interfaces.map(|binding| AgentInterface::new(url, binding)).to_vec();
    AgentCard { supported_interfaces, ..card }
}

fn skill(name: &str) -> AgentSkill {
    AgentSkill {
        id: name.to_owned(),
        name: name.to_owned(),
        description: format!("The skill {name}."),
        tags: vec![name.to_owned()],
        examples: None,
        input_modes: None,
        output_modes: None,
        security_requirements: None,
    }
}

/// The skills of all cards, each once, in the order of their names. The first words count; the tags are those of all.
fn skills(cards: &[v1::AgentCard]) -> Vec<AgentSkill> {
    let mut merged: BTreeMap<&str, (String, Vec<String>, BTreeSet<String>)> = BTreeMap::new();
    for found in cards.iter().flat_map(|card| &card.skills) {
        let (description, examples, tags) = merged.entry(&found.name).or_default();
        if description.is_empty() {
            *description = clean(&found.description, DESCRIPTION_MAX);
        }
        if examples.is_empty() {
            examples.extend(found.examples.iter().map(|example| clean(example, DESCRIPTION_MAX)));
        }
        tags.extend(found.tags.iter().map(|tag| clean(tag, 128)).filter(|tag| !tag.is_empty()));
    }
    let skills = merged.into_iter().take(SKILLS_MAX).map(|(name, (description, examples, tags))| {
        let mut shown = skill(name);
        if !description.is_empty() {
            shown.description = description;
        }
        if !tags.is_empty() {
            shown.tags = tags.into_iter().collect();
        }
        shown.examples = (!examples.is_empty()).then_some(examples);
        shown
    });
    skills.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skilled(description: &str, skills: &[(&str, &str, &[&str])]) -> v1::AgentCard {
        let skills = skills.iter().map(|(name, description, tags)| v1::AgentSkill {
            name: (*name).to_owned(),
            description: (*description).to_owned(),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..Default::default()
        });
        v1::AgentCard { description: description.to_owned(), skills: skills.collect(), ..Default::default() }
    }

    #[test]
    fn the_card_of_a_type_merges_the_skills_of_its_agents() {
        let published = Published::parse("type:billing").unwrap();
        let cards = [
            skilled("I bill.", &[("tax", "", &["de"]), ("invoice", "Writes \u{202e}invoices.", &[])]),
            skilled("Me too.", &[("tax", "Taxes.", &["at", "de"])]),
        ];
        let card = card(&published, &cards, "1");
        let shown: Vec<_> =
            card.skills.iter().map(|skill| (&*skill.id, &*skill.description, &skill.tags[..])).collect();
        let (invoice, tax) = (["invoice".to_owned()], ["at".to_owned(), "de".to_owned()]);
        assert_eq!(shown, [("invoice", "Writes invoices.", &invoice[..]), ("tax", "Taxes.", &tax[..])]);
        assert_eq!(card.description, "One of the agents of the type billing.");
    }

    #[test]
    fn no_text_and_no_list_of_a_card_is_empty() {
        for (published, cards) in [("alice", vec![skilled("", &[])]), ("type:none", vec![])] {
            let published = Published::parse(published).unwrap();
            let card = serde_json::to_value(at(card(&published, &cards, "1"), "https://h/a2a/alice")).unwrap();
            fn check(value: &serde_json::Value) {
                match value {
                    serde_json::Value::String(text) => assert!(!text.is_empty()),
                    serde_json::Value::Array(values) => values.iter().for_each(check),
                    serde_json::Value::Object(members) => members.values().for_each(check),
                    _ => {}
                }
            }
            check(&card);
            assert_eq!(card["skills"].as_array().unwrap().len(), 1);
            assert_eq!(card["supportedInterfaces"][0]["protocolVersion"], "1.0");
            assert_eq!(card["securityRequirements"][0]["schemes"]["grant"]["list"], serde_json::json!([]));
        }
    }
}
