//! The breadth of permits: whether a permit covers only entities in which the principal participates.
//!
//! A permit is narrow if one of its `when` clauses requires `resource.participants.contains(principal)`. If only narrow
//! permits concern a principal, the indexes by participant contain everything that it may read.

use cedar_policy::{ActionConstraint, Effect, EntityUid, Policy, PolicySet};
use serde_json::{Value, json};

use super::{
    question::{Action, Principal},
    shadows::Scope,
};

/// The permits that are not narrow.
pub(super) struct WidePermits(Vec<WidePermit>);

struct WidePermit {
    principal: Scope,
    /// `None`: all actions.
    actions: Option<Vec<EntityUid>>,
}

impl WidePermits {
    pub(super) fn of(set: &PolicySet) -> Self {
        let is_wide = |rule: &&Policy| rule.effect() == Effect::Permit && !is_narrow(rule);
        let wide = |rule: &Policy| WidePermit {
            principal: rule.principal_constraint().into(),
            actions: match rule.action_constraint() {
                ActionConstraint::Any => None,
                ActionConstraint::In(actions) => Some(actions),
                ActionConstraint::Eq(action) => Some(vec![action]),
            },
        };
        Self(set.policies().filter(is_wide).map(wide).collect())
    }

    /// Whether a wide permit concerns this principal and this action. Its conditions may still fail.
    pub(super) fn concern(&self, principal: &Principal<'_>, action: &Action<'_>) -> bool {
        let (who, groups, action) = (principal.uid(), principal.groups(), action.uid());
        // The schema has no groups of actions, so equal ids are all that counts.
        let about_action = |wide: &WidePermit| wide.actions.as_ref().is_none_or(|actions| actions.contains(&action));
        self.0.iter().any(|wide| about_action(wide) && wide.principal.holds(&who, &groups))
    }
}

fn is_narrow(rule: &Policy) -> bool {
    // A rule that cannot be inspected counts as wide. That costs time, but hides nothing.
    let Ok(rule) = rule.to_json() else { return false };
    let clauses = rule["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    clauses.iter().any(|clause| clause["kind"] == "when" && demands_participation(&clause["body"]))
}

fn demands_participation(condition: &Value) -> bool {
    let participants = json!({ ".": { "left": { "Var": "resource" }, "attr": "participants" } });
    let participation = json!({ "contains": { "left": participants, "right": { "Var": "principal" } } });
    let both = &condition["&&"];
    // Only a conjunction demands each of its sides. Any other operator makes the rule wide.
    *condition == participation
        || (both.is_object() && (demands_participation(&both["left"]) || demands_participation(&both["right"])))
}

#[cfg(test)]
mod tests {
    use crate::{
        ids::AgentType,
        policy::{Action, Agent, Operator, Policies, Principal, Source},
    };

    fn reaches(rules: &str, principal: Principal<'_>) -> bool {
        let policies = Policies::parse(&[Source::new("test.cedar", rules)]).unwrap_or_else(|error| panic!("{error}"));
        policies.may_reach_beyond_participation(principal, Action::ReadTask)
    }

    #[test]
    fn participants_reach_what_is_theirs_and_operators_everything() {
        let agent = Principal::Agent(Agent { id: "a", types: &[] });
        let built_in = Policies::built_in();
        let beyond = |principal| built_in.may_reach_beyond_participation(principal, Action::ReadTask);
        assert!(!beyond(agent) && !beyond(Principal::Anonymous));
        assert!(beyond(Principal::Operator(Operator { name: "olga", groups: &[] })));
        let open = Policies::development();
        assert!(open.may_reach_beyond_participation(Principal::Anonymous, Action::ReadHandoff));
        assert!(!open.may_reach_beyond_participation(Principal::Anonymous, Action::ReadAuditLog));
    }

    #[test]
    fn a_permit_without_that_condition_reaches_further_for_those_it_is_about() {
        let auditors = [AgentType::parse("audit").unwrap()];
        let (plain, auditor) = (&[][..], &auditors[..]);
        let agent = |types| Principal::Agent(Agent { id: "a", types });
        for (rule, of_plain, of_auditor) in [
            ("permit(principal in Type::\"audit\", action == Action::\"readTask\", resource);", false, true),
            ("permit(principal is Agent in Type::\"audit\", action, resource);", false, true),
            ("permit(principal == Agent::\"a\", action in [Action::\"readTask\"], resource);", true, true),
            ("permit(principal == Agent::\"b\", action, resource);", false, false),
            ("permit(principal, action == Action::\"readHandoff\", resource);", false, false),
            ("permit(principal is Operator, action, resource);", false, false),
            ("forbid(principal, action, resource);", false, false),
            (
                "permit(principal is Agent, action == Action::\"readTask\", resource)
                 when { principal.id like \"team-*\" && resource.participants.contains(principal) };",
                false,
                false,
            ),
            (
                "permit(principal is Agent, action == Action::\"readTask\", resource)
                 when { principal.id like \"team-*\" || resource.participants.contains(principal) };",
                true,
                true,
            ),
            (
                "permit(principal is Agent, action == Action::\"readTask\", resource)
                 unless { resource.participants.contains(principal) };",
                true,
                true,
            ),
            (
                "permit(principal is Agent, action == Action::\"readTask\", resource)
                 when { resource.participants.contains(Agent::\"b\") };",
                true,
                true,
            ),
        ] {
            assert_eq!((reaches(rule, agent(plain)), reaches(rule, agent(auditor))), (of_plain, of_auditor), "{rule}");
        }
    }
}
