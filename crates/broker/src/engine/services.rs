//! The services that the operator can switch off.
//!
//! What agents began before the switch goes on to its end: a negotiation ends by its deadlines, and mail that waits is
//! delivered.

use super::Engine;
use crate::{
    BrokerError,
    domain::{Header, MessageType},
    settings::Services,
};

/// The refusal of a workspace where the operator has switched workspaces off.
pub const NO_WORKSPACES: BrokerError =
    BrokerError::NotSupported { what: "workspaces, which [workspace] of the configuration switches off" };

impl Engine {
    /// Refuses a message of a service that is switched off.
    pub(super) fn check_service(&self, header: &Header) -> Result<(), BrokerError> {
        let Services { negotiation, mail, workspace } = self.env.settings.services;
        let of_negotiation = matches!(
            header.message_type,
            MessageType::TaskRequest | MessageType::TaskOffer | MessageType::TaskDecline | MessageType::TaskAccept
        );
        if of_negotiation && !negotiation {
            let what = "negotiations, which [negotiation] of the configuration switches off";
            return Err(BrokerError::NotSupported { what });
        }
        if matches!(header.message_type, MessageType::Delegation | MessageType::Info) && !mail {
            let what = "mail between agents, which [mail] of the configuration switches off";
            return Err(BrokerError::NotSupported { what });
        }
        if header.message_type == MessageType::WorkspaceAppend && !workspace {
            return Err(NO_WORKSPACES);
        }
        Ok(())
    }
}
