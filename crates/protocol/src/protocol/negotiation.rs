//! What the messages of a negotiation say, in types of their own.

use crate::numbered;

/// The rule by which the broker awards a negotiation. Ties are decided by the other rules in the order of this list,
/// then by the time of the offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AwardRule {
    /// The offer with the highest confidence.
    HighestConfidence,
    /// The offer with the shortest estimated duration. An offer without one comes last.
    Soonest,
    /// The offer of the agent with the least load.
    LeastLoaded,
    /// The offer with the lowest cost.
    LowestCost,
}

impl AwardRule {
    /// All rules, in the order in which they decide ties.
    pub const ALL: [Self; 4] = [Self::HighestConfidence, Self::Soonest, Self::LeastLoaded, Self::LowestCost];
}

numbered! {
    AwardRule { HighestConfidence = 1, Soonest = 2, LeastLoaded = 3, LowestCost = 4, }
}
