//! Client certificates, and certificates that are replaced while the broker runs.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use baton::{ids::SystemIds, proto::v1, time::SystemClock};
use baton_client::{Client, ClientCertificate, ClientError, Options, session::Agent};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};

use tokio::io::AsyncWriteExt as _;

use crate::{
    broker::{Broker, baton, card, eventually, exit_of, identity, write, write_private},
    hostile::raw::{self, Answer},
};

type Ca = CertifiedIssuer<'static, KeyPair>;

fn make_ca(name: &str) -> Ca {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// The parameters of an agent's certificate.
fn agent_params(agent: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(format!("urn:baton:agent:{agent}").try_into().unwrap())];
    params.serial_number = Some(SerialNumber::from(u64::from(agent.as_bytes()[0])));
    params
}

struct Fixture {
    broker: Broker,
    server_ca: Ca,
    client_ca: Ca,
}

impl Fixture {
    /// A broker with its own CA that requests client certificates, with agents a and b registered.
    async fn start(more: &str) -> Self {
        let (server_ca, client_ca) = (make_ca("servers"), make_ca("clients"));
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let path = |name: &str| folder.path().join(name);
        write_server_certificate(folder.path(), &server_ca);
        write(&path("client-ca.pem"), &client_ca.pem());
        write(&path("ca.pem"), &server_ca.pem());
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(u64::from(b'r')),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        write(&path("client.crl"), &list.signed_by(&client_ca).unwrap().pem().unwrap());
        let config = format!(
            "listen = \"127.0.0.1:0\"\ndata = {:?}\nenrollment = \"open\"\n[tls]\ncertificate = {:?}\nkey = {:?}\n\
             client_ca = {:?}\nclient_crl = {:?}\n{more}",
            path("data"),
            path("server.pem"),
            path("server.key"),
            path("client-ca.pem"),
            path("client.crl"),
        );
        write(&path("baton.toml"), &config);
        let mut command = baton();
        command.args(["serve", "--config"]).arg(path("baton.toml"));
        let broker = Broker::spawn(command, folder);
        Self { broker, server_ca, client_ca }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.broker.folder.path().join(name)
    }

    fn options(&self, certificate: Option<ClientCertificate>) -> Options {
        Options {
            server: self.broker.address.clone(),
            ca: Some(self.path("ca.pem")),
            certificate,
            ..Default::default()
        }
    }

    /// Writes a certificate, signed by this CA or by its own key, to files.
    fn certificate(&self, params: CertificateParams, issuer: Option<&Ca>) -> ClientCertificate {
        let key = KeyPair::generate().unwrap();
        let made = match issuer {
            Some(issuer) => params.signed_by(&key, issuer).unwrap(),
            None => params.self_signed(&key).unwrap(),
        };
        let name = hex::encode(&key.public_key_raw()[..8]);
        let files = ClientCertificate { certificate: self.path(&format!("{name}.pem")), key: self.path(&name) };
        write(&files.certificate, &made.pem());
        write_private(&files.key, &key.serialize_pem());
        files
    }

    async fn client(&self, params: CertificateParams) -> Result<Client, ClientError> {
        let files = self.certificate(params, Some(&self.client_ca));
        Client::connect(&self.options(Some(files))).await
    }

    async fn register(&self, names: &[&str]) {
        let client = Client::connect(&self.options(None)).await.unwrap();
        for name in names {
            let request = v1::RegisterAgentRequest { card: Some(card(name, "")), ..Default::default() };
            client.answer(client.agents().register_agent(request).await).unwrap();
        }
    }
}

fn write_server_certificate(folder: &Path, ca: &Ca) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    write(&folder.join("server.key"), &key.serialize_pem());
    write(&folder.join("server.pem"), &params.signed_by(&key, ca).unwrap().pem());
}

/// Makes a call that requires an identity.
async fn ask(client: &Client) -> Result<(), ClientError> {
    let request = v1::ReceiveRequest { max_deliveries: 1, ..Default::default() };
    client.answer(client.messages().receive(request).await).map(drop)
}

