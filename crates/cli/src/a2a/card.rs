//! The card of the remote agent: fetched, checked, and read as what the agent can do.

use a2a::{AgentCard, SecurityScheme, TRANSPORT_PROTOCOL_HTTP_JSON, TRANSPORT_PROTOCOL_JSONRPC, VERSION};
use baton_client::{ids::AgentId, proto::v1};
use http::{HeaderMap, Method};
use serde_json::Value;

use super::{
    http::{Call, Http, Problem},
    remote::{ANSWER_TIME, Binding, Place},
};
use crate::{Failure, exit, outgoing::Target, output};

/// Where the card of an origin is.
const WELL_KNOWN: &str = "/.well-known/agent-card.json";
/// The bounds of a card at the broker, in bytes and in numbers.
const DESCRIPTION_MAX: usize = 4096;
const SKILL_TEXT_MAX: usize = 1024;
const TAG_MAX: usize = 128;
const SKILLS_MAX: usize = 64;
const TAGS_MAX: usize = 16;
const EXAMPLES_MAX: usize = 8;
const NAME_PARTS_MAX: usize = 16;

/// What the card says, as far as it counts here.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) name: String,
    description: String,
    skills: Vec<v1::AgentSkill>,
    /// The media types of messages; empty: not said.
    input_modes: Vec<String>,
    pub(super) place: Place,
}

/// Fetches the card from this address, or from that of its origin, and checks that a connector can use the agent.
/// `origins` are those beside the card's own to which requests may go.
pub(super) async fn fetch(http: &Http, url: &str, origins: &[Target]) -> Result<Card, Failure> {
    let target = http.target(url).map_err(|problem| Failure::usage(format!("--card {problem}")))?;
    let path = target.uri.path_and_query().map_or("/", |path| path.as_str());
    let path = if path == "/" { WELL_KNOWN } else { path }.to_owned();
    let address = format!("{}://{}{path}", scheme(&target), target.uri.authority().map_or("", |host| host.as_str()));
    let call = Call {
        method: Method::GET,
        target: &target,
        path,
        head: HeaderMap::new(),
        body: bytes::Bytes::new(),
        limit: ANSWER_TIME,
    };
    let fetched = async {
        let answer = http.send(call).await?;
        match answer.status {
            status if status.is_success() => answer.read(ANSWER_TIME).await,
            status if status.is_server_error() => Err(Problem::Passing(format!("the status is {status}"))),
            status => {
                Err(Problem::Refused { code: i32::from(status.as_u16()), words: format!("the status is {status}") })
            }
        }
    };
    let bytes = fetched.await.map_err(|problem| unreachable(&address, &problem))?;
    read(http, &bytes, &target, origins).map_err(|failure| failure.with_advice(&format!("the card is {address}")))
}

fn scheme(target: &Target) -> &'static str {
    if target.is_encrypted { "https" } else { "http" }
}

/// The failure to get a card.
fn unreachable(address: &str, problem: &Problem) -> Failure {
    let text = |problem: &str| output::line(&format!("no card comes from {address}: {problem}")).into_owned();
    match problem {
        Problem::Tls(problem) => Failure::unreachable(text(problem)).named("CERTIFICATE_UNTRUSTED").with_advice(
            "the CAs of this system decide; SSL_CERT_FILE names others, a PEM file",
        ),
        Problem::Refused { words, .. } => Failure::new(exit::FAILED, text(words)).named("CARD_INVALID").with_advice(
            "name the address of the card, or the origin of its agent; an agent that shows its card to known callers alone \
             needs --bearer-file",
        ),
        Problem::Here(problem) => Failure::usage(text(problem)),
        problem => Failure::unreachable(text(&problem.to_string())).named("REMOTE_UNREACHABLE").with_advice(
            "look whether the agent runs, and whether this machine reaches its port",
        ),
    }
}

fn invalid(text: &str) -> Failure {
    Failure::failed(output::line(text)).named("CARD_INVALID")
}

fn unsupported(text: &str) -> Failure {
    Failure::failed(output::line(text)).named("CARD_UNSUPPORTED")
}

