use proptest::{collection::vec, prelude::*};

use super::*;
use crate::time::Timestamp;

#[derive(Debug, Clone, Default)]
struct Known {
    name: String,
    tags: Vec<String>,
    languages: Vec<String>,
    task_types: Vec<String>,
}

impl Skill for Known {
    fn name(&self) -> &str {
        &self.name
    }
    fn tags(&self) -> &[String] {
        &self.tags
    }
    fn languages(&self) -> &[String] {
        &self.languages
    }
    fn task_types(&self) -> &[String] {
        &self.task_types
    }
}

/// An agent that owns its facts.
#[derive(Debug, Clone)]
struct Agent {
    id: AgentId,
    types: Vec<AgentType>,
    skills: Vec<Known>,
    liveness: Liveness,
    load: Load,
    record: Summary,
    asked: u64,
}

impl Agent {
    fn new(id: &str, skills: &[&str]) -> Self {
        let skill = |name: &&str| Known { name: (*name).to_owned(), ..Known::default() };
        Self {
            id: AgentId::parse(id).unwrap(),
            types: Vec::new(),
            skills: skills.iter().map(skill).collect(),
            liveness: Liveness::Alive,
            load: Load { capacity: 4, ..Load::default() },
            record: Summary::default(),
            asked: 0,
        }
    }

    fn facts(&self) -> Facts<'_, Known> {
        Facts {
            agent: &self.id,
            types: &self.types,
            skills: &self.skills,
            liveness: self.liveness,
            load: self.load,
            record: self.record,
            asked: self.asked,
        }
    }
}

fn wanted(required: &[String]) -> Wanted<'_> {
    Wanted {
        agent_type: None,
        required_skills: required,
        preferred_skills: &[],
        task_type: "",
        languages: &[],
        tags: &[],
        priority: Priority::Medium,
        accept_timeout: Duration::from_secs(30),
    }
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn ranked(wanted: &Wanted<'_>, agents: &[Agent]) -> Vec<String> {
    let facts: Vec<_> = agents.iter().map(Agent::facts).collect();
    rank(wanted, &facts, |_| true).iter().map(|found| agents[found.place].id.to_string()).collect()
}

#[test]
fn a_more_specific_skill_meets_a_general_demand_and_never_the_other_way() {
    assert!(meets("finance.tax.de", "finance.tax"));
    assert!(meets("finance.tax", "finance.tax"));
    for (has, wanted) in [("finance.tax", "finance.tax.de"), ("finance.taxes", "finance.tax"), ("tax", "finance.tax")] {
        assert!(!meets(has, wanted), "{has} {wanted}");
    }
}

#[test]
fn an_agent_without_a_required_skill_does_not_pass_the_gate() {
    let required = texts(&["finance.tax", "writing"]);
    let agents = [Agent::new("a", &["finance.tax.de", "writing"]), Agent::new("b", &["finance.tax.de"])];
    assert_eq!(ranked(&wanted(&required), &agents), ["a"]);
    let reason = unfit(&wanted(&required), &agents[1].types, &agents[1].skills);
    assert_eq!(reason.as_deref(), Some("lacks writing"));
}

#[test]
fn type_tags_languages_and_task_types_filter() {
    let mut agent = Agent::new("a", &["tax"]);
    agent.types = vec![AgentType::parse("analyst").unwrap()];
    agent.skills[0] = Known {
        tags: texts(&["vat"]),
        languages: texts(&["de"]),
        task_types: texts(&["invoice"]),
        ..agent.skills[0].clone()
    };
    let (analyst, clerk) = (AgentType::parse("analyst").unwrap(), AgentType::parse("clerk").unwrap());
    let (vat, de, other) = (texts(&["vat"]), texts(&["de"]), texts(&["other"]));
    let all = Wanted { agent_type: Some(&analyst), tags: &vat, languages: &de, task_type: "invoice", ..wanted(&[]) };
    let reason = |wanted: Wanted<'_>| unfit(&wanted, &agent.types, &agent.skills);
    assert_eq!(reason(all), None);
    assert_eq!(reason(Wanted { agent_type: Some(&clerk), ..all }).as_deref(), Some("is not of type clerk"));
    assert_eq!(reason(Wanted { tags: &other, ..all }).as_deref(), Some("has no skill with tag other"));
    assert_eq!(reason(Wanted { languages: &other, ..all }).as_deref(), Some("has no skill in language other"));
    assert_eq!(reason(Wanted { task_type: "other", ..all }).as_deref(), Some("has no skill for task type other"));
}

#[test]
fn an_agent_that_the_policy_forbids_does_not_pass_the_gate() {
    let agents = [Agent::new("a", &[]), Agent::new("b", &[])];
    let facts: Vec<_> = agents.iter().map(Agent::facts).collect();
    let found = rank(&wanted(&[]), &facts, |agent| agent.as_str() == "b");
    assert_eq!(found.iter().map(|found| found.place).collect::<Vec<_>>(), [1]);
}

