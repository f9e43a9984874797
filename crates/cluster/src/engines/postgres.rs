//! A shared log and a register in PostgreSQL.
//!
//! One statement appends: the head row moves from `after` to `after + 1`, and the entry is inserted from its result. The lock
//! of that row decides which of two appends comes first; no row means fenced. An answer with a warning counts as unknown: a
//! commit whose wait for its standby was cancelled is acknowledged with one.
//!
//! Sets `synchronous_commit = on` and `statement_timeout = 0` on each connection, so no pooler that changes connections
//! between transactions may be between.

mod tls;

use std::{
    fmt,
    future::{Future, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Mutex,
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, NoTls,
    types::{ToSql, Type},
};
use tokio_postgres_rustls_improved::MakeRustlsConnect;

use crate::log::{
    AppendError, Position, ReadError, Register, Settings, SharedLog, Unavailable, VALUE_BYTES_MAX, Version, WriteError,
    is_name,
};

/// The largest entry in bytes.
const ENTRY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The time of a call, and of each 4 MiB that it moves. After that its outcome is unknown.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// The most entries of a read.
const ENTRIES_MAX: i64 = 1024;

/// The tables, for all clusters of a database. The lock lets one connection make them at a time.
const TABLES: &str = "
    BEGIN;
    SELECT pg_advisory_xact_lock(7022867);
    CREATE TABLE IF NOT EXISTS baton_log_head (cluster text PRIMARY KEY, position bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS baton_log (
        cluster text NOT NULL, position bigint NOT NULL, entry bytea NOT NULL, PRIMARY KEY (cluster, position));
    ALTER TABLE baton_log ALTER COLUMN entry SET STORAGE EXTERNAL;
    CREATE TABLE IF NOT EXISTS baton_register (
        cluster text NOT NULL, name text NOT NULL, version bigint NOT NULL, value bytea NOT NULL,
        PRIMARY KEY (cluster, name));
    COMMIT";
const APPEND: &str = "
    WITH head AS (
        UPDATE baton_log_head SET position = position + 1 WHERE cluster = $1 AND position = $2 RETURNING position)
    INSERT INTO baton_log (cluster, position, entry) SELECT $1, position, $3 FROM head";
/// Makes the head of a log that has none, also of one whose entries are there.
const HEAD: &str = "
    INSERT INTO baton_log_head SELECT $1, coalesce(max(position), 0) FROM baton_log WHERE cluster = $1
    ON CONFLICT DO NOTHING";
const END: &str = "SELECT position FROM baton_log_head WHERE cluster = $1";
/// The entries whose predecessors in the answer have fewer bytes than wanted.
const READ: &str = "
    SELECT position, entry FROM (
        SELECT position, entry, sum(length(entry)) OVER (ORDER BY position) - length(entry) AS before FROM (
            SELECT position, entry FROM baton_log WHERE cluster = $1 AND position >= $2 ORDER BY position LIMIT $4) AS next
    ) AS counted WHERE before < $3 ORDER BY position";
const TRIM: &str = "
    DELETE FROM baton_log WHERE cluster = $1
        AND position < least($2, (SELECT position FROM baton_log_head WHERE cluster = $1))";
/// The length of an entry is in its row: the server does not read the entry for it.
const SIZE: &str = "SELECT coalesce(sum(length(entry)), 0)::bigint FROM baton_log WHERE cluster = $1";
const SETTINGS: &str = "
    SELECT name, setting, reset_val FROM pg_settings WHERE name IN
        ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names', 'transaction_read_only')
    UNION ALL SELECT 'recovery', pg_is_in_recovery()::text, ''";

/// The arguments of a statement, with their types.
type Arguments<'call> = [(&'call (dyn ToSql + Sync), Type)];

/// A log and a register in a database.
#[derive(Debug)]
pub struct Postgres {
    cluster: String,
    appends: Link,
    reads: Link,
    /// The lease does not wait behind entries.
    values: Link,
}

/// A connection, made at its first use.
struct Link {
    config: Config,
    /// `None`: connections have no TLS.
    tls: Option<MakeRustlsConnect>,
    connected: Mutex<Option<Connected>>,
}

#[derive(Clone)]
struct Connected {
    client: Arc<Client>,
    /// The warnings that the server has sent.
    warnings: Arc<AtomicU64>,
}

