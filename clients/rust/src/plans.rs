//! Plans: building, checking, submitting and following them; and on the other side, what a subtask gets.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tokio_stream::StreamExt as _;

use super::{About, Client, ClientError, Composer, Delivered, Link};
use crate::{
    compose::value_in,
    envelope::json_members,
    proto::v1::{self, MessageType, context_section::Content, plan_entry::Event, watch_plan_response::Update},
};

/// A subtask of this id for the agents of a type. All other fields have the defaults of the plan.
pub fn subtask(id: &str, agent_type: &str) -> v1::Subtask {
    v1::Subtask { id: id.to_owned(), agent_type: agent_type.to_owned(), ..Default::default() }
}

/// A plan that was submitted. Made by [`Client::submit_plan`] or [`Client::plan`].
#[derive(Debug, Clone)]
pub struct Plan {
    client: Client,
    id: String,
}

impl Client {
    /// The plan with this id, without asking the broker.
    pub fn plan(&self, id: &str) -> Plan {
        Plan { client: self.clone(), id: id.to_owned() }
    }

    /// All problems of a plan. Without an error among them it can be submitted.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with FIELD_INVALID if a field has no meaning.
    pub async fn validate_plan(&self, plan: v1::Plan) -> Result<Vec<v1::PlanProblem>, ClientError> {
        let request = v1::ValidatePlanRequest { plan: Some(plan) };
        Ok(self.answer(self.plans().validate_plan(request).await)?.problems)
    }

    /// Submits a plan, signed by the composer's agent. The same plan again is the same plan.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with PLAN_INVALID, which names each problem, or PLAN_EXISTS.
    pub async fn submit_plan(&self, composer: &Composer, plan: v1::Plan) -> Result<Plan, ClientError> {
        let id = plan.plan_id.clone();
        let payload = v1::PlanSubmission { plan: Some(plan), extension: None };
        let envelope = composer.encode("", MessageType::PlanSubmission, &About::default(), &payload);
        self.send(envelope).await?;
        Ok(self.plan(&id))
    }
}

impl Plan {
    /// The id of the plan.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The present state of the plan.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with PLAN_UNKNOWN.
    pub async fn state(&self) -> Result<v1::PlanRun, ClientError> {
        let request = v1::GetPlanRequest { plan_id: self.id.clone(), ..Default::default() };
        Ok(self.client.answer(self.client.plans().get_plan(request).await)?.plan.unwrap_or_default())
    }

    /// Passes each entry of the plan's log after this number to `change`, until the plan has ended. Returns the number
    /// of the last entry, to continue after an interruption.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], and the error that ends the stream. Entries before it were passed on.
    pub async fn follow(&self, after: u64, mut change: impl FnMut(v1::PlanEntry)) -> Result<u64, ClientError> {
        let request = v1::WatchPlanRequest { plan_id: self.id.clone(), after_number: after };
        let mut updates = self.client.answer(self.client.plans().watch_plan(request).await)?;
        let mut last = after;
        while let Some(update) = updates.next().await {
            let update = self.client.answer(update.map(tonic::Response::new))?;
            match update.update {
                Some(Update::Entry(entry)) => {
                    last = entry.number;
                    change(entry);
                }
                Some(Update::Gap(gap)) => last = gap.last_number,
                Some(Update::CaughtUp(_)) | None => {}
            }
        }
        Ok(last)
    }

    /// Waits for the end of the plan. Returns its final state.
    ///
    /// # Errors
    ///
    /// As [`Self::follow`].
    pub async fn finished(&self) -> Result<v1::PlanState, ClientError> {
        let mut state = v1::PlanState::Unspecified;
        self.follow(0, |entry| {
            if let Some(Event::Ended(ended)) = entry.event {
                state = ended.state();
            }
        })
        .await?;
        Ok(state)
    }

