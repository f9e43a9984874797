//! The cost of validating a plan of the most subtasks.

use baton::{
    domain::plan::{SUBTASKS_MAX, Terms},
    envelope,
    proto::v1,
};

use super::Part;

/// The subtasks of a layer. Each needs all subtasks of the layer before, and consumes the topics that these produce.
const WIDTH: usize = 16;

pub(crate) fn parts() -> Vec<Part> {
    let plan = layers();
    vec![Part::one("plan/validate-256", move || {
        let spec = envelope::plan_of(&plan, &Terms::default()).expect("its fields are valid");
        assert_eq!(std::hint::black_box(spec.problems()), []);
    })]
}

fn layers() -> v1::Plan {
    let subtask = |number: usize| {
        let layer = number / WIDTH;
        let before = (layer.max(1) - 1) * WIDTH..layer * WIDTH;
        v1::Subtask {
            id: format!("s{number}"),
            description: format!("Work out figure {number} from the figures before."),
            agent_type: "worker".to_owned(),
            dependencies: before.clone().map(|earlier| format!("s{earlier}")).collect(),
            // No subtask consumes those of the last layer.
            produces: (number + WIDTH < SUBTASKS_MAX).then(|| format!("figure-{number}")).into_iter().collect(),
            consumes: before.map(|earlier| format!("figure-{earlier}")).collect(),
            ..Default::default()
        }
    };
    let subtasks = (0..SUBTASKS_MAX).map(subtask).collect();
    v1::Plan { plan_id: "p".to_owned(), subtasks, mode: v1::PlanMode::Hybrid.into(), ..Default::default() }
}
