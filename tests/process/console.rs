//! The web console over TLS, as a browser without JavaScript meets it.

use baton::proto::v1::{self, MessageType};
use baton_client::About;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    broker::{Broker, a_request, card, composer, eventually, exit_of, identity, new_task, write},
    hostile::raw::{self, Answer},
};

const PAGES: [&str; 6] = [
    "/overview",
    "/handoffs",
    "/agents",
    "/dead-letters",
    "/tasks/t",
    "/handoffs/01890000-0000-7000-8000-000000000000",
];
const OWN: &str = "sec-fetch-site: same-origin\r\n";

/// Sends one request with these lines of its head. Every answer has the headers that protect the page.
async fn ask(broker: &Broker, line: &str, head: &str, body: &str) -> Answer {
    let mut stream = raw::http1(broker).await;
    let (host, length) = (&broker.address, body.len());
    let text = format!("{line} HTTP/1.1\r\nhost: {host}\r\n{head}content-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.unwrap();
    let answer = raw::answer(&mut stream).await.expect("an answer");
    for header in [
        "content-security-policy: default-src 'none';",
        "x-content-type-options: nosniff\r\n",
        "referrer-policy: no-referrer\r\n",
        "cross-origin-opener-policy: same-origin\r\n",
    ] {
        assert!(answer.head.contains(header), "{line} lacks {header}: {}", answer.head);
    }
    answer
}

pub(crate) async fn get(broker: &Broker, path: &str, cookie: &str) -> Answer {
    ask(broker, &format!("GET {path}"), &format!("cookie: {cookie}\r\n"), "").await
}

async fn post(broker: &Broker, path: &str, head: &str, body: &str) -> Answer {
    let head = format!("{head}content-type: application/x-www-form-urlencoded\r\n");
    ask(broker, &format!("POST {path}"), &head, body).await
}

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Logs in with this token. Returns the cookie.
pub(crate) async fn logged_in(broker: &Broker, token: &str) -> String {
    let answer = post(broker, "/login", OWN, &format!("token={token}")).await;
    assert_eq!((answer.status, header(&answer, "location")), (303, Some("/overview")), "{}", answer.body);
    let cookie = header(&answer, "set-cookie").expect("a cookie");
    let (cookie, attributes) = cookie.split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; Secure; HttpOnly; SameSite=Strict");
    let secret = cookie.strip_prefix("__Host-baton=").unwrap();
    assert!(secret.len() == 64 && secret.bytes().all(|byte| byte.is_ascii_hexdigit()), "{cookie}");
    cookie.to_owned()
}

async fn is_at_login(broker: &Broker, cookie: &str) {
    for page in PAGES {
        let answer = get(broker, page, cookie).await;
        let location = header(&answer, "location").unwrap_or_default();
        assert!(answer.status == 303 && location.starts_with("/login"), "{page}: {location}");
        assert_eq!(answer.body, "", "{page}");
    }
}

async fn registered(broker: &Broker, names: &[&str]) {
    let client = broker.operator().await;
    for name in names {
        let request = v1::RegisterAgentRequest { card: Some(card(name, "")), ..Default::default() };
        client.answer(client.agents().register_agent(request).await).unwrap();
    }
}

/// Sends requests from a to b. Returns the handoffs.
async fn requested(broker: &Broker, request: &v1::HandoffRequest, many: usize) -> Vec<String> {
    let client = broker.client_of("a").await;
    let mut handoffs = Vec::new();
    for _ in 0..many {
        let about = About::task(&new_task(), 1);
        let envelope = composer("a").encode("b", MessageType::HandoffRequest, &about, request);
        let sent =
            client.answer(client.messages().send(v1::SendRequest { envelope, ..Default::default() }).await).unwrap();
        handoffs.push(sent.receipt.unwrap().message_id);
    }
    handoffs
}

#[tokio::test]
async fn a_browser_without_a_session_is_sent_to_the_login() {
    let broker = Broker::start();
    is_at_login(&broker, "").await;
    is_at_login(&broker, &format!("__Host-baton={}", "0".repeat(64))).await;
    let front = ask(&broker, "GET /", "accept: text/html,*/*;q=0.8\r\n", "").await;
    assert_eq!((front.status, header(&front, "location")), (303, Some("/overview")));
    assert_eq!(ask(&broker, "GET /", "accept: */*\r\n", "").await.status, 200);
    let login = get(&broker, "/login", "").await;
    assert!(
        login.status == 200 && login.body.contains("<form method=\"post\" action=\"/login\" id=\"login\""),
        "{}",
        login.body
    );
    let wrong = post(&broker, "/login", OWN, "token=wrong").await;
    assert_eq!((wrong.status, header(&wrong, "set-cookie")), (403, None));
}

#[tokio::test]
async fn a_session_ends_with_a_logout_and_with_a_restart() {
    let broker = Broker::start();
    let token = broker.operator_token();
    let (first, second) = (logged_in(&broker, &token).await, logged_in(&broker, &token).await);
    assert_ne!(first, second);
    let page = get(&broker, "/overview", &first).await;
    assert_eq!((page.status, header(&page, "cache-control")), (200, Some("no-store")), "{}", page.body);
    let out = post(&broker, "/logout", &format!("{OWN}cookie: {first}\r\n"), "").await;
    assert_eq!((out.status, header(&out, "location")), (303, Some("/login")));
    assert!(header(&out, "set-cookie").unwrap().ends_with("; Max-Age=0"));
    // A copy of the cookie is worth nothing then.
    is_at_login(&broker, &first).await;
    assert_eq!(get(&broker, "/overview", &second).await.status, 200);
    assert!(!broker.log().contains(&token) && !broker.log().contains(&second[14..]), "a secret is in the log");
    let broker = Broker::start_in(broker.kill(), &[]);
    is_at_login(&broker, &second).await;
}

#[tokio::test]
async fn a_request_that_another_site_causes_is_refused() {
    let broker = Broker::start();
    let token = broker.operator_token();
    let cookie = logged_in(&broker, &token).await;
    let cookie_line = format!("cookie: {cookie}\r\n");
    for head in
        ["sec-fetch-site: cross-site\r\n", "sec-fetch-site: same-site\r\n", "origin: https://evil.example\r\n", ""]
    {
        let login = post(&broker, "/login", head, &format!("token={token}")).await;
        assert_eq!((login.status, header(&login, "set-cookie")), (403, None), "{head}");
        assert_eq!(post(&broker, "/logout", &format!("{head}{cookie_line}"), "").await.status, 403, "{head}");
    }
    assert_eq!(get(&broker, "/overview", &cookie).await.status, 200, "the session is still open");
    assert_eq!(get(&broker, "/logout", &cookie).await.status, 405, "GET changes nothing");
    let own = format!("origin: https://{}\r\n{cookie_line}", broker.address);
    assert_eq!(post(&broker, "/logout", &own, "").await.status, 303);
}

#[tokio::test]
async fn a_form_that_is_too_long_is_refused() {
    let broker = Broker::start();
    let form = |bytes: usize| format!("token={}", "x".repeat(bytes - 6));
    assert_eq!(post(&broker, "/login", OWN, &form(64 * 1024)).await.status, 403);
    assert_eq!(post(&broker, "/login", OWN, &form(64 * 1024 + 1)).await.status, 413);
}

#[tokio::test]
async fn the_pages_show_a_handoff_and_escape_what_agents_wrote() {
    const IMAGE: &str = "<img src=x onerror=alert(1)>";
    let broker = Broker::start();
    registered(&broker, &["a", "b"]).await;
    let handoff = requested(&broker, &a_request(), 1).await.remove(0);
    let b = broker.agent_session("b").await;
    let offer = b.take().await.unwrap();
    let reject =
        v1::HandoffReject { reason: v1::RejectReason::Other.into(), reason_text: IMAGE.into(), ..Default::default() };
    b.reject(&offer, &reject).await.unwrap();
    let operator = logged_in(&broker, &broker.operator_token()).await;
    let token = broker.client().await.prove(&identity("b")).await.unwrap();
    let receiver = logged_in(&broker, &token).await;
    for cookie in [&operator, &receiver] {
        for path in ["/overview", "/handoffs", &format!("/handoffs/{handoff}"), "/agents", "/dead-letters"] {
            let page = get(&broker, path, cookie).await;
            assert_eq!(page.status, 200, "{path}: {}", page.body);
            assert!(!page.body.contains(IMAGE), "{path}");
        }
        let list = get(&broker, "/handoffs?state=all&agent=a&task=&type=", cookie).await.body;
        assert!(list.contains(&format!("<a href=\"/handoffs/{handoff}\">")), "{list}");
        let page = get(&broker, &format!("/handoffs/{handoff}"), cookie).await.body;
        assert!(page.contains("&#60;img src=x onerror=alert(1)&#62;"), "{page}");
    }
    let search = get(&broker, "/handoffs?type=%3Cimg%20src%3Dx%3E%22", &operator).await;
    assert!(search.status == 200 && !search.body.contains(IMAGE), "{}", search.body);
    assert_eq!(get(&broker, "/handoffs?state=NONE", &operator).await.status, 400);
    assert_eq!(get(&broker, "/handoffs/x", &operator).await.status, 400);
    assert_eq!(get(&broker, PAGES[5], &operator).await.status, 404);
}

#[tokio::test]
async fn a_long_list_has_pages() {
    let broker = Broker::start();
    registered(&broker, &["a", "b"]).await;
    let mut expected = requested(&broker, &a_request(), 60).await;
    let cookie = logged_in(&broker, &broker.operator_token()).await;
    let (mut path, mut seen) = ("/handoffs".to_owned(), Vec::new());
    loop {
        let page = get(&broker, &path, &cookie).await.body;
        assert!(page.len() < 100_000, "{}", page.len());
        let rows = page.split("<tr id=\"handoff-").skip(1);
        seen.extend(rows.map(|row| row.split('"').next().unwrap().to_owned()));
        let Some((_, next)) = page.split_once("<a rel=\"next\" href=\"") else { break };
        path = next.split('"').next().unwrap().replace("&amp;", "&");
    }
    expected.reverse();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_caller_without_the_right_is_told_which_rule_denies_it() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("default.cedar"), baton::policy::DEFAULT);
    let forbid = "@id(\"no-handoffs\") forbid(principal is Operator, action == Action::\"readHandoff\", resource);";
    write(&folder.path().join("more.cedar"), forbid);
    let more = format!("[console]\nenabled = true\n[policy]\npath = {:?}\n", folder.path());
    let broker = Broker::serve("", &more);
    let cookie = logged_in(&broker, &broker.operator_token()).await;
    for path in ["/handoffs", PAGES[5]] {
        let page = get(&broker, path, &cookie).await;
        assert_eq!(page.status, 403, "{path}");
        assert!(page.body.contains("PERMISSION_DENIED") && page.body.contains("no-handoffs"), "{}", page.body);
    }
    let overview = get(&broker, "/overview", &cookie).await;
    assert_eq!(overview.status, 200, "{}", overview.body);
}

