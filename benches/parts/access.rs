//! The cost of authorization and of rate limits.

use baton::{
    broker::{AgentLimits, limits::Rates},
    ids::{AgentId, AgentType},
    policy::{Action, Agent, Policies, Principal, Question, Resource, Shared},
};

use super::Part;

pub(crate) fn parts() -> Vec<Part> {
    let (known, new, shared) = (Policies::built_in(), Policies::built_in(), Policies::built_in());
    let types = |name: &str| vec![AgentType::parse(name).expect("it is a name")];
    let (from, to) = (types("support"), types("billing"));
    let (new_from, new_to) = (from.clone(), to.clone());
    let mut number = 0_u64;
    let rates = Rates::new(&AgentLimits {
        messages_per_second: u32::MAX,
        bytes_per_second: u32::MAX,
        ..AgentLimits::default()
    });
    let agent = AgentId::parse("alice").expect("it is a name");
    vec![
        Part::one("access/decided-before", move || {
            assert!(hand_off(&known, &from, &to, "refund"));
        }),
        Part::one("access/decided-anew", move || {
            number += 1;
            assert!(hand_off(&new, &new_from, &new_to, &format!("task-type-{number}")));
        }),
        Part::one("access/read-task", move || {
            let principal = Principal::Agent(Agent { id: "alice", types: &[] });
            let resource = Resource::Task(Shared { id: "ticket-7", participants: &["bob", "alice"] });
            assert!(shared.decide(&Question { principal, action: Action::ReadTask, resource }).is_allowed);
        }),
        Part::one("access/limits", move || {
            drop(rates.check(&agent, 300));
        }),
    ]
}

fn hand_off(policies: &Policies, from: &[AgentType], to: &[AgentType], task_type: &str) -> bool {
    let principal = Principal::Agent(Agent { id: "alice", types: from });
    let resource = Resource::Agent(Agent { id: "bob", types: to });
    let action = Action::HandOff { task_type, mode: "TRANSFER" };
    policies.decide(&Question { principal, action, resource }).is_allowed
}