    /// The results of the subtasks that have completed, by their ids.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with PLAN_UNKNOWN.
    pub async fn results(&self) -> Result<BTreeMap<String, v1::SubtaskResult>, ClientError> {
        let (mut results, mut page_token) = (BTreeMap::new(), String::new());
        loop {
            let request = v1::ListPlanResultsRequest { plan_id: self.id.clone(), page_size: 0, page_token };
            let page = self.client.answer(self.client.plans().list_plan_results(request).await)?;
            results.extend(page.results.into_iter().map(|result| (result.subtask_id.clone(), result)));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(results);
            }
        }
    }

    /// Ends the plan at once.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with PLAN_FINAL if it has ended otherwise.
    pub async fn cancel(&self, reason_text: &str) -> Result<v1::PlanRun, ClientError> {
        let request = v1::CancelPlanRequest { plan_id: self.id.clone(), reason_text: reason_text.to_owned() };
        Ok(self.client.answer(self.client.plans().cancel_plan(request).await)?.plan.unwrap_or_default())
    }

    /// Adds subtasks to the plan while it runs, signed by the composer's agent. The same extension again changes nothing.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with PLAN_INVALID, which names each problem, PLAN_FINAL if the plan has ended, or CONFLICT if
    /// another extension came first.
    pub async fn extend(
        &self,
        composer: &Composer,
        subtasks: Vec<v1::Subtask>,
        defaults: Option<v1::SubtaskDefaults>,
    ) -> Result<(), ClientError> {
        let extension = Some(v1::PlanExtension { plan_id: self.id.clone(), subtasks, defaults });
        let payload = v1::PlanSubmission { plan: None, extension };
        let envelope = composer.encode("", MessageType::PlanSubmission, &About::default(), &payload);
        self.client.send(envelope).await.map(drop)
    }

    /// Ends one subtask at once.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with SUBTASK_UNKNOWN, SUBTASK_STATE if it has ended otherwise, or PLAN_FINAL.
    pub async fn cancel_subtask(&self, subtask_id: &str, reason_text: &str) -> Result<v1::PlanRun, ClientError> {
        let (plan_id, subtask_id, reason_text) = (self.id.clone(), subtask_id.to_owned(), reason_text.to_owned());
        let request = v1::CancelSubtaskRequest { plan_id, subtask_id, reason_text };
        Ok(self.client.answer(self.client.plans().cancel_subtask(request).await)?.plan.unwrap_or_default())
    }

    /// Starts one subtask again that did not complete.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with SUBTASK_UNKNOWN, SUBTASK_STATE in another state, or PLAN_FINAL.
    pub async fn retry_subtask(&self, subtask_id: &str) -> Result<v1::PlanRun, ClientError> {
        let request = v1::RetrySubtaskRequest { plan_id: self.id.clone(), subtask_id: subtask_id.to_owned() };
        Ok(self.client.answer(self.client.plans().retry_subtask(request).await)?.plan.unwrap_or_default())
    }

    /// Gives one subtask to another agent, or to one of `type:NAME`.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with SUBTASK_UNKNOWN, SUBTASK_STATE if it has ended, RECEIVER_UNKNOWN, RECEIVER_INVALID if
    /// the agent lacks what the subtask demands, AGENT_GONE, or PLAN_FINAL.
    pub async fn reassign_subtask(
        &self,
        subtask_id: &str,
        to: &str,
        reason_text: &str,
    ) -> Result<v1::PlanRun, ClientError> {
        let request = v1::ReassignSubtaskRequest {
            plan_id: self.id.clone(),
            subtask_id: subtask_id.to_owned(),
            to: to.to_owned(),
            reason_text: reason_text.to_owned(),
        };
        Ok(self.client.answer(self.client.plans().reassign_subtask(request).await)?.plan.unwrap_or_default())
    }

    /// Starts again what did not complete.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with PLAN_RUNNING, or PLAN_FINAL if nothing is left to retry.
    pub async fn retry(&self) -> Result<v1::PlanRun, ClientError> {
        let request = v1::RetryPlanRequest { plan_id: self.id.clone() };
        Ok(self.client.answer(self.client.plans().retry_plan(request).await)?.plan.unwrap_or_default())
    }
}