#[tokio::test]
async fn a_broker_serves_no_console_unless_it_is_enabled() {
    let broker = Broker::serve("", "");
    for path in ["/overview", "/login", "/console.css", "/icon.svg"] {
        assert_eq!(get(&broker, path, "").await.status, 404, "{path}");
    }
    let front = ask(&broker, "GET /", "accept: text/html\r\n", "").await;
    assert_eq!(front.status, 200);
    assert!(front.body.contains("the web console is off"), "{}", front.body);
}

#[tokio::test]
async fn the_front_page_names_the_console_where_there_is_one() {
    let broker = Broker::start();
    let front = ask(&broker, "GET /", "accept: */*\r\n", "").await;
    assert_eq!(front.status, 200);
    assert!(front.body.contains("People open this address in a browser"), "{}", front.body);
    assert_eq!(ask(&broker, "GET /", "accept: text/html\r\n", "").await.status, 303);
    assert_eq!(get(&broker, "/icon.svg", "").await.status, 200);
}

/// Asks for a code, and returns the answer to a login with it.
async fn login_by_code(broker: &Broker, code: &str, next: &str) -> Answer {
    post(broker, "/login", OWN, &format!("code={code}&token=&next={next}")).await
}

#[tokio::test]
async fn a_code_is_good_for_one_login_as_the_caller_that_asked_for_it() {
    let broker = Broker::start();
    registered(&broker, &["a"]).await;
    for (client, name) in
        [(broker.operator().await, "operator operator.token"), (broker.client_of("a").await, "agent a")]
    {
        let made = client.answer(client.agents().create_login_code(v1::CreateLoginCodeRequest {}).await).unwrap();
        let login = login_by_code(&broker, &made.code, "%2Fhandoffs%3Fstate%3Dall").await;
        assert_eq!((login.status, header(&login, "location")), (303, Some("/handoffs?state=all")), "{}", login.body);
        let cookie = header(&login, "set-cookie").unwrap().split(';').next().unwrap().to_owned();
        let page = get(&broker, "/overview", &cookie).await.body;
        assert!(page.contains(&format!(">{name}</span>")), "{page}");
        let again = login_by_code(&broker, &made.code, "").await;
        assert_eq!((again.status, header(&again, "set-cookie")), (403, None));
        assert!(!broker.log().contains(&made.code), "the code is in the log");
    }
    let client = broker.operator().await;
    let made = client.answer(client.agents().create_login_code(v1::CreateLoginCodeRequest {}).await).unwrap();
    let login = login_by_code(&broker, &made.code, "https%3A%2F%2Fevil.example%2F").await;
    assert_eq!((login.status, header(&login, "location")), (303, Some("/overview")));
    let anonymous = broker.client().await;
    let refused = anonymous.answer(anonymous.agents().create_login_code(v1::CreateLoginCodeRequest {}).await);
    assert_eq!(refused.unwrap_err().reason(), Some("IDENTITY_MISSING"));
    let broker = Broker::serve("", "");
    let client = broker.operator().await;
    let refused = client.answer(client.agents().create_login_code(v1::CreateLoginCodeRequest {}).await);
    assert_eq!(refused.unwrap_err().reason(), Some("NOT_SUPPORTED"));
    let (code, stderr) = exit_of(&mut broker.command(&["console"]));
    assert!(code == Some(8) && stderr.contains("[console]"), "{stderr}");
}