#[test]
fn presence_goes_before_room_and_room_before_the_score() {
    let good = Summary { offers: 50, completed: 50, median_decision: Some(Duration::ZERO) };
    let gone = Agent { liveness: Liveness::Gone, record: good, ..Agent::new("gone", &[]) };
    let suspect = Agent { liveness: Liveness::Suspect, record: good, ..Agent::new("suspect", &[]) };
    let full = Agent { load: Load { in_use: 4, capacity: 4, is_overloaded: false }, ..Agent::new("full", &[]) };
    let overloaded =
        Agent { load: Load { is_overloaded: true, ..Load::default() }, record: good, ..Agent::new("late", &[]) };
    let bad = Summary { offers: 50, completed: 0, median_decision: Some(Duration::from_secs(30)) };
    let free = Agent { record: bad, ..Agent::new("free", &[]) };
    let agents = [gone, suspect, full, overloaded, free];
    assert_eq!(ranked(&wanted(&[]), &agents), ["free", "late", "full", "suspect", "gone"]);
}

#[test]
fn a_tie_goes_to_the_agent_that_was_not_asked_for_the_longest_time_and_then_by_id() {
    let asked = |id, asked| Agent { asked, ..Agent::new(id, &[]) };
    let agents = [asked("d", 3), asked("c", 2), asked("b", 0), asked("a", 2)];
    assert_eq!(ranked(&wanted(&[]), &agents), ["b", "a", "c", "d"]);
}

#[test]
fn each_factor_has_its_words() {
    let required = texts(&["finance.tax"]);
    let preferred = texts(&["writing", "law"]);
    let mut agent = Agent::new("a", &["finance.tax.de", "law"]);
    agent.load = Load::new(Some((1, 0, 0)), 0, 4, false);
    agent.record = Summary { offers: 9, completed: 7, median_decision: Some(Duration::from_millis(1500)) };
    let wanted = Wanted { preferred_skills: &preferred, ..wanted(&required) };
    let factors = explain(&wanted, &agent.facts());
    let words: Vec<_> = factors.iter().map(|factor| (factor.name, factor.text.as_str())).collect();
    let expected = [
        ("skill cover", "2 of 3 skills, without writing"),
        ("free capacity", "1 of 4 in use"),
        ("outcome", "7 of the last 9 offers completed"),
        ("speed", "decides in 1.500 s of 30 s"),
    ];
    assert_eq!(words, expected);
    let values: Vec<f64> = factors.iter().map(|factor| (factor.value * 100.0).round() / 100.0).collect();
    assert_eq!(values, [0.67, 0.75, 0.73, 0.95]);
}

#[test]
fn an_agent_without_a_history_scores_a_half_for_outcome_and_speed() {
    let agent = Agent { load: Load::default(), ..Agent::new("a", &[]) };
    let factors = explain(&wanted(&[]), &agent.facts());
    assert_eq!(factors.each_ref().map(|factor| factor.value), [1.0, 0.5, 0.5, 0.5]);
    assert_eq!(
        factors.each_ref().map(|factor| factor.text.as_str()),
        ["no skill asked for", "0 in use, no capacity stated", "no offer in 7 days", "no decision in 7 days"]
    );
}

#[test]
fn urgent_work_weighs_outcome_and_speed_more() {
    let busy = Agent {
        load: Load { in_use: 3, capacity: 4, is_overloaded: false },
        record: Summary { offers: 10, completed: 10, median_decision: Some(Duration::from_secs(1)) },
        ..Agent::new("reliable", &[])
    };
    let idle = Agent {
        record: Summary { offers: 10, completed: 5, median_decision: Some(Duration::from_secs(9)) },
        ..Agent::new("idle", &[])
    };
    let agents = [busy, idle];
    let of = |priority| ranked(&Wanted { priority, ..wanted(&[]) }, &agents)[0].clone();
    assert_eq!(
        [Priority::Low, Priority::Medium, Priority::High, Priority::Critical].map(of),
        ["idle", "idle", "reliable", "reliable"]
    );
}

#[test]
fn load_is_the_greater_of_the_report_and_of_the_count() {
    assert_eq!(Load::new(Some((1, 1, 8)), 1, 4, false), Load { in_use: 2, capacity: 8, is_overloaded: false });
    assert_eq!(Load::new(Some((1, 1, 0)), 5, 4, false), Load { in_use: 5, capacity: 4, is_overloaded: false });
    assert_eq!(Load::new(None, 3, 0, false), Load { in_use: 3, capacity: 0, is_overloaded: false });
    assert!(Load::new(Some((u32::MAX, u32::MAX, 1)), 0, 0, false).is_full());
    assert!(!Load::new(Some((9, 9, 0)), 0, 0, false).is_full(), "without a capacity no agent is full");
}

