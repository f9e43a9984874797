//! The cost of finding agents among 100,000, of which 20 fit.

use std::time::Duration;

use baton::{
    broker::{
        BrokerIdentity, Settings, Signer,
        directory::{Directory, Entry},
    },
    domain::{handoff::Priority, matching::Wanted},
    envelope::keys::PrivateKey,
    ids::KeyId,
    proto::v1,
    records::AgentRecord,
    time::Timestamp,
};

use super::{Part, room::key, size};

const AGENTS: u64 = 100_000;
const FIT: u64 = 20;

pub(crate) fn parts() -> Vec<Part> {
    // Made at the first turn, so that other parts need not wait for it.
    let mut directory = None;
    let skills = ["finance.tax.de".to_owned()];
    vec![Part::one("directory/find-20-of-100000", move || {
        let directory = directory.get_or_insert_with(filled);
        let wanted = Wanted {
            agent_type: None,
            required_skills: &skills,
            preferred_skills: &[],
            task_type: "",
            languages: &[],
            tags: &[],
            priority: Priority::default(),
            accept_timeout: Duration::from_secs(30),
        };
        let found = directory.rank(&wanted, Timestamp::default(), |_| true);
        assert_eq!(found.len(), FIT as usize);
    })]
}

fn filled() -> Directory {
    let broker = BrokerIdentity {
        key_id: KeyId::parse("b").expect("it is a name"),
        key: PrivateKey::from_seed(&[1; 32]),
        coordinator: Signer::new(PrivateKey::from_seed(&[2; 32])),
    };
    let rule = Settings::default().presence_rule(Timestamp::default());
    // The directory is filled without the check that a key belongs to one agent, and 100,000 keys take seconds to make.
    let key = key("any");
    let agents = size(AGENTS, 1_000);
    Directory::new(&broker, rule, (0..agents).map(|number| entry(number, agents, key.clone())))
}

/// One of so many agents, each with four skills. Every agent has a common one.
fn entry(number: u64, agents: u64, key: v1::AgentKey) -> Entry {
    let own = match number % (agents / FIT) {
        0 => "finance.tax.de".to_owned(),
        other => format!("finance.audit.client-{other}"),
    };
    let names = [own, "writing".to_owned(), format!("language.l{}", number % 50), format!("team.t{}", number % 1000)];
    let skill = |name| v1::AgentSkill { name, ..Default::default() };
    let card = v1::AgentCard {
        agent_id: format!("agent-{number}"),
        skills: names.into_iter().map(skill).collect(),
        capacity: 4,
        keys: vec![key],
        ..Default::default()
    };
    Entry::parse(AgentRecord::new(card, Timestamp::default())).expect("the card is valid")
}
