//! CLAIMING: from a free lease to an acknowledged takeover.

use std::time::Duration;

use super::{Action, Divergence, Member, PeerPosition, READ_BUSY, READ_IDLE, Role, Ticket};
use crate::{
    entry::{Payload, Takeover},
    leader_log::LeaderLog,
};

/// The step of a claim. The lease is renewed beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// The lease is written.
    Lease,
    /// The peers are asked.
    Peers(Ticket),
    /// The log is read to its end.
    Reading,
    /// The takeover is appended.
    Takeover,
}

impl Claim {
    pub(super) fn is_reading(self) -> bool {
        self == Self::Reading
    }
}

impl Member {
    pub(super) fn begin_claim(&mut self, now: Duration) {
        // An outcome of the read under way belongs to the follower.
        (self.log_call, self.claim, self.leader_log) = (None, Some(Claim::Lease), None);
        self.ahead = None;
        self.move_to(Role::Claiming);
        self.write_lease(now, false);
    }

    pub(super) fn lease_claimed(&mut self) {
        if self.claim == Some(Claim::Lease) {
            let ticket = self.ticket();
            self.claim = Some(Claim::Peers(ticket));
            self.actions.push_back(Action::AskPeers(ticket));
        }
    }

    /// The peers are asked before the log is read. So what a peer has was in the log before the read, and a read that lacks
    /// it shows that the log went back.
    pub(super) fn peers_answered(&mut self, now: Duration, ticket: Ticket, peers: &[PeerPosition]) {
        if self.claim != Some(Claim::Peers(ticket)) {
            return;
        }
        self.ahead = peers.iter().max_by_key(|peer| peer.chain.position).cloned();
        self.claim = Some(Claim::Reading);
        self.log_due = now;
    }

    /// The tables have all that the log has.
    pub(super) fn end_reached(&mut self, now: Duration) {
        let end = self.chain;
        if let Some(PeerPosition { peer, chain }) = &self.ahead {
            if chain.position > end.position {
                let (peer, position, end) = (peer.clone(), chain.position, end.position);
                return self.diverge(Divergence::PeerAhead { peer, position, end });
            }
            if chain.position == end.position && chain.hash != end.hash {
                return self.diverge(Divergence::OtherEntry { position: end.position });
            }
        }
        // Another broker may have the lease by now, lead, and answer reads: a takeover behind its entries would let two answer.
        if !self.lease.is_held(now, self.config.lease) {
            self.log_due = now + READ_BUSY;
            return;
        }
        let takeover = Payload::Takeover(Takeover {
            cluster: self.config.expected.cluster.clone(),
            broker: self.config.broker.clone(),
            process: self.config.process.clone(),
            peer_address: self.config.peer_address.clone(),
            version: self.config.version.clone(),
            keys: self.config.expected.keys.clone(),
        });
        let mut log = LeaderLog::new(end);
        match log.begin(now, &takeover, &self.config.expected, self.config.entry_bytes_max) {
            Ok(()) => {
                self.leader_log = Some(log);
                self.claim = Some(Claim::Takeover);
            }
            // The names of this broker are too long for the log: another may lead.
            Err(_) => self.give_up_claim(now),
        }
    }

    /// Another broker has appended meanwhile: the log is read on.
    pub(super) fn read_again(&mut self, now: Duration) {
        self.leader_log = None;
        self.claim = Some(Claim::Reading);
        self.log_due = now;
    }

    pub(super) fn took_over(&mut self, now: Duration) {
        self.claim = None;
        let term = self.chain.term;
        self.suspended_since = now;
        let is_held = self.lease.is_held(now, self.config.lease);
        self.move_to(if is_held { Role::Leading } else { Role::Suspended });
        let former = self.took_over_last.replace(self.config.broker.clone()).or_else(|| self.lease_holder_before());
        self.actions.push_back(Action::Lead { term, former });
    }

    pub(super) fn give_up_claim(&mut self, now: Duration) {
        (self.claim, self.leader_log, self.log_call) = (None, None, None);
        self.drop_lease(now);
        self.log_due = now + READ_IDLE;
        // While the register does not answer, the lease stays free as far as this broker knows.
        self.hold_claims_until(now + READ_IDLE);
        self.move_to(Role::Following);
    }
}