/// Each request goes to the best agent, whose load then rises by one.
#[test]
fn a_burst_is_shared_evenly_by_equal_agents() {
    for capacity in [0, 8, 100] {
        let load = Load { capacity, ..Load::default() };
        let named = |number: u32| Agent { load, ..Agent::new(&format!("a{number}"), &[]) };
        let mut agents: Vec<Agent> = (0..8).map(named).collect();
        for request in 1..=83 {
            let best = ranked(&wanted(&[]), &agents)[0].clone();
            let asked = agents.iter_mut().find(|agent| agent.id.as_str() == best).unwrap();
            (asked.load.in_use, asked.asked) = (asked.load.in_use + 1, request);
        }
        assert!(agents.iter().all(|agent| [10, 11].contains(&agent.load.in_use)), "{agents:?}");
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_parts(seconds, 0).unwrap()
}

fn result(seconds: i64, completed: bool, decision: Option<u64>) -> OfferResult {
    OfferResult { at: at(seconds), completed, decision: decision.map(Duration::from_secs) }
}

#[test]
fn statistics_count_the_last_fifty_offers_of_seven_days() {
    let mut statistics = Statistics::default();
    (0..60).for_each(|second| statistics.add(result(second, second >= 50, Some(1))));
    let summary = statistics.summary(at(60));
    assert_eq!((summary.offers, summary.completed), (50, 10));
    let week = 7 * 24 * 60 * 60;
    assert_eq!(statistics.summary(at(week + 57)).offers, 2);
    assert_eq!(statistics.summary(at(week + 60)), Summary::default());
    statistics.add(result(week + 59, true, None));
    assert_eq!(statistics.results().len(), 1, "offers that no longer count are dropped");
}

#[test]
fn the_median_leaves_out_offers_without_a_decision() {
    let of = |decisions: &[Option<u64>]| {
        let results = decisions.iter().map(|decision| result(0, false, *decision)).collect();
        Statistics::of(results).summary(at(1)).median_decision
    };
    assert_eq!(of(&[None, None]), None);
    assert_eq!(of(&[Some(9), None, Some(1), Some(2)]), Some(Duration::from_secs(2)));
    assert_eq!(of(&[Some(9), Some(1), Some(2), Some(4)]), Some(Duration::from_secs(3)));
}

fn any_agent() -> impl Strategy<Value = Agent> {
    let names = prop::sample::subsequence(vec!["x", "x.y", "x.y.z", "w", "v"], 0..5);
    let liveness = prop_oneof![Just(Liveness::Alive), Just(Liveness::Suspect), Just(Liveness::Gone)];
    let load = (0..9u32, 0..5u32, any::<bool>());
    let record = (0..50u32, 0..50u32, prop::option::of(0..60u64));
    (names, liveness, load, record, 0..5u64).prop_map(|(names, liveness, load, record, asked)| {
        let (in_use, capacity, is_overloaded) = load;
        let (offers, completed, decision) = record;
        Agent {
            liveness,
            load: Load { in_use, capacity, is_overloaded },
            record: Summary {
                offers,
                completed: completed.min(offers),
                median_decision: decision.map(Duration::from_secs),
            },
            asked,
            ..Agent::new("a", &names)
        }
    })
}

proptest! {
    #[test]
    fn weighted_factors_add_up_to_the_score(
        mut agents in vec(any_agent(), 1..12),
        required in prop::sample::subsequence(vec!["x", "x.y"], 0..3),
        preferred in prop::sample::subsequence(vec!["w", "x.y.z", "u"], 0..3),
        is_urgent: bool,
    ) {
        for (number, agent) in agents.iter_mut().enumerate() {
            agent.id = AgentId::parse(&format!("a{number}")).unwrap();
        }
        let (required, preferred) = (texts(&required), texts(&preferred));
        let priority = if is_urgent { Priority::Critical } else { Priority::Low };
        let wanted = Wanted { preferred_skills: &preferred, priority, ..wanted(&required) };
        let facts: Vec<_> = agents.iter().map(Agent::facts).collect();
        let found = rank(&wanted, &facts, |_| true);
        let fit = agents.iter().filter(|agent| missing(&agent.skills, &required).is_empty()).count();
        prop_assert_eq!(found.len(), fit);
        for one in &found {
            let factors = explain(&wanted, &facts[one.place]);
            prop_assert!(factors.iter().all(|factor| (0.0..=1.0).contains(&factor.value)));
            let sum: f64 = factors.iter().map(|factor| factor.value * factor.weight).sum();
            prop_assert!((sum - one.score).abs() < 1e-12 && (0.0..=1.0 + 1e-9).contains(&one.score));
        }
        for pair in found.windows(2) {
            let [one, other] = [&facts[pair[0].place], &facts[pair[1].place]];
            prop_assert!(one.liveness <= other.liveness);
            if one.liveness == other.liveness {
                prop_assert!(one.load.is_full() <= other.load.is_full());
                if one.load.is_full() == other.load.is_full() {
                    prop_assert!(pair[0].score >= pair[1].score);
                }
            }
        }
        // The order does not depend on the order of the candidates.
        let backwards: Vec<_> = agents.iter().rev().map(Agent::facts).collect();
        let again = rank(&wanted, &backwards, |_| true);
        let ids = |list: &[Match], of: &[Facts<'_, Known>]| list.iter().map(|one| of[one.place].agent.clone()).collect::<Vec<_>>();
        prop_assert_eq!(ids(&found, &facts), ids(&again, &backwards));
    }

    #[test]
    fn weights_add_up_to_one(is_urgent: bool) {
        let priority = if is_urgent { Priority::High } else { Priority::Medium };
        prop_assert!((weights(priority).iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }
}