#[tokio::test]
async fn an_open_page_hears_of_changes_until_its_session_ends() {
    let broker = Broker::start();
    registered(&broker, &["a", "b"]).await;
    let cookie = logged_in(&broker, &broker.operator_token()).await;
    let mut stream = raw::http1(&broker).await;
    let head = format!("GET /events HTTP/1.1\r\nhost: {}\r\ncookie: {cookie}\r\n\r\n", broker.address);
    stream.write_all(head.as_bytes()).await.unwrap();
    requested(&broker, &a_request(), 1).await;
    let (mut heard, mut buffer) = (String::new(), [0; 4096]);
    let listening = async {
        while !heard.contains("event: changed\ndata:\n\n") {
            let read = stream.read(&mut buffer).await.unwrap();
            assert_ne!(read, 0, "{heard}");
            heard.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), listening).await.expect("an event");
    assert!(heard.contains("content-type: text/event-stream\r\n"), "{heard}");
    post(&broker, "/logout", &format!("{OWN}cookie: {cookie}\r\n"), "").await;
    // The body of the answer ends, and with HTTP/1.1 that is its last chunk.
    let listening = async {
        while !heard.ends_with("\r\n0\r\n\r\n") {
            let read = stream.read(&mut buffer).await.unwrap();
            heard.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), listening).await.expect("the end");
    // What a page asks by itself gets no page of another kind.
    for (path, head) in [("/events", ""), ("/handoffs", "baton-refresh: 1\r\n")] {
        let answer = ask(&broker, &format!("GET {path}"), &format!("{head}cookie: {cookie}\r\n"), "").await;
        assert_eq!(answer.status, 401, "{path}");
    }
}

