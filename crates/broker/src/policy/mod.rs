//! Authorization by policies in the Cedar language.
//!
//! Owns the schema, the built-in policies, reading and checking policy files, and decisions with the rules that made
//! them. Must not know how a caller authenticates, nor the effect of a decision. An action without a permit is denied,
//! and a forbid overrides permits. A rule that fails during evaluation denies, so that a mistake never grants access.

mod breadth;
mod cases;
mod depth;
mod files;
mod question;
mod shadows;

use std::{
    fmt,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use cedar_policy::{Authorizer, Decision as CedarDecision, PolicyId, PolicySet, Schema, ValidationMode, Validator};
use quick_cache::sync::Cache;
use sha2::{Digest as _, Sha256};

use self::breadth::WidePermits;
pub use self::{
    cases::{Asked, Case, CaseError, Cases, Checked},
    files::{PolicyError, Source},
    question::{Action, Agent, Operator, Principal, Question, Resource, Shared},
};

/// The schema of the policies.
pub const SCHEMA: &str = include_str!("baton.cedarschema");
/// The default policy.
pub const DEFAULT: &str = include_str!("default.cedar");
/// The addition of open enrollment to the default policy.
pub const DEVELOPMENT: &str = include_str!("development.cedar");

/// The most cached decisions. The cache evicts old decisions without recent hits first.
const DECISIONS_KEPT: usize = 65_536;

static PARSED_SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let (schema, _warnings) = Schema::from_cedarschema_str(SCHEMA).expect("a test parses the schema that is built in");
    schema
});

/// Policies that conform to the schema, with a cache of their decisions.
pub struct Policies {
    set: PolicySet,
    authorizer: Authorizer,
    /// Never stale: the cache belongs to these policies, and each key contains every other input of its decision.
    decisions: Cache<String, Arc<Decision>>,
    evaluations: AtomicU64,
    wide: WidePermits,
    warnings: Vec<String>,
    digest: [u8; 32],
}

/// A decision with its reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether the action is permitted.
    pub is_allowed: bool,
    /// The ids of the deciding rules: the permits, or the forbids. Empty: no rule permits the action.
    pub rules: Vec<String>,
    /// The rules that failed during evaluation. Any failure denies.
    pub failures: Vec<String>,
}

impl fmt::Display for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.rules.join(", ");
        match (self.is_allowed, self.rules.is_empty(), self.failures.as_slice()) {
            (_, _, [first, ..]) => write!(formatter, "a policy failed: {first}"),
            (true, _, []) => write!(formatter, "permitted by {rules}"),
            (false, false, []) => write!(formatter, "forbidden by {rules}"),
            (false, true, []) => write!(formatter, "no policy permits it"),
        }
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.rule_ids()).finish()
    }
}

/// The stack of the thread that checks policies: far more than [`depth::DEPTH_MAX`] levels take. Most of it is never used.
const PARSE_STACK_BYTES: usize = 64 * 1024 * 1024;

