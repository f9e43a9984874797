"""Asks a real Prometheus every query of the alerts and of the board.

usage: check.py BATON PROMETHEUS_BIN_FOLDER

Starts a development broker and a Prometheus that scrapes it, runs the demo, and then asks each query. A query with an
error, or one of the board without a series, is a failure; so is a handoff without its trace as an exemplar. Also runs
`promtool` on the page, the rules and their tests.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from ports import held_port  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120

# Series that only a fault or a limit makes. The board shows nothing for them on a good day.
MAY_BE_EMPTY = {"baton_refusals_total", "baton_limit_refusals_total", "baton_dead_letters_total"}


def get(url: str, **query: str) -> str:
    address = url + ("?" + urllib.parse.urlencode(query) if query else "")
    with urllib.request.urlopen(address, timeout=30) as answer:
        return answer.read().decode()


def until(what: str, attempt):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            found = attempt()
        except OSError:
            found = None
        if found:
            return found
        time.sleep(0.2)
    raise SystemExit(f"never: {what}")


def board_queries() -> list[tuple[str, str]]:
    board = json.loads((ROOT / "deploy/grafana/baton.json").read_text())
    return [
        (panel["title"], target["expr"].replace("$__rate_interval", "1m"))
        for panel in board["panels"]
        for target in panel.get("targets", [])
    ]


def rule_queries(prometheus: str) -> list[tuple[str, str]]:
    groups = json.loads(get(f"{prometheus}/api/v1/rules"))["data"]["groups"]
    return [(rule["name"], rule["query"]) for group in groups for rule in group["rules"]]


def main() -> None:
    baton, tools = str(Path(sys.argv[1]).resolve()), Path(sys.argv[2]).resolve()
    promtool = str(tools / "promtool")
    rules = ROOT / "deploy/prometheus/rules.yml"
    subprocess.run([promtool, "check", "rules", str(rules)], check=True)
    subprocess.run([promtool, "test", "rules", str(ROOT / "deploy/prometheus/rules_test.yml")], check=True)
    with tempfile.TemporaryDirectory() as folder:
        running = []
        try:
            check(baton, tools, Path(folder), running)
        finally:
            for process in reversed(running):
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=60)


def check(baton: str, tools: Path, folder: Path, running: list) -> None:
    data, log = folder / "data", folder / "broker.log"
    command = [baton, "dev", "--port", "0", "--data", str(data), "--metrics-listen", "127.0.0.1:0"]
    # Exemplars name recorded traces. No collector listens there, which costs spans and nothing else.
    traced = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{held_port()}"}
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log.open("w"), text=True, cwd=folder, env=traced)
    running.append(broker)
    address = re.match(r"baton is ready on (\S+)", broker.stdout.readline()).group(1)
    shown = re.search(r"serving metrics.*?(127\.0\.0\.1:\d+)", log.read_text()).group(1)
    page = get(f"http://{shown}/metrics")
    checked = subprocess.run([str(tools / "promtool"), "check", "metrics"], input=page, text=True, capture_output=True)
    print(checked.stdout + checked.stderr, end="")
    if checked.returncode != 0:
        raise SystemExit("promtool refuses the page")

    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{ROOT / 'deploy/prometheus/rules.yml'}]\n"
        "scrape_configs:\n"
        f"  - {{job_name: baton, static_configs: [{{targets: ['{shown}']}}]}}\n"
    )
    port = held_port()
    prometheus = f"http://127.0.0.1:{port}"
    arguments = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"]
    arguments.append("--enable-feature=exemplar-storage")
    output = (folder / "prometheus.log").open("w")
    running.append(subprocess.Popen([str(tools / "prometheus"), *arguments], stdout=output, stderr=output, cwd=folder))
    until("Prometheus is ready", lambda: "Ready" in get(f"{prometheus}/-/ready"))

    def ask(query: str) -> list:
        answer = json.loads(get(f"{prometheus}/api/v1/query", query=query))
        assert answer["status"] == "success", answer
        return answer["data"]["result"]

    until("a first scrape", lambda: ask('up{job="baton"} == 1'))
    # Twice: a series that begins with the first demo has a rate only from the second one on.
    demo = [baton, "demo", "--server", address, "--ca", str(data / "tls/ca.pem")]
    subprocess.run(demo, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    until("a scrape after the demo", lambda: ask('baton_handoff_seconds_count{outcome="COMPLETED"} > 0'))
    subprocess.run(demo, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    until("a scrape after the second demo", lambda: ask('rate(baton_handoffs_total{outcome="COMPLETED"}[1m]) > 0'))
    shown = until("an exemplar", lambda: exemplars(prometheus))
    print(f"ok        {len(shown)} exemplars, for example trace {shown[0]}")
    failures = 0
    for title, query in board_queries():
        empty_allowed = any(name in query for name in MAY_BE_EMPTY)
        end = time.monotonic() + 30
        while not (series := ask(query)) and not empty_allowed and time.monotonic() < end:
            time.sleep(0.5)
        result = "ok" if series or empty_allowed else "NO SERIES"
        failures += result != "ok"
        print(f"{result:9} {len(series):3} series  {title}: {query}")
    for name, query in rule_queries(prometheus):
        ask(query)
        print(f"ok        alert {name}")
    if failures:
        raise SystemExit(f"{failures} queries of the board have no series")


def exemplars(prometheus: str) -> list[str]:
    """The traces of finished handoffs."""
    now = time.time()
    span = {"start": str(now - 600), "end": str(now + 60)}
    answer = json.loads(get(f"{prometheus}/api/v1/query_exemplars", query="baton_handoff_seconds_bucket", **span))
    assert answer["status"] == "success", answer
    found = [each["labels"]["trace_id"] for series in answer["data"] for each in series["exemplars"]]
    assert all(re.fullmatch("[0-9a-f]{32}", trace) for trace in found), found
    return found


if __name__ == "__main__":
    os.environ.pop("BATON_CONFIG", None)
    main()