/// The results of subtasks, by their ids.
pub type SubtaskResults = BTreeMap<String, v1::SubtaskResult>;

/// An element of the list that a subtask works on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Element {
    /// The place in the list, from 0 on.
    pub index: u64,
    /// The number of elements of the list.
    pub count: u64,
    /// The value.
    pub value: Value,
}

/// A subtask as its agent sees it: what is to be done, and the results that it gets. Made by [`Delivered::subtask`] or
/// [`Link::subtask`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SubtaskInputs {
    /// The plan.
    pub plan_id: String,
    /// The id of the subtask.
    pub subtask_id: String,
    /// What is to be done.
    pub description: String,
    /// The role of the agent. In an offer it is empty.
    pub role: String,
    /// The attempt, from 1 on. In an offer it is 0.
    pub attempt: u64,
    /// Whether the work undoes that of the subtask, whose result is in `dependency_results`. In an offer it is false.
    pub is_compensation: bool,
    /// The element of the list of which this work is a part. `None`: the work is the whole subtask, or this is an offer.
    pub element: Option<Element>,
    /// What the plan gives to this subtask. Null: nothing.
    pub input: Value,
    /// What the plan gives to every subtask. Null: nothing.
    pub plan_input: Value,
    /// The results of all earlier subtasks or ancestors, by subtask.
    pub previous_results: SubtaskResults,
    /// The results of the direct dependencies, by subtask.
    pub dependency_results: SubtaskResults,
    /// The results of the producers of each topic that the subtask consumes, by topic and subtask.
    pub consumed: BTreeMap<String, SubtaskResults>,
    /// The subtasks whose results were too large for the context. Their results above have `success` and
    /// `numeric_value` alone. [`Link::subtask`] gets the rest from the broker.
    pub omitted: BTreeSet<String>,
}

impl SubtaskInputs {
    /// Reads the context of a handoff. `None`: the handoff carries out no subtask.
    pub fn of<'c>(context: &'c v1::TaskContextTransfer) -> Option<Self> {
        let text_of = |name: &str| {
            let section = context.sections.iter().find(|section| section.name == name)?;
            match &section.content {
                Some(Content::Json(json)) => Some(&**json),
                Some(_) | None => None,
            }
        };
        let section = |name: &str| text_of(name).and_then(value_in);
        // Results are joined from texts, which stay as their agents wrote them.
        let members = |text: Option<&'c str>| text.and_then(json_members).unwrap_or_default();
        let description = section("task_description")?;
        let text = |name: &str| description[name].as_str().map(str::to_owned);
        let mut omitted = BTreeSet::new();
        let mut results = |all: Option<&'c str>| {
            let of = |(id, text): (String, &str)| {
                let (result, is_omitted) = result_of(&id, text);
                if is_omitted {
                    omitted.insert(id.clone());
                }
                (id, result)
            };
            members(all).into_iter().map(of).collect::<SubtaskResults>()
        };
        Some(Self {
            plan_id: text("plan_id")?,
            subtask_id: text("subtask_id")?,
            description: text("description").unwrap_or_default(),
            role: text("role").unwrap_or_default(),
            attempt: description["attempt"].as_u64().unwrap_or(1),
            is_compensation: description["compensates"].is_string(),
            element: section("element").and_then(|element| {
                let (index, count) = (element["index"].as_u64()?, element["count"].as_u64()?);
                Some(Element { index, count, value: element["value"].clone() })
            }),
            input: section("input").unwrap_or_default(),
            plan_input: section("plan_input").unwrap_or_default(),
            previous_results: results(text_of("previous_results")),
            dependency_results: results(text_of("dependency_results")),
            consumed: members(text_of("consumed"))
                .into_iter()
                .map(|(topic, all)| (topic, results(Some(all))))
                .collect(),
            omitted,
        })
    }

    /// Replaces each omitted result with its whole value, where `whole` has one.
    fn fill(&mut self, whole: &SubtaskResults) {
        let consumed = self.consumed.values_mut();
        for results in [&mut self.previous_results, &mut self.dependency_results].into_iter().chain(consumed) {
            for (id, result) in results.iter_mut().filter(|(id, _)| self.omitted.contains(*id)) {
                if let Some(whole) = whole.get(id) {
                    result.clone_from(whole);
                }
            }
        }
        self.omitted.retain(|id| !whole.contains_key(id));
    }
}

