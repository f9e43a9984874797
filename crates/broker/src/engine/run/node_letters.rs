//! The letters about nodes of runs: a node is active, or needs a handoff of the task (SPEC 10).

use serde_json::{Value, json};

use crate::{
    BrokerError,
    domain::{
        EntityId, MessageType,
        handoff::Priority,
        routing::{Event, NodeLetter, RunId, TurnRecord},
    },
    engine::{Engine, transaction::Transaction},
    envelope,
    ids::AgentId,
    proto::v1,
    records::EntityRecord,
    time::Timestamp,
};

/// The topic of a letter about a node that is active.
const NODE_ACTIVE: &str = "run.node_active";
/// The topic of a letter about a node that needs a handoff of the task.
const HANDOFF_PROPOSED: &str = "run.handoff_proposed";
/// The most bytes of the outputs in a letter. `GetNodeTools` has all of them.
const INPUTS_BYTES_MAX: usize = 64 * 1024;

impl Engine {
    /// Delivers an `Info` of the broker about a node of a run. An agent that is not registered, or whose mailbox is full, gets none.
    pub(in crate::engine) fn tell_of_node(
        &mut self,
        transaction: &mut Transaction,
        to: AgentId,
        letter: &NodeLetter,
        priority: Priority,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        // A graph may name any agent. `GetRun` shows the same, so a full mailbox costs the letter and not the step.
        if !self.env.directory.is_registered(&to) || self.check_mailbox(&to).is_err() {
            return Ok(());
        }
        let (mut inputs, mut bytes) = (Vec::new(), 0);
        for number in &letter.inputs {
            let Some(turn) = self.turn_of_entry(transaction, letter.run, *number)? else { continue };
            bytes += turn.output.len() + turn.error.len();
            let omitted = bytes > INPUTS_BYTES_MAX;
            let (output, error) = if omitted { ("", "") } else { (&*turn.output, &*turn.error) };
            inputs.push(json!({
                "node_id": turn.node.as_str(),
                "output": output,
                "error": error,
                "entry_number": number,
                "omitted": omitted,
            }));
        }
        let mut data = json!({
            "run_id": letter.run.to_string(),
            "graph_id": letter.graph.as_str(),
            "task_id": letter.task.as_ref().map(|task| task.as_str()).unwrap_or_default(),
            "node_id": letter.node.as_str(),
            "step": letter.step,
            "inputs": inputs,
        });
        let (run, node) = (letter.run, &letter.node);
        let (topic, text) = match &letter.proposal {
            None => (NODE_ACTIVE, format!("Node {node} of run {run} is active.")),
            Some(proposal) => {
                data["choice_id"] = Value::from(proposal.choice.to_string());
                data["handoff_receiver_id"] = Value::from(proposal.receiver.as_str());
                let receiver = &proposal.receiver;
                (HANDOFF_PROPOSED, format!("Node {node} of run {run} needs a handoff of the task to {receiver}."))
            }
        };
        let info = v1::Info { topic: topic.to_owned(), text, data_json: data.to_string(), ..Default::default() };
        let content = (MessageType::Info, envelope::payload_of(&info));
        // Without the task: a letter of information holds up no later mail of the task.
        self.write_to(transaction, to, content, (None, None), (priority, None), now);
        Ok(())
    }

    fn turn_of_entry(
        &mut self,
        transaction: &mut Transaction,
        run: RunId,
        number: u64,
    ) -> Result<Option<TurnRecord>, BrokerError> {
        let stored = self.entity_record(transaction, &EntityId::RunEntry(run, number))?;
        let Some(EntityRecord::RunEntry(record)) = stored.as_deref() else { return Ok(None) };
        Ok(match &record.0.event {
            Event::Turn(turn) => Some(TurnRecord::clone(turn)),
            _ => None,
        })
    }
}