fn read(http: &Http, bytes: &[u8], target: &Target, origins: &[Target]) -> Result<Card, Failure> {
    let value: Value =
        serde_json::from_slice(bytes).map_err(|error| invalid(&format!("the card is no JSON: {error}")))?;
    // A card of version 0.3 has another form.
    if value.get("supportedInterfaces").is_none()
        && let Some(version) = value.get("protocolVersion").and_then(Value::as_str)
    {
        return Err(of_other_version(&[version]));
    }
    let card: AgentCard =
        serde_json::from_value(value).map_err(|error| invalid(&format!("it is no card of A2A 1.0: {error}")))?;
    check_demands(http, &card)?;
    let place = choose(http, &card, target, origins)?;
    let input_modes = card.default_input_modes.clone();
    let read = Card {
        name: card.name.clone(),
        description: cut(&card.description, DESCRIPTION_MAX),
        skills: skills(&card),
        input_modes,
        place,
    };
    if !read.takes("text/plain") && !read.takes("application/json") {
        let modes = read.input_modes.join(", ");
        return Err(unsupported(&format!("the agent takes neither text/plain nor application/json, but {modes}")));
    }
    Ok(read)
}

fn of_other_version(versions: &[&str]) -> Failure {
    let versions = versions.join(", ");
    unsupported(&format!("the agent speaks A2A {versions}, and baton speaks {VERSION} alone"))
        .with_advice("update the agent, or ask who runs it for an interface of version 1.0")
}

/// Checks what the agent demands of every caller.
fn check_demands(http: &Http, card: &AgentCard) -> Result<(), Failure> {
    let extensions = card.capabilities.extensions.iter().flatten();
    let required: Vec<&str> =
        extensions.filter(|one| one.required == Some(true)).map(|extension| extension.uri.as_str()).collect();
    if !required.is_empty() {
        let required = required.join(", ");
        return Err(unsupported(&format!("the agent demands extensions that baton does not have: {required}")));
    }
    let Some(demands) = card.security_requirements.as_ref().filter(|demands| !demands.is_empty()) else {
        return Ok(());
    };
    let schemes = card.security_schemes.as_ref();
    let is_bearer = |name: &String| match schemes.and_then(|schemes| schemes.get(name)) {
        Some(SecurityScheme::HttpAuth(scheme)) => scheme.scheme.eq_ignore_ascii_case("bearer"),
        Some(SecurityScheme::OAuth2(_) | SecurityScheme::OpenIdConnect(_)) => true,
        _ => false,
    };
    if demands.iter().any(|demand| demand.is_empty() || (http.has_bearer() && demand.keys().all(is_bearer))) {
        return Ok(());
    }
    let mut names: Vec<&str> = demands.iter().flat_map(|demand| demand.keys().map(String::as_str)).collect();
    names.sort_unstable();
    let names = names.join(", ");
    let failure = unsupported(&format!("the agent asks for credentials: {names}"));
    Err(match demands.iter().any(|demand| demand.keys().all(is_bearer)) {
        true => failure.with_advice("name the file of the token with --bearer-file"),
        false => failure.with_advice("baton can show a bearer token alone"),
    })
}

/// The first interface that a connector can use.
fn choose(http: &Http, card: &AgentCard, target: &Target, origins: &[Target]) -> Result<Place, Failure> {
    let of_version: Vec<_> = card.supported_interfaces.iter().filter(|one| one.protocol_version == VERSION).collect();
    if of_version.is_empty() {
        let mut versions: Vec<&str> =
            card.supported_interfaces.iter().map(|one| one.protocol_version.as_str()).collect();
        versions.dedup();
        return Err(match versions.is_empty() {
            true => invalid("the card names no interface"),
            false => of_other_version(&versions),
        });
    }
    let mut problems = Vec::new();
    for interface in of_version {
        let binding = match interface.protocol_binding.as_str() {
            TRANSPORT_PROTOCOL_JSONRPC => Binding::JsonRpc,
            TRANSPORT_PROTOCOL_HTTP_JSON => Binding::HttpJson,
            other => {
                problems.push(format!("{}: the binding {other} is neither JSONRPC nor HTTP+JSON", interface.url));
                continue;
            }
        };
        let address = match http.target(&interface.url) {
            Ok(address) => address,
            Err(problem) => {
                problems.push(format!("{} {problem}", interface.url));
                continue;
            }
        };
        // The token is for the origin that the operator has named, and a card must not send it elsewhere.
        if !address.has_origin_of(target) && !origins.iter().any(|origin| address.has_origin_of(origin)) {
            problems.push(format!("{} has another origin than the card: allow it with --allow-origin", interface.url));
            continue;
        }
        return Ok(Place {
            target: address,
            binding,
            tenant: interface.tenant.clone().filter(|tenant| !tenant.is_empty()),
            streams: card.capabilities.streaming == Some(true),
        });
    }
    Err(unsupported(&format!("no interface of the card can be used: {}", problems.join("; "))))
}