#[tokio::test]
async fn an_agent_proves_who_it_is_by_its_certificate() {
    let fixture = Fixture::start("").await;
    fixture.register(&["a", "b"]).await;
    let client = fixture.client(agent_params("a")).await.unwrap();
    let a = Agent::connect(&client, identity("a"), 16, Arc::new(SystemClock), Arc::new(SystemIds)).await.unwrap();
    assert_eq!(a.session.welcome.agent_id, "a");
    a.request("b", "t", 1, &crate::broker::a_request()).await.unwrap();
    ask(&client).await.unwrap();
    // A token sent along must be for the agent of the certificate.
    let token = Client::connect(&fixture.options(None)).await.unwrap().prove(&identity("b")).await.unwrap();
    let conflict = ask(&client.with_token(&token).unwrap()).await.unwrap_err();
    assert_eq!(conflict.reason(), Some("SENDER_MISMATCH"), "{conflict}");
    let stranger = fixture.client(agent_params("unknown")).await.unwrap();
    assert_eq!(ask(&stranger).await.unwrap_err().reason(), Some("AGENT_UNKNOWN"));
    let upload = stranger.blobs().get_blob_write(v1::GetBlobWriteRequest::default()).await;
    assert_eq!(stranger.answer(upload).unwrap_err().reason(), Some("AGENT_UNKNOWN"));
    let nameless = fixture.client(CertificateParams::default()).await.unwrap();
    assert_eq!(ask(&nameless).await.unwrap_err().reason(), Some("IDENTITY_MISSING"));
}

/// Sends one request of a browser that has this certificate.
async fn browse(fixture: &Fixture, certificate: &ClientCertificate, line: &str, head: &str, form: &str) -> Answer {
    let mut stream = raw::http1_as(&fixture.broker, &fixture.path("ca.pem"), certificate).await;
    let (host, length) = (&fixture.broker.address, form.len());
    let kind = "content-type: application/x-www-form-urlencoded\r\nsec-fetch-site: same-origin\r\n";
    let text = format!("{line} HTTP/1.1\r\nhost: {host}\r\n{kind}{head}content-length: {length}\r\n\r\n{form}");
    stream.write_all(text.as_bytes()).await.unwrap();
    raw::answer(&mut stream).await.expect("an answer")
}

#[tokio::test]
async fn a_browser_with_a_certificate_logs_in_to_the_console_as_its_agent() {
    let fixture = Fixture::start("[console]\nenabled = true\n").await;
    fixture.register(&["a"]).await;
    let [known, unknown] = ["a", "x"].map(|name| fixture.certificate(agent_params(name), Some(&fixture.client_ca)));
    let page = browse(&fixture, &known, "GET /login", "", "").await.body;
    assert!(page.contains("<button>Continue as a</button>"), "{page}");
    let login = browse(&fixture, &known, "POST /login", "", "certificate=yes").await;
    let cookie = login.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
    let cookie = format!("cookie: {}\r\n", cookie.split(';').next().unwrap());
    let overview = browse(&fixture, &known, "GET /overview", &cookie, "").await;
    assert!(overview.status == 200 && overview.body.contains(">agent a</span>"), "{}", overview.body);
    // The agent has to be registered.
    assert!(!browse(&fixture, &unknown, "GET /login", "", "").await.body.contains("Continue as"));
    assert_eq!(browse(&fixture, &unknown, "POST /login", "", "certificate=yes").await.status, 403);
    // A code for a connection with a certificate.
    let client = Client::connect(&fixture.options(Some(known.clone()))).await.unwrap();
    let made = client.answer(client.agents().create_login_code(v1::CreateLoginCodeRequest {}).await).unwrap();
    let login = browse(&fixture, &unknown, "POST /login", "", &format!("code={}", made.code)).await;
    assert!(login.status == 303 && login.head.contains("set-cookie: __Host-baton="), "{}", login.head);
}