impl fmt::Debug for Link {
    /// Omits the configuration, which has a password.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Link")
    }
}

impl Postgres {
    /// Connects, and makes the tables if they are not there. The address is a URL or a list of settings, as of `psql`; the
    /// cluster's name tells several apart in one database.
    pub async fn open(address: &str, cluster: &str) -> Result<Self, Unavailable> {
        let address = tls::Address::parse(address).map_err(|problem| Unavailable(format!("the address {problem}")))?;
        let tls = address.tls().map_err(Unavailable)?;
        let link = || Link { config: address.config.clone(), tls: tls.clone(), connected: Mutex::default() };
        let own = Self { cluster: cluster.into(), appends: link(), reads: link(), values: link() };
        let connected = own.appends.connected().await?;
        // On a server that takes no writes the tables cannot be made. The settings say so in better words.
        if own.settings().await?.unsafe_ones.is_empty() {
            connected.client.batch_execute(TABLES).await.map_err(unavailable)?;
            connected.client.execute_typed(HEAD, &[(&own.cluster, Type::TEXT)]).await.map_err(unavailable)?;
        }
        Ok(own)
    }

    /// Checks an address, without a connection.
    ///
    /// # Errors
    ///
    /// The problem, and what to do. It does not repeat the address.
    pub fn check(address: &str) -> Result<(), String> {
        tls::Address::parse(address).map(drop)
    }

    /// Deletes log and register of this name, for a log that was made for a test.
    pub async fn discard(&self) -> Result<(), Unavailable> {
        for statement in [
            "DELETE FROM baton_log WHERE cluster = $1",
            "DELETE FROM baton_register WHERE cluster = $1",
            "DELETE FROM baton_log_head WHERE cluster = $1",
        ] {
            self.reads.change(statement, &[self.cluster()], 0).await?;
        }
        Ok(())
    }

    /// What an operator is to do about a log without its head. Nothing is appended to it.
    fn no_head(&self) -> Unavailable {
        Unavailable(format!(
            "the table baton_log_head has no row for cluster {:?}: restore the database; or, if only this row was deleted and baton_log \
             has all entries, restart one broker, which makes the row again",
            self.cluster
        ))
    }

    fn cluster(&self) -> (&(dyn ToSql + Sync), Type) {
        (&self.cluster, Type::TEXT)
    }
}

impl Link {
    async fn connected(&self) -> Result<Connected, Unavailable> {
        let mut connected = self.connected.lock().await;
        match connected.as_ref().filter(|connected| !connected.client.is_closed()) {
            Some(open) => Ok(open.clone()),
            None => {
                let open = within(0, self.connect()).await??;
                Ok(connected.insert(open).clone())
            }
        }
    }

    async fn connect(&self) -> Result<Connected, Unavailable> {
        let warnings = Arc::new(AtomicU64::new(0));
        let client = match &self.tls {
            None => {
                let (client, connection) = self.config.connect(NoTls).await.map_err(unavailable)?;
                tokio::spawn(carry(connection, warnings.clone()));
                client
            }
            Some(tls) => {
                let (client, connection) = self.config.connect(tls.clone()).await.map_err(unavailable)?;
                tokio::spawn(carry(connection, warnings.clone()));
                client
            }
        };
        client
            .batch_execute("SET synchronous_commit = on; SET statement_timeout = 0; SET client_min_messages = warning")
            .await
            .map_err(unavailable)?;
        Ok(Connected { client: client.into(), warnings })
    }

    /// Makes a change; returns the number of rows. An answer that does not come in time, or with a warning, is an error.
    async fn change(&self, statement: &str, arguments: &Arguments<'_>, bytes: usize) -> Result<u64, Unavailable> {
        let connected = self.connected().await?;
        let warnings = connected.warnings.load(Ordering::SeqCst);
        let rows = within(bytes, connected.client.execute_typed(statement, arguments)).await;
        let rows = self.outcome(rows).await?;
        match connected.warnings.load(Ordering::SeqCst) == warnings {
            true => Ok(rows),
            false => Err(Unavailable("the server has warned of the commit".into())),
        }
    }