/// Makes dead letters of requests that these agents reject. Returns their numbers.
async fn rejected(broker: &Broker, by: &[&str]) -> Vec<String> {
    let sender = broker.client_of("a").await;
    for name in by {
        let about = About::task(&new_task(), 1);
        let envelope = composer("a").encode(name, MessageType::HandoffRequest, &about, &a_request());
        sender.answer(sender.messages().send(v1::SendRequest { envelope, ..Default::default() }).await).unwrap();
        let agent = broker.agent_session(name).await;
        let offer = agent.take().await.unwrap();
        agent.reject(&offer, &v1::HandoffReject::default()).await.unwrap();
    }
    let client = broker.operator().await;
    let list = client.dead_letters().list_dead_letters(v1::ListDeadLettersRequest::default()).await;
    let mut numbers: Vec<_> =
        client.answer(list).unwrap().dead_letters.into_iter().map(|dead| dead.dead_letter_id).collect();
    numbers.reverse();
    numbers
}

#[tokio::test]
async fn an_operator_redrives_what_a_filter_selects_and_nothing_else() {
    let broker = Broker::start();
    registered(&broker, &["a", "b", "c"]).await;
    let numbers = rejected(&broker, &["b", "c", "b", "c", "b"]).await;
    assert_eq!(numbers.len(), 5);
    let cookie = logged_in(&broker, &broker.operator_token()).await;
    let own = format!("{OWN}cookie: {cookie}\r\n");
    // The review changes nothing.
    let review = get(&broker, "/dead-letters/redrive?state=PARKED&reason=&agent=b&sender=&task=", &cookie).await;
    assert!(review.status == 200 && review.body.contains("Redrive 3 dead letters?"), "{}", review.body);
    assert_eq!(broker.lines(&["dlq", "list"]).len(), 5);
    let foreign = format!("sec-fetch-site: cross-site\r\ncookie: {cookie}\r\n");
    assert_eq!(post(&broker, "/dead-letters/redrive", &foreign, "agent=b").await.status, 403);
    assert_eq!(broker.lines(&["dlq", "list"]).len(), 5);
    let done = post(&broker, "/dead-letters/redrive", &own, "reason=&agent=b&sender=&task=&to=").await;
    assert!(done.status == 200 && done.body.contains("3 redriven, 0 refused"), "{}", done.body);
    let left: Vec<_> = broker.lines(&["dlq", "list"]).iter().map(|dead| dead["agentId"].clone()).collect();
    assert_eq!(left, ["c", "c"]);
    let none = get(&broker, "/dead-letters/redrive?agent=b", &cookie).await;
    assert!(none.status == 404 && none.body.contains("NOTHING_MATCHES"), "{}", none.body);
    // One by one.
    let (first, second) = (&numbers[1], &numbers[3]);
    let redrive = |number: &str| format!("/dead-letters/{number}/redrive");
    let done = post(&broker, &redrive(first), &own, "to=b").await;
    assert_eq!(
        (done.status, header(&done, "location")),
        (303, Some(&*format!("/dead-letters/{first}"))),
        "{}",
        done.body
    );
    let page = get(&broker, &format!("/dead-letters/{first}"), &cookie).await.body;
    assert!(page.contains("<dt>Redriven to</dt><dd>b</dd>") && !page.contains("<h2>Decide</h2>"), "{page}");
    let again = post(&broker, &redrive(first), &own, "to=b").await;
    assert!(again.status == 409 && again.body.contains("DEAD_LETTER_SETTLED"), "{}", again.body);
    let discard = post(&broker, &format!("/dead-letters/{second}/discard"), &own, "reason=a+test").await;
    assert_eq!(discard.status, 303, "{}", discard.body);
    assert_eq!(broker.lines(&["dlq", "list"]).len(), 0);
    let acts = broker.lines(&["audit"]);
    assert!(acts.iter().any(|act| act.to_string().contains("a test")), "{acts:?}");
    assert_eq!(post(&broker, &redrive("x"), &own, "").await.status, 400);
    assert_eq!(post(&broker, &redrive("4096"), &own, "").await.status, 404);
}