fn cut(text: &str, max: usize) -> String {
    text[..text.floor_char_boundary(max)].to_owned()
}

/// The skills that have a name at the broker. The name is the id, because requests ask for it.
fn skills(card: &AgentCard) -> Vec<v1::AgentSkill> {
    let mut found: Vec<v1::AgentSkill> = Vec::new();
    for skill in &card.skills {
        let is_name = AgentId::parse(&skill.id).is_ok()
            && skill.id.split('.').count() <= NAME_PARTS_MAX
            && skill.id.split('.').all(|part| !part.is_empty());
        if !is_name || found.iter().any(|other| other.name == skill.id) {
            tracing::warn!(skill = skill.id, "a skill of the card has no name that the broker takes, and is left out");
            continue;
        }
        let tags = skill.tags.iter().map(|tag| cut(tag, TAG_MAX)).filter(|tag| !tag.is_empty()).take(TAGS_MAX);
        let examples = skill.examples.iter().flatten().map(|example| cut(example, SKILL_TEXT_MAX));
        found.push(v1::AgentSkill {
            name: skill.id.clone(),
            description: cut(&skill.description, SKILL_TEXT_MAX),
            tags: tags.collect(),
            examples: examples.filter(|example| !example.is_empty()).take(EXAMPLES_MAX).collect(),
            ..Default::default()
        });
    }
    found.truncate(SKILLS_MAX);
    found
}

impl Card {
    /// The card of the agent at the broker, without its id, key and types.
    pub(super) fn at_broker(&self) -> v1::AgentCard {
        v1::AgentCard { description: self.description.clone(), skills: self.skills.clone(), ..Default::default() }
    }

    /// Whether the agent takes parts of this media type.
    pub(super) fn takes(&self, media_type: &str) -> bool {
        takes(&self.input_modes, media_type)
    }

    /// Those of these skills that the agent does not have. One with finance.tax.de also has finance.tax and finance.
    pub(super) fn lacks<'a>(&self, wanted: &'a [String]) -> Vec<&'a str> {
        let has = |wanted: &str| {
            self.skills.iter().any(|skill| {
                skill.name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        };
        wanted.iter().map(String::as_str).filter(|wanted| !has(wanted)).collect()
    }
}