impl Policies {
    /// Parses policies and checks them against the schema. Reports all problems together.
    ///
    /// # Errors
    /// Invalid syntax, an expression of over 100 levels, a name that the schema does not have, a template, or a duplicate rule id.
    pub fn parse(sources: &[Source]) -> Result<Self, PolicyError> {
        // Cedar recurses. On a thread of the broker or of a test it could end the process, or leave a part unchecked.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("baton-policies".to_owned()).stack_size(PARSE_STACK_BYTES);
            let parsing = thread.spawn_scoped(scope, || Self::parse_here(sources)).map_err(PolicyError::Thread)?;
            parsing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn parse_here(sources: &[Source]) -> Result<Self, PolicyError> {
        let set = files::parse(sources)?;
        let result = Validator::new(PARSED_SCHEMA.clone()).validate(&set, ValidationMode::Strict);
        let problems: Vec<String> = result.validation_errors().map(ToString::to_string).collect();
        if !problems.is_empty() {
            return Err(PolicyError::Problems(problems));
        }
        let warned = result.validation_warnings().map(ToString::to_string);
        let warnings = warned.chain(shadows::find(&set)).collect();
        let mut digest = Sha256::new();
        for source in sources {
            digest.update((source.text.len() as u64).to_be_bytes());
            digest.update(&source.text);
        }
        let (authorizer, decisions, digest) = (Authorizer::new(), Cache::new(DECISIONS_KEPT), digest.finalize().into());
        let wide = WidePermits::of(&set);
        let evaluations = AtomicU64::new(0);
        Ok(Self { set, authorizer, decisions, evaluations, wide, warnings, digest })
    }

    /// The default policy.
    pub fn built_in() -> Arc<Self> {
        static BUILT_IN: LazyLock<Arc<Policies>> =
            LazyLock::new(|| Arc::new(Policies::parse(&[Source::new("default", DEFAULT)]).expect("a test parses it")));
        BUILT_IN.clone()
    }

    /// The policy of open enrollment.
    pub fn development() -> Arc<Self> {
        static DEVELOPING: LazyLock<Arc<Policies>> = LazyLock::new(|| {
            let sources = [Source::new("default", DEFAULT), Source::new("development", DEVELOPMENT)];
            Arc::new(Policies::parse(&sources).expect("a test parses it"))
        });
        DEVELOPING.clone()
    }

    /// The SHA-256 of the policies' texts, each after its length (8 bytes, big-endian). Identifies the version in
    /// force.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Warnings about probable mistakes: rules that can never decide anything.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The ids of all rules.
    pub fn rule_ids(&self) -> Vec<String> {
        self.set.policies().map(|policy| name_of(policy.id())).collect()
    }

    /// The text of a rule.
    pub fn rule(&self, id: &str) -> Option<String> {
        self.set.policy(&PolicyId::new(id)).map(ToString::to_string)
    }

    /// Decides a question. Questions that every message asks are cached per agents and their types.
    pub fn decide(&self, question: &Question<'_>) -> Arc<Decision> {
        let Some(key) = question.cache_key() else { return Arc::new(self.evaluate(question)) };
        if let Some(decided) = self.decisions.get(&key) {
            return decided;
        }
        // Two callers may evaluate the same question at the same time. Their decisions are equal.
        let decision = Arc::new(self.evaluate(question));
        self.decisions.insert(key, decision.clone());
        decision
    }

    /// The evaluations of these policies so far: the questions whose decision was not in the cache. Each costs tens of
    /// microseconds.
    pub fn evaluations(&self) -> u64 {
        self.evaluations.load(Ordering::Relaxed)
    }

    /// Whether a permit may apply to tasks, handoffs or dead letters without the principal's participation, or to an
    /// action on other resources at all. `false`: no permit applies, independent of conditions.
    pub fn may_reach_beyond_participation(&self, principal: Principal<'_>, action: Action<'_>) -> bool {
        self.wide.concern(&principal, &action)
    }

    fn evaluate(&self, question: &Question<'_>) -> Decision {
        self.evaluations.fetch_add(1, Ordering::Relaxed);
        let (request, entities) = question.to_cedar();
        let response = self.authorizer.is_authorized(&request, &self.set, &entities);
        let diagnostics = response.diagnostics();
        let failures: Vec<String> = diagnostics.errors().map(ToString::to_string).collect();
        let mut rules: Vec<String> = diagnostics.reason().map(name_of).collect();
        rules.sort();
        // Cedar leaves a rule that fails out of the decision, also a forbid. Denying keeps this from granting access.
        Decision { is_allowed: response.decision() == CedarDecision::Allow && failures.is_empty(), rules, failures }
    }
}

/// The id as written; its `Display` form is escaped.
fn name_of(id: &PolicyId) -> String {
    let name: &str = id.as_ref();
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::AgentType;

    const A: Agent<'static> = Agent { id: "a", types: &[] };

    fn agent(id: &str) -> Principal<'_> {
        Principal::Agent(Agent { id, types: &[] })
    }