    async fn rows(
        &self,
        statement: &str,
        arguments: &Arguments<'_>,
        bytes: usize,
    ) -> Result<Vec<tokio_postgres::Row>, Unavailable> {
        let connected = self.connected().await?;
        let rows = within(bytes, connected.client.query_typed(statement, arguments)).await;
        self.outcome(rows).await
    }

    /// After a call that did not end in time, the next one does not wait behind it: it gets a connection of its own.
    async fn outcome<T>(
        &self,
        outcome: Result<Result<T, tokio_postgres::Error>, Unavailable>,
    ) -> Result<T, Unavailable> {
        if outcome.is_err() {
            *self.connected.lock().await = None;
        }
        outcome?.map_err(unavailable)
    }
}

/// Carries the messages of a connection, and counts the warnings of the server. Ends when the client is dropped, or the
/// connection ends.
async fn carry<S, T>(mut connection: Connection<S, T>, warnings: Arc<AtomicU64>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notice(notice) = message
            && notice.severity() == "WARNING"
        {
            warnings.fetch_add(1, Ordering::SeqCst);
        }
    }
}

async fn within<T>(bytes: usize, call: impl Future<Output = T>) -> Result<T, Unavailable> {
    let parts = u32::try_from(bytes / (4 * 1024 * 1024)).unwrap_or(u32::MAX).saturating_add(1);
    let outcome = tokio::time::timeout(CALL_TIMEOUT.saturating_mul(parts), call).await;
    outcome.map_err(|_| Unavailable("the server did not answer in time".into()))
}

/// The words of the server, and not those of the library alone.
fn unavailable(error: tokio_postgres::Error) -> Unavailable {
    match error.as_db_error() {
        Some(of_server) => Unavailable(of_server.message().into()),
        None => {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            Unavailable(format!("{error}{}", source.unwrap_or_default()))
        }
    }
}

/// Positions and versions are under 2^63.
fn number(position: Position) -> i64 {
    i64::try_from(position).unwrap_or(i64::MAX)
}

#[async_trait]
impl SharedLog for Postgres {
    async fn append(&self, after: Position, entry: Bytes) -> Result<(), AppendError> {
        if entry.len() > ENTRY_BYTES_MAX {
            return Err(AppendError::TooLarge { bytes: entry.len(), bytes_max: ENTRY_BYTES_MAX });
        }
        let (after, content) = (number(after), &entry[..]);
        let arguments: &Arguments<'_> = &[self.cluster(), (&after, Type::INT8), (&content, Type::BYTEA)];
        match self.appends.change(APPEND, arguments, entry.len()).await {
            Ok(1) => Ok(()),
            // No row has moved: the log has another end, or no head.
            Ok(_) => match self.end().await {
                Ok(_) => Err(AppendError::Fenced),
                Err(error) => Err(AppendError::Unknown(error.0)),
            },
            Err(error) => Err(AppendError::Unknown(error.0)),
        }
    }

    async fn end(&self) -> Result<Position, Unavailable> {
        let rows = self.reads.rows(END, &[self.cluster()], 0).await?;
        let Some(row) = rows.first() else { return Err(self.no_head()) };
        Ok(row.get::<_, i64>(0).unsigned_abs())
    }

    async fn read(&self, from: Position, bytes: usize) -> Result<Vec<(Position, Bytes)>, ReadError> {
        let (first, wanted) = (number(from), i64::try_from(bytes.max(1)).unwrap_or(i64::MAX));
        let arguments: &Arguments<'_> =
            &[self.cluster(), (&first, Type::INT8), (&wanted, Type::INT8), (&ENTRIES_MAX, Type::INT8)];
        let rows = self.reads.rows(READ, arguments, bytes.max(ENTRY_BYTES_MAX)).await?;
        let entry =
            |row: &tokio_postgres::Row| (row.get::<_, i64>(0).unsigned_abs(), Bytes::from(row.get::<_, Vec<u8>>(1)));
        let found: Vec<(Position, Bytes)> = rows.iter().map(entry).collect();
        match found.first() {
            // The last entry always stays, so each missing position has one behind it.
            Some((first, _)) if *first > from => Err(ReadError::Trimmed { first: *first }),
            _ if (from..).zip(&found).any(|(position, (at, _))| position != *at) => {
                Err(ReadError::Damaged(format!("entries behind {from} are missing")))
            }
            _ => Ok(found),
        }
    }

