//! What is misunderstood of a delivery's fate, where a fault is on: see [`crate::faults`].

use std::borrow::Cow;

use crate::{
    domain::mailbox::{Fate, RETRY_AFTER_MAX},
    faults::{Fault, is_on},
};

/// The fate as the broker takes it.
pub(super) fn fate(fate: &Fate) -> Cow<'_, Fate> {
    match fate {
        Fate::Failed { .. } if is_on(Fault::LosesNackedMail) => Cow::Owned(Fate::Acked),
        Fate::Shutdown { text, retry_after } if is_on(Fault::CountsShutdowns) => {
            Cow::Owned(Fate::Failed { text: text.clone(), retry_after: *retry_after })
        }
        Fate::Overdue if is_on(Fault::NeverRedelivers) => Cow::Owned(Fate::Extend { extension: Some(RETRY_AFTER_MAX) }),
        _ => Cow::Borrowed(fate),
    }
}
