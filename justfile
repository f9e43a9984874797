# What is done every day. `just` lists it.

_list:
    @just --list --unsorted

# Builds the broker and its command line.
build:
    cargo build --release

# Runs the tests; arguments are names to choose by.
test *names:
    cargo test {{ names }}

# The pure tests, in seconds once built: no broker is started, and time is virtual.
quick:
    cargo test --lib --test broker --test core --test vectors --test corpora --test layering --test documents

# The rules alone, in ten seconds: the state machines, their table, and random stories against a model.
domain:
    cargo test -p baton-domain

# What must hold of the Rust code before a merge, in about six minutes on two idle processors.
merge:
    cargo fmt --check
    cargo clippy --locked --all-targets -- -D warnings
    RUST_TEST_THREADS=4 cargo test --locked

# Searches long: 10,000 seeds, 100 kills, all planted faults, fuzzing. By hand or by night.
long:
    .ci/long

# Formats, and checks what a review should not have to.
lint:
    cargo fmt
    cargo clippy --all-targets -- -D warnings

# Everything that must hold before a change is merged.
ci:
    .ci/run

# Fuzzes a target, for example `just fuzz envelope -max_total_time=600`; docs/fuzzing.md lists them.
fuzz target *options:
    fuzz/run {{ target }} {{ options }}

# Starts a broker for development; arguments go to it.
dev *arguments:
    cargo run -- dev {{ arguments }}

# Four agents hand a task over, against a running broker (`just dev`).
demo *arguments:
    cargo run -- demo {{ arguments }}

# How many handoffs a second, and how fast; arguments are flags of `baton bench handoff`.
bench *arguments:
    cargo run --release --features full -- bench handoff {{ arguments }}

# Talks to a freshly built broker in other languages.
interop: build
    BATON_BIN="${CARGO_TARGET_DIR:-target}/release/baton" tests/interop/run.sh