    fn operator(name: &str) -> Principal<'_> {
        Principal::Operator(Operator { name, groups: &[] })
    }

    fn to_agent(id: &str) -> Resource<'_> {
        Resource::Agent(Agent { id, types: &[] })
    }

    fn hand_off<'a>(task_type: &'a str) -> Action<'a> {
        Action::HandOff { task_type, mode: "TRANSFER" }
    }

    fn policies(text: &str) -> Policies {
        Policies::parse(&[Source::new("test.cedar", text)]).unwrap_or_else(|error| panic!("{error}"))
    }

    fn problem(text: &str) -> String {
        Policies::parse(&[Source::new("test.cedar", text)]).unwrap_err().to_string()
    }

    #[test]
    fn the_built_in_policies_have_no_unmeant_rule() {
        assert_eq!(Policies::built_in().warnings(), &[] as &[String]);
        // The open rules make some narrower rules superfluous, and cause no other warning.
        let is_wide = |warning: &String| warning.contains("rule open-enrollment covers all of it");
        assert!(Policies::development().warnings().iter().all(is_wide));
    }

    #[test]
    fn a_rule_is_checked_and_decided_up_to_the_bound_on_its_depth_and_refused_beyond() {
        let rule = |condition: &str| format!("permit(principal, action, resource) when {{ {condition} }};");
        let nested = |levels: usize| rule(&format!("{}true{}", "(".repeat(levels), ")".repeat(levels)));
        let terms =
            |first: &str, many: usize| rule(&format!("{first}{}", r#" || principal == Agent::"b""#.repeat(many)));
        let within = depth::DEPTH_MAX - 5;
        for text in
            [nested(within), terms(r#"principal == Agent::"a""#, within), rule(&format!("{}true", "!".repeat(4)))]
        {
            let policies = policies(&text);
            let decide = move || {
                let (principal, action, resource) = (agent("a"), hand_off("refund"), to_agent("b"));
                policies.decide(&Question { principal, action, resource })
            };
            // An evaluation without optimisations takes more stack than a test has.
            let decision =
                std::thread::Builder::new().stack_size(16 * 1024 * 1024).spawn(decide).unwrap().join().unwrap();
            assert_eq!((decision.is_allowed, &*decision.failures), (true, &[][..]), "{}", &text[..60]);
        }
        // The first term is the deepest one.
        let wrong = problem(&terms(r#""a" < 1"#, within));
        assert!(!wrong.contains("levels"), "{wrong}");
        for text in [nested(600), nested(100_000), terms(r#""a" < 1"#, 5000), terms("true", 5000)] {
            let refused = problem(&text);
            assert!(refused.contains("test.cedar, line 1: an expression has over 100 levels"), "{refused}");
        }
    }

    #[test]
    fn every_question_fits_the_schema() {
        for question in question::examples() {
            question.check(&PARSED_SCHEMA).unwrap_or_else(|problem| panic!("{question:?}: {problem}"));
        }
    }

    #[test]
    fn by_default_agents_hand_off_and_participants_read() {
        let policies = Policies::built_in();
        let decide =
            |principal, action, resource| policies.decide(&Question { principal, action, resource }).is_allowed;
        assert!(decide(agent("a"), hand_off("refund"), to_agent("b")));
        let task = |participants| Resource::Task(Shared { id: "t", participants });
        assert!(decide(agent("a"), Action::ReadTask, task(&["b", "a"])));
        assert!(!decide(agent("c"), Action::ReadTask, task(&["b", "a"])));
        assert!(decide(operator("olga"), Action::ReadTask, task(&[])));
        assert!(!decide(Principal::Anonymous, Action::ReadTask, task(&["anonymous"])));
        assert!(decide(agent("a"), Action::ManageKeys, to_agent("a")));
        assert!(!decide(agent("a"), Action::ManageKeys, to_agent("b")));
        let deregister = |force| Action::Deregister { force };
        assert!(decide(agent("a"), deregister(false), to_agent("a")));
        assert!(!decide(agent("a"), deregister(true), to_agent("a")));
        assert!(!decide(agent("a"), deregister(false), to_agent("b")));
        let billing = Resource::Type("billing");
        assert!(!decide(agent("a"), Action::AssignType { agent: A }, billing));
        assert!(decide(operator("olga"), Action::AssignType { agent: A }, billing));
        assert!(!decide(agent("a"), Action::Invite, Resource::Broker));
    }

    #[test]
    fn open_enrollment_is_for_registering_and_reading_not_for_deciding() {
        let policies = Policies::development();
        let decide = |action, resource| {
            let principal = Principal::Anonymous;
            policies.decide(&Question { principal, action, resource }).is_allowed
        };
        assert!(decide(Action::Enroll, to_agent("a")));
        assert!(decide(Action::ReadTask, Resource::Task(Shared { id: "t", participants: &[] })));
        let letter = Resource::DeadLetter(Shared { id: "1", participants: &[] });
        assert!(!decide(Action::SettleDeadLetter, letter));
        assert!(!decide(Action::ManageKeys, to_agent("a")));
        assert!(!decide(Action::ReadAuditLog, Resource::Broker));
    }

    #[test]
    fn the_rule_that_decided_is_named() {
        let policies = policies(
            "@id(\"all\") permit(principal, action, resource);
             @id(\"refunds\") forbid(principal, action == Action::\"handOff\", resource)
             when { context.taskType == \"refund\" && !(resource in Type::\"billing\") };",
        );
        let billing = [AgentType::parse("billing").unwrap()];
        let ask = |task_type, types: &[AgentType]| {
            let resource = Resource::Agent(Agent { id: "b", types });
            policies.decide(&Question { principal: agent("a"), action: hand_off(task_type), resource })
        };
        assert_eq!(ask("refund", &[]).to_string(), "forbidden by refunds");
        assert_eq!(ask("refund", &billing).to_string(), "permitted by all");
        assert_eq!(ask("invoice", &[]).to_string(), "permitted by all");
        let nothing = policies_denying().decide(&Question {
            principal: agent("a"),
            action: hand_off("x"),
            resource: to_agent("b"),
        });
        assert_eq!(nothing.to_string(), "no policy permits it");
    }

    fn policies_denying() -> Policies {
        policies("permit(principal is Operator, action, resource);")
    }

    #[test]
    fn a_policy_that_fails_denies() {
        let policies = policies(
            "permit(principal, action, resource);
             @id(\"overflow\") forbid(principal, action == Action::\"handOff\", resource)
             when { 9223372036854775807 + (if context.taskType == \"x\" then 1 else 0) == 0 };",
        );
        let decision =
            policies.decide(&Question { principal: agent("a"), action: hand_off("x"), resource: to_agent("b") });
        assert!(!decision.is_allowed && decision.to_string().contains("overflow"), "{decision}");
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told_with_its_name() {
        for (text, parts) in [
            ("permit(principal, action, resource", ["test.cedar", "line 1"]),
            ("permit(principal is Robot, action, resource);", ["Robot", "test.cedar"]),
            ("permit(principal, action == Action::\"fly\", resource);", ["fly", "test.cedar"]),
            (
                "permit(principal, action == Action::\"handOff\", resource) when { context.colour == \"red\" };",
                ["colour", "test.cedar"],
            ),
            ("permit(principal == ?principal, action, resource);", ["template", "test.cedar"]),
            (
                "@id(\"one\") permit(principal, action, resource);
                 @id(\"one\") forbid(principal, action, resource);",
                ["one", "twice"],
            ),
        ] {
            let problem = problem(text);
            assert!(parts.iter().all(|part| problem.contains(part)), "{text} gives {problem}");
        }
    }

    #[test]
    fn a_decision_is_kept_and_never_stale() {
        let policies = policies("permit(principal, action, resource in Type::\"billing\");");
        let billing = [AgentType::parse("billing").unwrap()];
        let ask = |types: &[AgentType], task_type| {
            let resource = Resource::Agent(Agent { id: "b", types });
            policies.decide(&Question { principal: agent("a"), action: hand_off(task_type), resource })
        };
        assert!(!ask(&[], "x").is_allowed);
        assert!(ask(&billing, "x").is_allowed, "the agent has changed");
        assert!(Arc::ptr_eq(&ask(&billing, "x"), &ask(&billing, "x")), "it is kept");
        assert!(!Arc::ptr_eq(&ask(&billing, "x"), &ask(&billing, "y")), "another question");
    }

    #[test]
    fn a_policy_can_permit_a_group_of_operators() {
        let policies = policies(
            "@id(\"sre\") permit(principal in Group::\"sre\", action == Action::\"settleDeadLetter\", resource);
             @id(\"sre-lead\") permit(principal is Operator in Group::\"lead\", action, resource)
             when { principal in Group::\"sre\" };",
        );
        let ask = |groups: &[&str], action| {
            let groups: Vec<String> = groups.iter().map(|name| (*name).to_owned()).collect();
            let principal = Principal::Operator(Operator { name: "olga", groups: &groups });
            let resource = Resource::DeadLetter(Shared { id: "1", participants: &[] });
            (
                policies.decide(&Question { principal, action, resource }).rules.clone(),
                policies.may_reach_beyond_participation(principal, action),
            )
        };
        assert_eq!(ask(&["sre", "on call"], Action::SettleDeadLetter), (vec!["sre".to_owned()], true));
        assert_eq!(ask(&["lead", "sre"], Action::ReadDeadLetter), (vec!["sre-lead".to_owned()], true));
        assert_eq!(ask(&["on call"], Action::SettleDeadLetter), (vec![], false));
        assert_eq!(ask(&[], Action::SettleDeadLetter), (vec![], false));
    }
}