#[tokio::test]
async fn an_agent_sees_its_dead_letters_and_decides_about_none() {
    let broker = Broker::start();
    registered(&broker, &["a", "b"]).await;
    let number = rejected(&broker, &["b"]).await.remove(0);
    let token = broker.client().await.prove(&identity("b")).await.unwrap();
    let cookie = logged_in(&broker, &token).await;
    let own = format!("{OWN}cookie: {cookie}\r\n");
    assert_eq!(get(&broker, &format!("/dead-letters/{number}"), &cookie).await.status, 200);
    assert_eq!(get(&broker, "/dead-letters/redrive?agent=b", &cookie).await.status, 403);
    for path in [
        "/dead-letters/redrive",
        &format!("/dead-letters/{number}/redrive"),
        &format!("/dead-letters/{number}/discard"),
    ] {
        let refused = post(&broker, path, &own, "agent=b").await;
        assert!(refused.status == 403 && refused.body.contains("PERMISSION_DENIED"), "{path}: {}", refused.body);
    }
    assert_eq!(broker.lines(&["dlq", "list"]).len(), 1);
}

#[tokio::test]
async fn a_revoked_key_ends_the_session_that_it_began() {
    let broker = Broker::start();
    registered(&broker, &["a"]).await;
    let token = broker.client().await.prove(&identity("a")).await.unwrap();
    let cookie = logged_in(&broker, &token).await;
    assert_eq!(get(&broker, "/overview", &cookie).await.status, 200);
    let operator = broker.operator().await;
    let revoke = v1::RevokeAgentKeyRequest { agent_id: "a".into(), key_id: "k1".into(), ..Default::default() };
    operator.answer(operator.agents().revoke_agent_key(revoke).await).unwrap();
    is_at_login(&broker, &cookie).await;
    // The same cookie stays worthless.
    is_at_login(&broker, &cookie).await;
}