impl Delivered {
    /// The subtask of a plan that this message offers or hands over. Of a `HandoffRequest`: the plan, the subtask and its
    /// description. Of a `TaskContextTransfer`: also the inputs. `None`: the handoff carries out no subtask.
    ///
    /// ```no_run
    /// # async fn example(link: baton_client::Link, context: baton_client::Delivered) -> Result<(), baton_client::ClientError> {
    /// use baton_client::subtask_result;
    ///
    /// let subtask = context.subtask().expect("the context of a subtask");
    /// let growth = subtask.previous_results["growth"].numeric_value.unwrap_or_default();
    /// let task = link.complete(&context).await?;
    /// task.finish(Some(subtask_result(&format!("growth of {growth} %")))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn subtask(&self) -> Option<SubtaskInputs> {
        match self.kind() {
            MessageType::HandoffRequest => {
                let request: v1::HandoffRequest = self.payload();
                let behalf = request.on_behalf_of?;
                (!behalf.plan_id.is_empty()).then(|| SubtaskInputs {
                    plan_id: behalf.plan_id,
                    subtask_id: behalf.subtask_id,
                    description: request.initial_context_summary,
                    ..Default::default()
                })
            }
            MessageType::TaskContextTransfer => SubtaskInputs::of(&self.payload()),
            _ => None,
        }
    }
}