    async fn trim(&self, before: Position) -> Result<(), Unavailable> {
        let before = number(before);
        self.reads.change(TRIM, &[self.cluster(), (&before, Type::INT8)], 0).await.map(drop)
    }

    async fn size_bytes(&self) -> Result<u64, Unavailable> {
        let rows = self.reads.rows(SIZE, &[self.cluster()], 0).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }

    fn entry_bytes_max(&self) -> usize {
        ENTRY_BYTES_MAX
    }

    async fn settings(&self) -> Result<Settings, Unavailable> {
        let rows = self.reads.rows(SETTINGS, &[], 0).await?;
        let mut found = Settings::default();
        for row in &rows {
            match (row.get::<_, &str>(0), row.get::<_, &str>(1), row.get::<_, &str>(2)) {
                ("fsync" | "full_page_writes", "off", _) => {
                    let words = format!("{} = off loses entries in a power cut: set it to on", row.get::<_, &str>(0));
                    found.unsafe_ones.push(words);
                }
                ("synchronous_commit", now, reset) if now != "on" || reset == "off" => found.unsafe_ones.push(
                    "synchronous_commit = off acknowledges entries before they are on disk: set it to on for the server, the \
                     role and the database, and let no transaction pooler be between"
                        .into(),
                ),
                ("transaction_read_only", "on", _) => found.unsafe_ones.push(
                    "the connection is read-only: connect to the primary, and set default_transaction_read_only to off".into(),
                ),
                ("recovery", "true", _) => {
                    found.unsafe_ones.push("the server is a standby: connect to the primary".into());
                }
                ("synchronous_standby_names", "", _) => found.warnings.push(
                    "there is no synchronous standby (synchronous_standby_names is empty): a failover may lose entries, and \
                     the cluster stops then"
                        .into(),
                ),
                _ => {}
            }
        }
        Ok(found)
    }
}

#[async_trait]
impl Register for Postgres {
    async fn read(&self, name: &str) -> Result<Option<(Version, Bytes)>, Unavailable> {
        let statement = "SELECT version, value FROM baton_register WHERE cluster = $1 AND name = $2";
        let rows = self.values.rows(statement, &[self.cluster(), (&name, Type::TEXT)], 0).await?;
        let value = |row: &tokio_postgres::Row| {
            (Version(row.get::<_, i64>(0).to_string()), Bytes::from(row.get::<_, Vec<u8>>(1)))
        };
        Ok(rows.first().map(value))
    }

    async fn write(&self, name: &str, expected: Option<&Version>, value: Bytes) -> Result<Version, WriteError> {
        if !is_name(name) || value.len() > VALUE_BYTES_MAX {
            return Err(WriteError::Unknown(format!("{name:?} with {} bytes cannot be written", value.len())));
        }
        let expected = match expected {
            None => 0,
            // A version of another engine is not the present one.
            Some(version) => version.0.parse::<i64>().map_err(|_| WriteError::Changed)?,
        };
        let content = &value[..];
        let (of_name, of_value, of_version) =
            ((&name as _, Type::TEXT), (&content as _, Type::BYTEA), (&expected as _, Type::INT8));
        let statement = match expected {
            0 => "INSERT INTO baton_register VALUES ($1, $2, $4 + 1, $3) ON CONFLICT DO NOTHING",
            _ => {
                "UPDATE baton_register SET version = version + 1, value = $3
                    WHERE cluster = $1 AND name = $2 AND version = $4"
            }
        };
        match self.values.change(statement, &[self.cluster(), of_name, of_value, of_version], 0).await {
            Ok(1) => Ok(Version((expected + 1).to_string())),
            Ok(_) => Err(WriteError::Changed),
            Err(error) => Err(WriteError::Unknown(error.0)),
        }
    }

    async fn names(&self, prefix: &str) -> Result<Vec<String>, Unavailable> {
        let statement = "SELECT name FROM baton_register WHERE cluster = $1 AND starts_with(name, $2)";
        let rows = self.values.rows(statement, &[self.cluster(), (&prefix, Type::TEXT)], 0).await?;
        let mut names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        names.sort(); // as all engines do, whatever the collation of the database
        Ok(names)
    }
}