#[tokio::test]
async fn pages_beyond_the_bound_get_no_stream_and_all_others_go_on() {
    /// Of one caller.
    const STREAMS_MAX: usize = 64;
    let broker = Broker::start();
    registered(&broker, &["a"]).await;
    let cookie = logged_in(&broker, &broker.operator_token()).await;
    let head = format!("GET /events HTTP/1.1\r\nhost: {}\r\ncookie: {cookie}\r\n\r\n", broker.address);
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..STREAMS_MAX + 4 {
        let mut stream = raw::http1(&broker).await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        match &status {
            b"HTTP/1.1 200" => open.push(stream),
            b"HTTP/1.1 503" => refused += 1,
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    }
    assert_eq!((open.len(), refused), (STREAMS_MAX, 4));
    assert_eq!(get(&broker, "/overview", &cookie).await.status, 200);
    // The streams of one caller take none of another's.
    let of_other = logged_in(&broker, &broker.client().await.prove(&identity("a")).await.unwrap()).await;
    let mut stream = raw::http1(&broker).await;
    stream.write_all(head.replace(&cookie, &of_other).as_bytes()).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    // A closed page makes room for another one.
    drop(open.split_off(STREAMS_MAX / 2));
    eventually("a place is free", async || {
        let mut stream = raw::http1(&broker).await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        &status == b"HTTP/1.1 200"
    })
    .await;
}
