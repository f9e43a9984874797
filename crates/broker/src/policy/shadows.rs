//! Finds rules that can never decide anything, because another rule without conditions covers them.

use cedar_policy::{
    ActionConstraint, Effect, EntityTypeName, EntityUid, Policy, PolicySet, PrincipalConstraint, ResourceConstraint,
};

/// A warning for each superfluous rule.
pub(super) fn find(set: &PolicySet) -> Vec<String> {
    let mut rules: Vec<&Policy> = set.policies().collect();
    rules.sort_by_key(|rule| rule.id().to_string());
    let mut found = Vec::new();
    for (place, rule) in rules.iter().enumerate() {
        let shadow = rules.iter().enumerate().find(|(other_place, other)| {
            let is_same = *other_place == place;
            // If two rules cover each other, only the second is superfluous.
            let is_mutual = covers(rule, other) && rule.effect() == other.effect() && place < *other_place;
            !is_same && !is_mutual && covers(other, rule) && other_wins(other, rule)
        });
        if let Some((_, shadow)) = shadow {
            let why = match (shadow.effect(), rule.effect()) {
                (Effect::Forbid, Effect::Permit) => "forbids all that it permits",
                _ => "covers all of it",
            };
            found.push(format!("rule {} never decides anything: rule {} {why}", rule.id(), shadow.id()));
        }
    }
    found
}

/// Whether `other` overrides or repeats `rule`. A permit never makes a forbid superfluous.
fn other_wins(other: &Policy, rule: &Policy) -> bool {
    other.effect() == Effect::Forbid || rule.effect() == Effect::Permit
}

fn covers(wide: &Policy, narrow: &Policy) -> bool {
    // A condition may exclude any case, so a rule with one covers nothing for certain.
    !wide.has_non_scope_constraint()
        && Scope::from(wide.principal_constraint()).covers(&narrow.principal_constraint().into())
        && Scope::from(wide.resource_constraint()).covers(&narrow.resource_constraint().into())
        && covers_actions(&wide.action_constraint(), &narrow.action_constraint())
}

fn covers_actions(wide: &ActionConstraint, narrow: &ActionConstraint) -> bool {
    let list = |constraint: &ActionConstraint| match constraint {
        ActionConstraint::Any => None,
        ActionConstraint::In(actions) => Some(actions.clone()),
        ActionConstraint::Eq(action) => Some(vec![action.clone()]),
    };
    match (list(wide), list(narrow)) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) => narrow.iter().all(|action| wide.contains(action)),
    }
}

/// The scope of a rule's principal or resource.
pub(super) enum Scope {
    Any,
    Is(EntityTypeName),
    In(EntityUid),
    IsIn(EntityTypeName, EntityUid),
    Eq(EntityUid),
}

impl Scope {
    /// Whether the scope contains this entity, a member of these groups.
    pub(super) fn holds(&self, one: &EntityUid, groups: &[EntityUid]) -> bool {
        let is_in = |group: &EntityUid| one == group || groups.contains(group);
        match self {
            Self::Any => true,
            Self::Is(kind) => one.type_name() == kind,
            Self::In(group) => is_in(group),
            Self::IsIn(kind, group) => one.type_name() == kind && is_in(group),
            Self::Eq(only) => one == only,
        }
    }

    fn covers(&self, narrow: &Self) -> bool {
        match (self, narrow) {
            (Self::Any, _) => true,
            (Self::Is(wide), Self::Is(narrow) | Self::IsIn(narrow, _)) => wide == narrow,
            (Self::Is(wide), Self::Eq(narrow)) => wide == narrow.type_name(),
            // Memberships are not known here, so only the group itself is in it for certain.
            (Self::In(wide), Self::In(narrow) | Self::IsIn(_, narrow) | Self::Eq(narrow)) => wide == narrow,
            (Self::IsIn(kind, wide), Self::IsIn(narrow_kind, narrow)) => kind == narrow_kind && wide == narrow,
            (Self::Eq(wide), Self::Eq(narrow)) => wide == narrow,
            // In doubt a rule is not covered: then a warning is missing, and none is wrong.
            (Self::Is(_) | Self::In(_) | Self::IsIn(..) | Self::Eq(_), _) => false,
        }
    }
}

impl From<PrincipalConstraint> for Scope {
    fn from(constraint: PrincipalConstraint) -> Self {
        match constraint {
            PrincipalConstraint::Any => Self::Any,
            PrincipalConstraint::In(group) => Self::In(group),
            PrincipalConstraint::Eq(one) => Self::Eq(one),
            PrincipalConstraint::Is(kind) => Self::Is(kind),
            PrincipalConstraint::IsIn(kind, group) => Self::IsIn(kind, group),
        }
    }
}

impl From<ResourceConstraint> for Scope {
    fn from(constraint: ResourceConstraint) -> Self {
        match constraint {
            ResourceConstraint::Any => Self::Any,
            ResourceConstraint::In(group) => Self::In(group),
            ResourceConstraint::Eq(one) => Self::Eq(one),
            ResourceConstraint::Is(kind) => Self::Is(kind),
            ResourceConstraint::IsIn(kind, group) => Self::IsIn(kind, group),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::{Policies, Source};

    fn warnings(rules: &str) -> Vec<String> {
        Policies::parse(&[Source::new("test.cedar", rules)]).unwrap().warnings().to_vec()
    }

    const NARROW: &str = "@id(\"narrow\") permit(principal == Agent::\"a\", action == Action::\"handOff\", resource \
                          in Type::\"t\") when { context.taskType == \"x\" };";

    #[test]
    fn a_rule_under_a_wider_one_is_told() {
        for (wide, expected) in [
            ("@id(\"wide\") forbid(principal, action, resource);", Some("forbids all that it permits")),
            ("@id(\"wide\") permit(principal is Agent, action, resource);", Some("covers all of it")),
            (
                "@id(\"wide\") permit(principal, action in [Action::\"send\", Action::\"handOff\"], resource in \
                 Type::\"t\");",
                Some("covers all of it"),
            ),
            ("@id(\"other\") permit(principal is Operator, action, resource);", None),
            ("@id(\"other\") permit(principal == Agent::\"b\", action, resource);", None),
            ("@id(\"other\") permit(principal, action == Action::\"send\", resource);", None),
            ("@id(\"other\") forbid(principal, action, resource) when { principal == Agent::\"z\" };", None),
        ] {
            let found = warnings(&format!("{NARROW}\n{wide}"));
            let expected: Vec<String> = expected
                .map(|why| format!("rule narrow never decides anything: rule wide {why}"))
                .into_iter()
                .collect();
            assert_eq!(found, expected, "{wide}");
        }
    }

    #[test]
    fn a_forbid_under_a_permit_decides_a_lot() {
        let found = warnings(
            "@id(\"all\") permit(principal, action, resource);
             @id(\"but\") forbid(principal == Agent::\"a\", action, resource);",
        );
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn of_two_that_are_the_same_one_is_told() {
        let found = warnings(
            "@id(\"one\") permit(principal is Agent, action, resource);
             @id(\"two\") permit(principal is Agent, action, resource);",
        );
        assert_eq!(found, ["rule two never decides anything: rule one covers all of it"]);
    }
}
