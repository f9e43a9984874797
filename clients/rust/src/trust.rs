//! How a receiver decides that a key belongs to an agent (SPEC 2).

use std::collections::HashMap;

use crate::{
    envelope::{
        keys::{PrivateKey, PublicKey},
        signing,
    },
    ids::{AgentId, KeyId},
    proto::v1,
    time::Timestamp,
};

/// The authority for keys of agents. The broker's own key needs no pin and no voucher, but if keys of the agent `baton`
/// are pinned, only they are accepted as the broker's.
#[derive(Debug, Clone, Default)]
pub enum Trust {
    /// The broker: the keys in its directory.
    #[default]
    Broker,
    /// Only these keys of these agents, which the operator obtained elsewhere. Other agents have none.
    Pinned(HashMap<AgentId, Vec<PublicKey>>),
    /// Operators: keys for which one of these operators has signed a voucher.
    Operators(HashMap<KeyId, PublicKey>),
}

impl Trust {
    /// Whether this key is accepted as the agent's.
    pub fn accepts(&self, agent: &AgentId, key: &v1::AgentKey, now: Timestamp) -> bool {
        if let Some(keys) = self.pins_of(agent) {
            // The bytes of the key decide. A pin says nothing about the key's id in the directory.
            return keys.iter().any(|pin| pin.as_bytes()[..] == key.public_key);
        }
        match self {
            _ if *agent == AgentId::broker() => true,
            Self::Broker => true,
            Self::Pinned(_) => false,
            Self::Operators(operators) => key.vouchers.iter().any(|voucher| {
                let operator = KeyId::parse(&voucher.operator_key_id).ok().and_then(|id| operators.get(&id));
                operator.is_some_and(|operator| holds(operator, agent, key, voucher, now))
            }),
        }
    }

    /// The keys that are pinned for this agent; `None`: no pin names it.
    pub(super) fn pins_of(&self, agent: &AgentId) -> Option<&Vec<PublicKey>> {
        match self {
            Self::Pinned(pins) => pins.get(agent),
            Self::Broker | Self::Operators(_) => None,
        }
    }
}

fn holds(operator: &PublicKey, agent: &AgentId, key: &v1::AgentKey, voucher: &v1::KeyVoucher, now: Timestamp) -> bool {
    let end = voucher.not_after_time.map(|end| Timestamp::from_parts(end.seconds, end.nanos));
    let is_in_time = match end {
        None => true,
        Some(Some(end)) => end > now,
        // An invalid end time makes the voucher invalid.
        Some(None) => false,
    };
    // The signature covers the agent, the key and its id, so a voucher is of no use for another of them.
    is_in_time && operator.verifies(&signing::voucher_input(agent.as_str(), key, voucher), &voucher.signature)
}

/// Signs an operator's voucher for an agent's public key. `not_after` is the end of its validity; `None`: unlimited.
pub fn vouch(
    operator: &PrivateKey,
    operator_key_id: &KeyId,
    agent: &AgentId,
    key_id: &KeyId,
    public: &PublicKey,
    not_after: Option<prost_types::Timestamp>,
) -> v1::KeyVoucher {
    let key = v1::AgentKey {
        key_id: key_id.to_string(),
        public_key: public.as_bytes().to_vec().into(),
        ..Default::default()
    };
    let mut voucher = v1::KeyVoucher {
        operator_key_id: operator_key_id.to_string(),
        not_after_time: not_after,
        ..Default::default()
    };
    voucher.signature = operator.sign(&signing::voucher_input(agent.as_str(), &key, &voucher)).to_vec().into();
    voucher
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 0).unwrap()
    }

    fn id(text: &str) -> AgentId {
        AgentId::parse(text).unwrap()
    }

    fn key_id(text: &str) -> KeyId {
        KeyId::parse(text).unwrap()
    }

    fn key(seed: u8) -> PrivateKey {
        PrivateKey::from_seed(&[seed; 32])
    }

    fn agent_key(name: &str, key: &PrivateKey, vouchers: Vec<v1::KeyVoucher>) -> v1::AgentKey {
        let public_key = key.public().as_bytes().to_vec().into();
        v1::AgentKey { key_id: name.into(), public_key, vouchers, ..Default::default() }
    }

    #[test]
    fn a_vouched_key_is_good_for_its_agent_and_its_name_and_its_time() {
        let (operator, alice) = (key(1), key(2));
        let end = prost_types::Timestamp { seconds: 100, nanos: 0 };
        let word = vouch(&operator, &key_id("ops"), &id("alice"), &key_id("k1"), &alice.public(), Some(end));
        let trust = Trust::Operators(HashMap::from([(key_id("ops"), operator.public())]));
        let good = agent_key("k1", &alice, vec![word.clone()]);
        assert!(trust.accepts(&id("alice"), &good, at(99)));
        assert!(!trust.accepts(&id("alice"), &good, at(100)), "the word is over");
        assert!(!trust.accepts(&id("mallory"), &good, at(99)), "another agent");
        assert!(!trust.accepts(&id("alice"), &agent_key("k2", &alice, vec![word.clone()]), at(99)), "another name");
        assert!(!trust.accepts(&id("alice"), &agent_key("k1", &key(3), vec![word.clone()]), at(99)), "another key");
        assert!(!trust.accepts(&id("alice"), &agent_key("k1", &alice, vec![]), at(99)), "without a voucher");
        let longer = v1::KeyVoucher { not_after_time: None, ..word.clone() };
        assert!(
            !trust.accepts(&id("alice"), &agent_key("k1", &alice, vec![longer]), at(99)),
            "a word that was changed"
        );
        let others = Trust::Operators(HashMap::from([(key_id("ops"), key(4).public())]));
        assert!(!others.accepts(&id("alice"), &good, at(99)), "another operator under the same name");
        assert!(trust.accepts(&AgentId::broker(), &agent_key("b", &key(5), vec![]), at(99)), "the broker's own");
    }

    #[test]
    fn pinned_keys_are_the_only_ones() {
        let trust = Trust::Pinned(HashMap::from([(id("alice"), vec![key(2).public()])]));
        assert!(trust.accepts(&id("alice"), &agent_key("any-name", &key(2), vec![]), at(0)));
        assert!(!trust.accepts(&id("alice"), &agent_key("k1", &key(3), vec![]), at(0)));
        assert!(!trust.accepts(&id("bob"), &agent_key("k1", &key(2), vec![]), at(0)));
        let broker = AgentId::broker();
        assert!(trust.accepts(&broker, &agent_key("b", &key(5), vec![]), at(0)), "no key of the broker is pinned");
        let trust = Trust::Pinned(HashMap::from([(broker.clone(), vec![key(4).public()])]));
        assert!(trust.accepts(&broker, &agent_key("b", &key(4), vec![]), at(0)));
        assert!(!trust.accepts(&broker, &agent_key("b", &key(5), vec![]), at(0)), "another key is pinned");
    }
}