#[tokio::test]
async fn certificates_that_are_not_good_get_no_connection() {
    let fixture = Fixture::start("").await;
    fixture.register(&["a"]).await;
    let (mut expired, mut not_yet) = (agent_params("a"), agent_params("a"));
    expired.not_after = date_time_ymd(2020, 1, 1);
    not_yet.not_before = date_time_ymd(2099, 1, 1);
    let other_ca = make_ca("another CA");
    for (what, files) in [
        ("expired", fixture.certificate(expired, Some(&fixture.client_ca))),
        ("not yet valid", fixture.certificate(not_yet, Some(&fixture.client_ca))),
        ("revoked", fixture.certificate(agent_params("r"), Some(&fixture.client_ca))),
        ("self-signed", fixture.certificate(agent_params("a"), None)),
        ("of another CA", fixture.certificate(agent_params("a"), Some(&other_ca))),
        ("of the servers' CA", fixture.certificate(agent_params("a"), Some(&fixture.server_ca))),
    ] {
        // In TLS 1.3 the client learns of the refusal only with its first call.
        let outcome = match Client::connect(&fixture.options(Some(files))).await {
            Ok(client) => ask(&client).await,
            Err(error) => Err(error),
        };
        let error = outcome.expect_err(what);
        assert!(matches!(error, ClientError::Unreachable { .. } | ClientError::Untrusted { .. }), "{what}: {error:?}");
    }
    fixture.client(agent_params("a")).await.map(drop).unwrap();
}

#[tokio::test]
async fn a_client_without_a_certificate_is_turned_away_where_one_is_required() {
    let fixture = Fixture::start("client_certificate = \"required\"\nmin_version = \"1.3\"\n").await;
    let outcome = match Client::connect(&fixture.options(None)).await {
        Ok(client) => ask(&client).await,
        Err(error) => Err(error),
    };
    assert!(matches!(outcome, Err(ClientError::Unreachable { .. } | ClientError::Untrusted { .. })), "{outcome:?}");
    let client = fixture.client(agent_params("a")).await.unwrap();
    let request = v1::RegisterAgentRequest { card: Some(card("a", "")), ..Default::default() };
    client.answer(client.agents().register_agent(request).await).unwrap();
    ask(&client).await.unwrap();
    let files = fixture.certificate(agent_params("a"), Some(&fixture.client_ca));
    let mut command = baton();
    command.args(["agent", "list", "--server", &fixture.broker.address, "--ca"]).arg(fixture.path("ca.pem"));
    assert_eq!(exit_of(&mut command).0, Some(9));
    command.arg("--cert").arg(files.certificate).arg("--cert-key").arg(files.key);
    assert_eq!(exit_of(&mut command).0, Some(0));
}

#[tokio::test]
async fn a_changed_certificate_is_taken_in_without_a_restart_and_a_broken_one_is_not() {
    let fixture = Fixture::start("").await;
    fixture.register(&["a"]).await;
    let old = Client::connect(&fixture.options(None)).await.unwrap();
    let new_ca = make_ca("next year");
    write(&fixture.path("new-ca.pem"), &new_ca.pem());
    write_server_certificate(fixture.broker.folder.path(), &new_ca);
    let trusting_new = Options { ca: Some(fixture.path("new-ca.pem")), ..fixture.options(None) };
    fixture.broker.hang_up();
    eventually("the new certificate is served", async || Client::connect(&trusting_new).await.is_ok()).await;
    assert!(Client::connect(&fixture.options(None)).await.is_err(), "new connections get the new one");
    old.agents().list_agents(v1::ListAgentsRequest::default()).await.expect("open connections go on");
    write(&fixture.path("server.pem"), "nonsense");
    fixture.broker.hang_up();
    // The broker also watches the file itself, without a signal.
    for _ in 0..3 {
        Client::connect(&trusting_new).await.expect("the old one stays");
    }
    write_server_certificate(fixture.broker.folder.path(), &fixture.server_ca);
    eventually("a change is seen without a signal", async || Client::connect(&fixture.options(None)).await.is_ok())
        .await;
}
