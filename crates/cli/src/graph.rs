//! `baton graph`: register, validate, list and show graphs.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};

use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs},
    json,
    output::{self, Diagram, Output},
    registration::{self, EtagArg, NameArgs, OwnersArgs, TransferArgs},
    table::Column,
};
use baton_client::{
    Client,
    ids::GraphId,
    proto::v1::{self, Registry},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton graph register search.json
  baton graph validate search.json
  baton graph show search -o mermaid")]
pub(super) enum GraphCommand {
    /// Register a graph, or a further revision of it.
    #[command(after_help = "The file has a graph as JSON:
  {\"graphId\": \"search\", \"entryNodeIds\": [\"searcher\"], \"nodes\": [
    {\"nodeId\": \"searcher\", \"description\": \"Finds pages.\", \"outputNodes\": [\"checker\"]},
    {\"nodeId\": \"checker\", \"description\": \"Checks facts.\", \"handoffs\": 3, \"outputNodes\": [\"searcher\", \"end\"]}]}

Examples:
  baton graph register search.json
  baton graph register search.json --id alice --key alice.pem")]
    Register(RegisterArgs),
    /// Print all problems of a graph, without registering it.
    #[command(after_help = "Exit code 1 if the graph has an error.

Examples:
  baton graph validate search.json")]
    Validate(GraphFile),
    /// List graphs, newest first.
    #[command(after_help = "Examples:
  baton graph list")]
    List {
        /// The most graphs to list.
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Show one graph, also as a diagram.
    #[command(after_help = "Examples:
  baton graph show search
  baton graph show search -o dot | dot -Tsvg > search.svg
  baton graph show search -o mermaid")]
    Show {
        /// The id of the graph.
        id: GraphId,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// List the owners of graphs, with those of removed names.
    #[command(after_help = "Examples:
  baton graph owners
  baton graph owners --owner alice")]
    Owners(OwnersArgs),
    /// Offer a graph to another agent, which takes it by the same command. An operator hands it over at once.
    #[command(after_help = "Examples:
  baton graph transfer search bob --id alice --key alice.pem
  baton graph transfer search bob --id bob --key bob.pem")]
    Transfer(TransferArgs),
    /// Retire a graph: no further revision, and no further run. Runs that have begun go on.
    #[command(after_help = "Examples:
  baton graph retire search")]
    Retire(NameArgs),
    /// Remove a graph. Runs that have begun go on; the name stays with its owner.
    #[command(after_help = "Examples:
  baton graph remove search")]
    Remove(NameArgs),
}

/// The arguments of `baton graph register`.
#[derive(Debug, Args)]
pub(super) struct RegisterArgs {
    #[command(flatten)]
    graph: GraphFile,
    #[command(flatten)]
    etag: EtagArg,
}

/// A graph in a file, and the caller.
#[derive(Debug, Args)]
pub(super) struct GraphFile {
    /// A graph as JSON.
    file: PathBuf,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

pub(super) async fn run(command: GraphCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        GraphCommand::Register(args) => {
            let graph = Some(read(&args.graph.file)?);
            let client = args.graph.identity.client(connection).await?;
            let request = v1::RegisterGraphRequest { graph, etag: args.etag.etag };
            let answer = client.answer(client.routing().register_graph(request).await)?;
            answer.problems.iter().for_each(warn);
            output.one(&answer.graph.unwrap_or_default(), lines)
        }
        GraphCommand::Validate(args) => {
            let graph = Some(read(&args.file)?);
            let client = args.identity.client(connection).await?;
            let request = v1::ValidateGraphRequest { graph };
            validate(&client.answer(client.routing().validate_graph(request).await)?.problems, *output)
        }
        GraphCommand::Owners(args) => registration::owners(Registry::Graphs, args, connection, *output).await,
        GraphCommand::Transfer(args) => registration::transfer(Registry::Graphs, args, connection, output).await,
        GraphCommand::Retire(args) => registration::retire(Registry::Graphs, args, connection, output).await,
        GraphCommand::Remove(args) => registration::remove(Registry::Graphs, args, connection, output).await,
        GraphCommand::List { limit, identity } => list(&identity.client(connection).await?, limit, *output).await,
        GraphCommand::Show { id, identity } => {
            let client = identity.client(connection).await?;
            let request = v1::GetGraphRequest { graph_id: id.to_string() };
            let graph = client.answer(client.routing().get_graph(request).await)?.graph.unwrap_or_default();
            match output.diagram() {
                Some(Diagram::Dot) => say_lines!("{}", dot(&graph)),
                Some(Diagram::Mermaid) => say_lines!("{}", mermaid(&graph)),
                None => output.one(&graph, lines)?,
            }
            Ok(())
        }
    }
}

fn read(path: &Path) -> Result<v1::Graph, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, error))?;
    let value = serde_json::from_str(&text).map_err(|error| Failure::file(path, format!("not JSON: {error}")))?;
    json::parse(value).map_err(|error| Failure::file(path, error.message()))
}

fn warn(problem: &v1::GraphProblem) {
    tell!("warning: {} {}: {}", problem.code, problem.field, problem.message);
}

fn validate(problems: &[v1::GraphProblem], output: Output) -> Result<(), Failure> {
    let columns =
        [Column::Whole("SEVERITY"), Column::Whole("PROBLEM"), Column::Whole("FIELD"), Column::Text("MESSAGE")];
    output.list(&columns, problems, |problem| {
        vec![
            output::short(problem.severity().as_str_name(), "PROBLEM_SEVERITY_"),
            problem.code.clone(),
            problem.field.clone(),
            problem.message.clone(),
        ]
    })?;
    match problems.iter().filter(|problem| problem.severity() == v1::ProblemSeverity::Error).count() {
        0 => Ok(()),
        1 => Err(Failure::failed("the graph has 1 error").named("DATA_INVALID")),
        errors => Err(Failure::failed(format!("the graph has {errors} errors")).named("DATA_INVALID")),
    }
}

async fn list(client: &Client, limit: u32, output: Output) -> Result<(), Failure> {
    let graphs = output::pages(limit, async |page_size, page_token| {
        let request = v1::ListGraphsRequest { page_size, page_token };
        let page = client.answer(client.routing().list_graphs(request).await)?;
        Ok((page.graphs, page.next_page_token))
    })
    .await?;
    let columns = [Column::Id("GRAPH"), Column::Whole("REVISION"), Column::Whole("STEPS"), Column::Text("DESCRIPTION")];
    output.list(&columns, &graphs, |graph| {
        vec![graph.graph_id.clone(), graph.revision.to_string(), graph.steps_max.to_string(), graph.description.clone()]
    })
}

fn lines(graph: &v1::Graph) -> Vec<(Cow<'static, str>, String)> {
    let mut lines = vec![
        ("graph".into(), graph.graph_id.clone()),
        ("description".into(), graph.description.clone()),
        ("revision".into(), graph.revision.to_string()),
        ("steps".into(), format!("at most {}", graph.steps_max)),
        ("entries".into(), graph.entry_node_ids.join(", ")),
    ];
    for node in &graph.nodes {
        let choices = node.handoffs.map_or(String::new(), |handoffs| format!(" ({handoffs} choices)"));
        let worker = worker(node).map_or(String::new(), |worker| format!(", by {worker}"));
        let text = format!("{}{choices} → {}{worker}", node.node_id, node.output_nodes.join(", "));
        lines.push(("node".into(), text));
    }
    lines
}

fn worker(node: &v1::Node) -> Option<String> {
    match (node.agent_id.as_str(), node.agent_type.as_str()) {
        ("", "") => None,
        ("", kind) => Some(format!("type:{kind}")),
        (agent, _) => Some(agent.to_owned()),
    }
}

/// The label of a node: its id, its choices, and the agent that works there.
fn label(node: &v1::Node, line_break: &str) -> String {
    let choices = node.handoffs.map_or(String::new(), |handoffs| format!("{line_break}{handoffs} choices"));
    let worker = worker(node).map_or(String::new(), |worker| format!("{line_break}{worker}"));
    format!("{}{choices}{worker}", node.node_id)
}

/// The graph in the language of Graphviz. Ids have no character that the language gives a meaning within quotes.
fn dot(graph: &v1::Graph) -> String {
    let mut lines = vec![format!("digraph \"{}\" {{", graph.graph_id), "  start [shape=point];".to_owned()];
    lines.extend(graph.entry_node_ids.iter().map(|entry| format!("  start -> \"{entry}\";")));
    for node in &graph.nodes {
        let shape = if node.handoffs.is_some() { "diamond" } else { "box" };
        lines.push(format!("  \"{}\" [shape={shape}, label=\"{}\"];", node.node_id, label(node, "\\n")));
        // A dashed line is an output that the model has to choose.
        let style = if node.handoffs.is_some() { " [style=dashed]" } else { "" };
        lines.extend(node.output_nodes.iter().map(|output| format!("  \"{}\" -> \"{output}\"{style};", node.node_id)));
    }
    lines.push("  \"end\" [shape=doublecircle];".to_owned());
    lines.push("}".to_owned());
    lines.join("\n")
}

/// The graph in the language of Mermaid. Nodes are numbered, because an id may be a word of the language.
fn mermaid(graph: &v1::Graph) -> String {
    let place = |id: &str| match graph.nodes.iter().position(|node| node.node_id == id) {
        Some(place) => format!("n{place}"),
        None => "finish".to_owned(),
    };
    let mut lines = vec!["flowchart TD".to_owned(), "  start((start))".to_owned()];
    for node in &graph.nodes {
        let (open, close) = if node.handoffs.is_some() { ("{", "}") } else { ("[", "]") };
        lines.push(format!("  {}{open}\"{}\"{close}", place(&node.node_id), label(node, "<br/>")));
    }
    lines.push("  finish(((end)))".to_owned());
    lines.extend(graph.entry_node_ids.iter().map(|entry| format!("  start --> {}", place(entry))));
    for node in &graph.nodes {
        let arrow = if node.handoffs.is_some() { "-.->" } else { "-->" };
        let from = place(&node.node_id);
        lines.extend(node.output_nodes.iter().map(|output| format!("  {from} {arrow} {}", place(output))));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn story() -> v1::Graph {
        let node = |id: &str, handoffs, outputs: &[&str]| v1::Node {
            node_id: id.to_owned(),
            handoffs,
            output_nodes: outputs.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        v1::Graph {
            graph_id: "search".to_owned(),
            entry_node_ids: vec!["searcher".to_owned()],
            nodes: vec![
                node("searcher", None, &["checker"]),
                v1::Node { agent_id: "bob".to_owned(), ..node("checker", Some(3), &["searcher", "end"]) },
            ],
            ..Default::default()
        }
    }

    #[test]
    fn a_graph_is_drawn_for_graphviz() {
        let drawn = dot(&story());
        assert!(drawn.contains("\"checker\" [shape=diamond, label=\"checker\\n3 choices\\nbob\"];"), "{drawn}");
        assert!(
            drawn.contains("\"searcher\" -> \"checker\";") && drawn.contains("\"checker\" -> \"end\" [style=dashed];")
        );
    }

    #[test]
    fn a_graph_is_drawn_for_mermaid() {
        let drawn = mermaid(&story());
        assert!(drawn.starts_with("flowchart TD\n"), "{drawn}");
        assert!(drawn.contains("n1{\"checker<br/>3 choices<br/>bob\"}"), "{drawn}");
        assert!(drawn.contains("n0 --> n1") && drawn.contains("n1 -.-> finish"), "{drawn}");
    }
}