/// Whether a media type is among these, where an empty list has all.
pub(super) fn takes(modes: &[String], media_type: &str) -> bool {
    let essence = |text: &str| text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let wanted = essence(media_type);
    let family = wanted.split('/').next().unwrap_or_default();
    modes.is_empty()
        || modes
            .iter()
            .map(|mode| essence(mode))
            .any(|mode| mode == wanted || mode == "*/*" || mode.strip_suffix("/*").is_some_and(|mode| mode == family))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn whole() -> Value {
        json!({
            "name": "biller", "description": "It bills.", "version": "1",
            "supportedInterfaces": [
                {"url": "grpc.example:443", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
                {"url": "https://a.example/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
                {"url": "https://a.example/rest", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
            ],
            "capabilities": {"streaming": true},
            "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
            "skills": [
                {"id": "finance.tax", "name": "Taxes", "description": "Taxes.", "tags": ["de", ""]},
                {"id": "no name", "name": "x", "description": "x", "tags": []},
            ],
        })
    }

    fn read_as(card: &Value, bearer: Option<&str>) -> Result<Card, String> {
        let folder = tempfile::tempdir().unwrap();
        let bearer = bearer.map(|token| {
            use std::os::unix::fs::OpenOptionsExt as _;
            let path = folder.path().join("token");
            let mut options = std::fs::OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&path).unwrap();
            std::io::Write::write_all(&mut file, token.as_bytes()).unwrap();
            path
        });
        let http = Http::new(false, bearer).unwrap();
        let target = http.target("https://a.example/card").unwrap();
        let origins = [http.target("https://b.example").unwrap()];
        read(&http, card.to_string().as_bytes(), &target, &origins).map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_first_interface_that_can_be_used_is_chosen() {
        let card = read_as(&whole(), None).unwrap();
        assert_eq!((card.place.binding, card.place.target.uri.path()), (Binding::JsonRpc, "/rpc"));
        assert!(card.place.streams && card.takes("Text/Plain; charset=utf-8") && !card.takes("image/png"));
        let names: Vec<_> = card.at_broker().skills.into_iter().map(|skill| (skill.name, skill.tags)).collect();
        assert_eq!(names, [("finance.tax".to_owned(), vec!["de".to_owned()])]);
        let wanted = ["finance".to_owned(), "finance.tax".to_owned(), "fin".to_owned(), "finance.tax.de".to_owned()];
        assert_eq!(card.lacks(&wanted), ["fin", "finance.tax.de"]);

        let mut elsewhere = whole();
        elsewhere["supportedInterfaces"] = json!([
            {"url": "https://b.example/rest", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0", "tenant": "t"},
        ]);
        let card = read_as(&elsewhere, None).unwrap();
        assert_eq!((card.place.binding, card.place.tenant.as_deref()), (Binding::HttpJson, Some("t")));
    }

    #[test]
    fn a_card_that_cannot_be_used_is_refused_with_the_reason() {
        let changed = |pointer: &str, value: Value| {
            let mut card = whole();
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            card.pointer_mut(parent).unwrap()[name] = value;
            card
        };
        let interface = |url: &str, binding: &str, version: &str| json!([{"url": url, "protocolBinding": binding, "protocolVersion": version}]);
        for (card, words) in [
            (json!({"name": "old", "protocolVersion": "0.3.0", "url": "https://a.example"}), "speaks A2A 0.3.0"),
            (changed("/supportedInterfaces", interface("https://a.example", "JSONRPC", "1.1")), "speaks A2A 1.1"),
            (changed("/supportedInterfaces", interface("a.example:1", "GRPC", "1.0")), "binding GRPC"),
            (changed("/supportedInterfaces", interface("https://c.example", "JSONRPC", "1.0")), "--allow-origin"),
            (changed("/supportedInterfaces", interface("http://10.0.0.1", "JSONRPC", "1.0")), "https://"),
            (changed("/supportedInterfaces", json!([])), "names no interface"),
            (changed("/defaultInputModes", json!(["image/png"])), "neither text/plain nor application/json"),
            (changed("/capabilities/extensions", json!([{"uri": "urn:x", "required": true}])), "urn:x"),
            (json!({"name": "none"}), "no card of A2A 1.0"),
            (json!("text"), "no card of A2A 1.0"),
        ] {
            let refused = read_as(&card, None).unwrap_err();
            assert!(refused.contains(words) && refused.contains("CARD_"), "{card}: {refused}");
        }
    }

    #[test]
    fn an_agent_that_asks_for_a_bearer_token_gets_one() {
        let mut card = whole();
        card["securitySchemes"] = json!({
            "grant": {"httpAuthSecurityScheme": {"scheme": "Bearer"}},
            "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
        });
        card["securityRequirements"] = json!([{"schemes": {"grant": {"list": []}}}]);
        assert!(read_as(&card, None).unwrap_err().contains("--bearer-file"));
        assert!(read_as(&card, Some("t0")).is_ok());
        card["securityRequirements"] = json!([{"schemes": {"key": {"list": []}}}]);
        assert!(read_as(&card, Some("t0")).unwrap_err().contains("a bearer token alone"));
    }
}
