#!/usr/bin/env bash
# Starts a PostgreSQL of its own, on a free port, in a folder of its own and as a user without privileges, and runs the tests of
# the engine against it.
#
#     tests/cluster/postgres.sh BIN          the folder that has initdb and postgres
#
# Exit code 75: the server cannot be run here.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bin="$(realpath "$1")"
work="$(mktemp -d)"

# PostgreSQL does not run as root.
as=()
if ((EUID == 0)); then
    command -v setpriv >/dev/null || { echo "there is no setpriv, and PostgreSQL does not run as root" >&2; exit 75; }
    chown nobody "$work"
    as=(setpriv --reuid=nobody --regid="$(id -g nobody)" --clear-groups)
fi

cleanup() {
    if [[ -s "$work/data/postmaster.pid" ]]; then
        "${as[@]}" "$bin/pg_ctl" stop --mode fast --silent --pgdata "$work/data" || true
    fi
    rm -rf "$work"
}
trap cleanup EXIT

"${as[@]}" "$bin/initdb" --pgdata "$work/data" --username postgres --auth trust --no-sync >"$work/initdb.log" 2>&1 ||
    { cat "$work/initdb.log"; exit 1; }
# A certificate for the address alone, and not for the name localhost.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=database \
    -config <(printf '[req]\ndistinguished_name = name\n[name]\n') \
    -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE \
    -keyout "$work/server.key" -out "$work/server.crt" 2>"$work/openssl.log" || { cat "$work/openssl.log"; exit 1; }
chmod 600 "$work/server.key"
if ((EUID == 0)); then chown nobody "$work/server.key"; fi
# Held over the crashes: its end is that of its standard input, which is this shell.
coproc holder { exec python3 tests/ports.py; }
read -r port <&"${holder[0]}"
cat >"$work/start" <<START
#!/usr/bin/env bash
exec ${as[*]} "$bin/pg_ctl" start --wait --silent --pgdata "$work/data" --log "$work/data/server.log" \\
    --options "-c listen_addresses=127.0.0.1 -c port=$port -c unix_socket_directories= \
    -c ssl=on -c ssl_cert_file=$work/server.crt -c ssl_key_file=$work/server.key"
START
cat >"$work/crash" <<CRASH
#!/usr/bin/env bash
${as[*]} "$bin/pg_ctl" stop --mode immediate --silent --pgdata "$work/data"
exec "$work/start"
CRASH
chmod 755 "$work" "$work/start" "$work/crash"
"$work/start" || { cat "$work/data/server.log"; exit 1; }

export BATON_POSTGRES="$port" BATON_POSTGRES_CRASH="$work/crash" BATON_POSTGRES_CA="$work/server.crt"
# Without a crate's name: else its libraries are compiled again, with only the features that this crate asks for.
cargo test --locked --test cluster_postgres
# One after another: each needs the server for itself.
cargo test --locked --test cluster_postgres -- --ignored --test-threads 1