impl Link {
    /// As [`Delivered::subtask`], with the whole results also where the context had no room for them. To be called after
    /// [`Link::complete`]: from then on the broker shows the plan to this agent.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with PERMISSION_DENIED before the completion.
    pub async fn subtask(&self, message: &Delivered) -> Result<Option<SubtaskInputs>, ClientError> {
        let Some(mut inputs) = message.subtask() else { return Ok(None) };
        let mut page_token = String::new();
        while !inputs.omitted.is_empty() {
            let request = v1::ListPlanResultsRequest { plan_id: inputs.plan_id.clone(), page_size: 0, page_token };
            let page = self
                .ask(|client| {
                    let request = request.clone();
                    async move { client.answer(client.plans().list_plan_results(request).await) }
                })
                .await?;
            let whole = page.results.into_iter().map(|result| (result.subtask_id.clone(), result)).collect();
            inputs.fill(&whole);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        Ok(Some(inputs))
    }
}

/// A result for [`OwnedTask::finish`](crate::OwnedTask::finish) with this text as its `response`. Further keys that plans
/// know: `tokens`, `success`, `tools_used` and `numeric_value`.
pub fn subtask_result(response: &str) -> Value {
    serde_json::json!({ "response": response })
}

/// A result out of a context, and whether it was left out there.
fn result_of(id: &str, text: &str) -> (v1::SubtaskResult, bool) {
    let mut members: BTreeMap<String, &str> = json_members(text).unwrap_or_default().into_iter().collect();
    let result_json = members.remove("result").unwrap_or_default().to_owned();
    let known = members.into_iter().filter_map(|(name, text)| Some((name, value_in(text)?)));
    let result = Value::Object(known.collect());
    let tools = result["tools_used"].as_array().into_iter().flatten();
    let found = v1::SubtaskResult {
        subtask_id: id.to_owned(),
        response: result["response"].as_str().unwrap_or_default().to_owned(),
        tokens: result["tokens"].as_u64().unwrap_or(0),
        success: result["success"].as_bool().unwrap_or(false),
        tools_used: tools.filter_map(Value::as_str).map(str::to_owned).collect(),
        numeric_value: result["numeric_value"].as_f64(),
        result_json,
        ..Default::default()
    };
    (found, result["omitted"] == true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::{context_of_sections, payload_of};

    #[test]
    fn a_subtask_reads_its_typed_inputs() {
        let section = |name: &str, json: &str| v1::ContextSection {
            name: name.to_owned(),
            content: Some(Content::Json(json.to_owned())),
            ..Default::default()
        };
        let context = context_of_sections(vec![
            section("task_description", r#"{"plan_id":"q3","subtask_id":"synthesis","role":"writer","attempt":2}"#),
            section(
                "previous_results",
                r#"{"growth":{"response":"增长率15.3%","success":true,"numeric_value":15.3,"result":{"id":1234567890123456789, "n":4.20e1}}}"#,
            ),
        ]);
        let inputs = SubtaskInputs::of(&context).unwrap();
        assert!(inputs.omitted.is_empty());
        assert_eq!((inputs.subtask_id.as_str(), inputs.attempt), ("synthesis", 2));
        assert_eq!(inputs.previous_results["growth"].numeric_value, Some(15.3));
        let text = r#"{"id":1234567890123456789, "n":4.20e1}"#;
        assert_eq!(inputs.previous_results["growth"].result_json, text, "a result is the text that was sent");
        assert_eq!(SubtaskInputs::of(&context_of_sections(Vec::new())), None);
    }

    fn delivered(kind: MessageType, payload: crate::proto::Any) -> Delivered {
        let envelope = v1::Envelope { message_type: kind.into(), payload: Some(payload), ..Default::default() };
        Delivered { delivery: v1::Delivery::default(), envelope }
    }

    #[test]
    fn an_offer_names_its_subtask_and_another_handoff_has_none() {
        let behalf = v1::OnBehalfOf { plan_id: "q3".into(), subtask_id: "growth".into(), ..Default::default() };
        let request = v1::HandoffRequest {
            on_behalf_of: Some(behalf),
            initial_context_summary: "计算增长率".into(),
            ..Default::default()
        };
        let offer = delivered(MessageType::HandoffRequest, payload_of(&request)).subtask().unwrap();
        assert_eq!((&*offer.plan_id, &*offer.subtask_id, &*offer.description), ("q3", "growth", "计算增长率"));
        let plain = delivered(MessageType::HandoffRequest, payload_of(&v1::HandoffRequest::default()));
        assert_eq!(plain.subtask(), None);
        assert_eq!(delivered(MessageType::Info, payload_of(&v1::Info::default())).subtask(), None);
    }

    #[test]
    fn whole_results_take_the_places_of_omitted_ones_everywhere() {
        let short = r#"{"fetch":{"omitted":true,"success":true,"numeric_value":7,"size_bytes":900000}}"#;
        let section = |name: &str, json: &str| v1::ContextSection {
            name: name.to_owned(),
            content: Some(Content::Json(json.to_owned())),
            ..Default::default()
        };
        let context = context_of_sections(vec![
            section("task_description", r#"{"plan_id":"q3","subtask_id":"synthesis"}"#),
            section("previous_results", short),
            section("dependency_results", short),
            section("consumed", &format!(r#"{{"data":{short}}}"#)),
        ]);
        let mut inputs = SubtaskInputs::of(&context).unwrap();
        assert_eq!((inputs.omitted.len(), inputs.previous_results["fetch"].numeric_value), (1, Some(7.0)));
        let whole = v1::SubtaskResult { subtask_id: "fetch".into(), response: "long".into(), ..Default::default() };
        inputs.fill(&[("fetch".to_owned(), whole.clone())].into());
        assert!(inputs.omitted.is_empty());
        let places = [&inputs.previous_results, &inputs.dependency_results, &inputs.consumed["data"]];
        assert!(places.iter().all(|results| results["fetch"] == whole));
    }
}
