"""The chart, the compose files and the unit in deploy/ are valid, and what they give to a broker starts one.

    check.py --helm HELM --compose-schema SCHEMA target/debug/baton

`helm lint` and `helm template` with several values; each object by the schemas of Kubernetes; the compose files by their schema;
`baton serve --check` with the configuration and the environment of both, and a broker that is asked by the health check of the
compose file. The three brokers of the other compose file act as one. Values that the chart cannot use are refused. The unit is verified where systemd-analyze is there.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from ports import held_port  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "baton"
# Helm's own default is the version of a library, which a build from its module does not know.
KUBERNETES = ".".join(kubernetes_validate.latest_version().split(".")[:2]) + ".0"
WITHIN_SECONDS = 60
# The limit of the unit's exposure, of 100: systemd calls it "OK".
EXPOSURE = 20
# A public key in the form of a JSON Web Key Set, of RFC 8037.
KEYS = {"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}

LEAST = {"tls": {"secretName": "broker-tls"}}
ALL = {
    "image": {"repository": "registry.example/baton", "tag": "1", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "tls": {"secretName": "broker-tls", "clientCaSecretName": "agents-ca"},
    "operators": {"secretName": "signers", "audience": 'an "audience"', "issuer": "https://id.example"},
    "policy": {"configMapName": "rules"},
    "config": {
        "handoff": {"accept_timeout": "45s", "handoffs_max": 8},
        "limits": {"stored_bytes_max": 10737418240, "mailbox_max": 1000000},
        "traces": {"sampling_ratio": 0.01},
        "context": {"require_registered_schemas": True},
        "allow_unsigned": False,
    },
    "extraEnv": [{"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "bucket", "key": "secret"}}}],
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "persistence": {"size": "1Ti", "storageClass": "fast", "annotations": {"a": "b"}},
    "podDisruptionBudget": {"maxUnavailable": 1},
    "podAnnotations": {"a": "b"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
}
FEW = {**LEAST, "metrics": {"enabled": False}, "podDisruptionBudget": {"enabled": False}}
# Values that are refused, each with a word of the reason.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "secretName"),
    ({**LEAST, "replicas": 2}, "replicas"),
    ({**LEAST, "operators": {"secretName": "signers"}}, "audience"),
    ({**LEAST, "config": {"tls": {"key": "x"}}}, "tls"),
    ({**LEAST, "config": {"handoff": {"Accept": "x"}}}, "Accept"),
    ({**LEAST, "podDisruptionBudget": {"maxUnavailable": 2}}, "maxUnavailable"),
    ({**LEAST, "persistence": {"size": "much"}}, "size"),
]


class CheckFailedError(Exception):
    """A file does not do what it must."""


def expect(is_so: bool, text: str) -> None:
    """Raises CheckFailedError with this text unless it is so."""
    if not is_so:
        raise CheckFailedError(text)


def outcome(*command: str | Path, **options: Any) -> tuple[int, str, str]:
    """The exit code of a command, and what it prints."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=WITHIN_SECONDS, stdin=subprocess.DEVNULL, **options
    )
    return done.returncode, done.stdout, done.stderr


def run(*command: str | Path, **options: Any) -> str:
    """What a command prints. Raises CheckFailedError if it fails."""
    code, printed, errors = outcome(*command, **options)
    expect(code == 0, f"{' '.join(map(str, command))}: exit code {code}\n{printed}{errors}")
    return printed


def clean_environment(more: dict[str, str]) -> dict[str, str]:
    """The environment without variables of baton, and with these."""
    return {name: value for name, value in os.environ.items() if not name.startswith("BATON_")} | more


class Files:
    """What a broker of the chart finds under /etc/baton, in a folder of this machine."""

    def __init__(self, baton: Path, folder: Path) -> None:
        self.baton = baton
        self.folder = folder
        made = folder / "made"
        run(baton, "serve", "--make-certificate", "baton.example.svc", "--data", made, env=clean_environment({}))
        self.tls = {"crt": made / "tls" / "server.pem", "key": made / "tls" / "server.key"}
        for name in ("tls", "clients", "operators", "policy"):
            (folder / "etc" / name).mkdir(parents=True)
        for name, path in self.tls.items():
            shutil.copy(path, folder / "etc" / "tls" / f"tls.{name}")
        shutil.copy(made / "tls" / "ca.pem", folder / "etc" / "clients" / "ca.crt")
        (folder / "etc" / "operators" / "keys.pem").write_text(json.dumps(KEYS), "utf-8")
        (folder / "etc" / "policy" / "rules.cedar").write_text('@id("none") forbid (principal, action, resource);\n', "utf-8")

    def check(self, text: str, environment: dict[str, str]) -> dict[str, Any]:
        """What `baton serve --check` makes of a configuration."""
        path = self.folder / "baton.toml"
        path.write_text(text.replace("/etc/baton/", f"{self.folder}/etc/"), "utf-8")
        printed = run(self.baton, "serve", "--config", path, "--check", env=clean_environment(environment))
        return tomllib.loads(printed)


def objects_of(helm: Path, values: Path) -> list[dict[str, Any]]:
    """The objects of the chart with these values."""
    text = run(
        helm, "template", "one", CHART, "--namespace", "agents", "--values", values, "--kube-version", KUBERNETES
    )
    return [document for document in yaml.safe_load_all(text) if document]


def check_chart(helm: Path, files: Files) -> None:
    """The chart is valid with each of the values, and a broker takes its configuration."""
    values = files.folder / "values.yaml"
    for chosen in (LEAST, FEW, ALL):
        values.write_text(json.dumps(chosen), "utf-8")
        run(helm, "lint", "--strict", CHART, "--values", values, "--kube-version", KUBERNETES)
        objects = objects_of(helm, values)
        for document in objects:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        kinds = sorted(document["kind"] for document in objects)
        expected = ["ConfigMap", "Service", "StatefulSet"]
        if chosen is not FEW:
            expected += ["PodDisruptionBudget", "Service"]
        expect(kinds == sorted(expected), f"the objects are {kinds}")
        names = {(document["kind"], document["metadata"]["name"]) for document in objects}
        expect(len(names) == len(objects), f"two objects have the same name: {names}")
        check_pod(objects, chosen, files)
    for chosen, reason in REFUSED:
        values.write_text(json.dumps(chosen), "utf-8")
        code, _, errors = outcome(helm, "template", "one", CHART, "--values", values, "--kube-version", KUBERNETES)
        expect(code != 0 and reason in errors, f"{chosen} is not refused for {reason}: exit code {code}\n{errors}")
    version = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    expect(chart["version"] == chart["appVersion"] == version, f"the chart is not of version {version}")
    print(f"chart: {KUBERNETES}, {len(REFUSED)} values refused")


def check_pod(objects: list[dict[str, Any]], chosen: dict[str, Any], files: Files) -> None:
    """The pod is one, runs as the user of the image, and its broker takes the configuration."""
    (stateful,) = (document for document in objects if document["kind"] == "StatefulSet")
    (config,) = (document for document in objects if document["kind"] == "ConfigMap")
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    expect(stateful["spec"]["replicas"] == 1, "a broker has no replicas")
    user = pod["securityContext"]["runAsUser"]
    for image in ("Containerfile", "Containerfile.ready"):
        expect(f"--uid {user} " in (DEPLOY / image).read_text("utf-8"), f"{image} has another user than {user}")
    named = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    wanted = {chosen["tls"]["secretName"], chosen["tls"].get("clientCaSecretName"), chosen.get("operators", {}).get("secretName")}
    expect(named == {name for name in wanted if name}, f"the pod has the secrets {named}")
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    given = {volume["name"] for volume in pod["volumes"]} | {
        claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]
    }
    expect(mounted == given, f"{mounted} are mounted, and {given} are there")
    ports = {port["name"] for port in container["ports"]}
    for service in (document for document in objects if document["kind"] == "Service"):
        labels = stateful["spec"]["template"]["metadata"]["labels"]
        expect(service["spec"]["selector"].items() <= labels.items(), "a service selects another pod")
        targets = {port["targetPort"] for port in service["spec"]["ports"]}
        expect(targets <= ports, f"a service has {targets}, and the pod {ports}")
    environment = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    seen = files.check(config["data"]["baton.toml"], environment)
    for section, keys in chosen.get("config", {}).items():
        for key, value in keys.items() if isinstance(keys, dict) else [(section, keys)]:
            found = seen[section][key] if isinstance(keys, dict) else seen[section]
            expect(found == value, f"{section}.{key} is {found} and not {value}")
    if "audience" in chosen.get("operators", {}):
        expect(seen["operators"]["audience"] == chosen["operators"]["audience"], "the audience is another")


def compose_file(name: str, schema: Path) -> dict[str, Any]:
    """A compose file that is valid by the schema, with the defaults of its variables."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (DEPLOY / name).read_text("utf-8"))
    compose = yaml.safe_load(text)
    jsonschema.validate(compose, json.loads(schema.read_text("utf-8")))
    return compose


def check_compose(schema: Path, files: Files) -> None:
    """The compose file is valid, and a broker with its configuration and environment passes its health check."""
    compose = compose_file("compose.yml", schema)
    service = compose["services"]["baton"]
    (source,) = (volume.split(":")[0] for volume in service["volumes"] if volume.endswith(":ro"))
    sample = (DEPLOY / source).read_text("utf-8")
    data = files.folder / "composed"
    changes = {
        "BATON__LISTEN": "127.0.0.1:0",
        "BATON__DATA": str(data),
        "BATON__METRICS__LISTEN": "127.0.0.1:0",
        "BATON__TLS__CERTIFICATE": str(files.tls["crt"]),
        "BATON__TLS__KEY": str(files.tls["key"]),
    }
    path = files.folder / "composed.toml"
    path.write_text(sample, "utf-8")
    command = [files.baton if part == "/usr/local/bin/baton" else part for part in service["healthcheck"]["test"][1:]]
    command = [data if part == "/var/lib/baton" else part for part in command]
    expect(data in command, "the health check asks another folder than the one of the volume")
    for image in ("Containerfile", "Containerfile.ready"):
        (checked,) = re.findall(r"HEALTHCHECK .*\\\n +CMD (\[.*\])", (DEPLOY / image).read_text("utf-8"))
        expect(["CMD", *json.loads(checked)] == service["healthcheck"]["test"], f"{image} has another health check")
    environment = clean_environment({**service["environment"], **changes})
    expect(outcome(*command, env=environment)[:2] == (9, "unreachable\n"), "a broker that is not there is healthy")
    with subprocess.Popen(
        [files.baton, "serve", "--config", path], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            end = time.monotonic() + WITHIN_SECONDS
            while outcome(*command, env=environment)[:2] != (0, "ready\n"):
                expect(process.poll() is None, f"the broker ends: {process.stdout.read() if process.poll() is not None else ''}")
                expect(time.monotonic() < end, "the broker is not healthy in time")
                time.sleep(0.05)
        finally:
            process.terminate()
    expect(process.returncode == 0, f"the broker ends with exit code {process.returncode}")
    print("compose: healthy")


def check_compose_of_a_cluster(schema: Path, files: Files) -> None:
    """The compose file of a cluster is valid, and its brokers act as one over a log in a folder: each passes its health check."""
    compose = compose_file("compose.cluster.yml", schema)
    services = compose["services"]
    brokers = {name: service for name, service in services.items() if service.get("command", [""])[0] == "serve"}
    expect(list(brokers) == ["b1", "b2", "b3"], f"the brokers are {list(brokers)}")
    folder = files.folder / "cluster"
    shared = folder / "shared"
    # What the service `setup` makes in the volume of its own, at the places where the brokers look for it.
    (volume, place) = services["setup"]["volumes"][0].split(":")
    run(files.baton, "cluster", "keys", "--out", shared / "cluster", env=clean_environment({}))
    run(files.baton, "serve", "--make-certificate", "broker.example.com", "--data", shared, env=clean_environment({}))
    head = (DEPLOY / "compose.cluster.yml").read_text("utf-8")
    expect(f"setup cluster keys --out {place}/cluster\n" in head, "the file does not say how to make the keys")
    expect(f"--make-certificate broker.example.com --data {place}\n" in head, "the file does not say how to make a certificate")
    processes: dict[str, tuple[subprocess.Popen[str], list[str], dict[str, str]]] = {}
    ports = set()
    for name, service in brokers.items():
        environment = service["environment"]
        (state, at) = service["volumes"][0].split(":")
        expect((state, at) == (name, "/var/lib/baton"), f"{name} keeps its state in {state} at {at}")
        expect(f"{volume}:/etc/baton/shared:ro" in service["volumes"], f"{name} has no keys")
        expect({state, volume} <= set(compose["volumes"]), f"{name} has volumes that are not there")
        expect(environment["BATON__CLUSTER__BROKER"] == name, f"{name} has another name")
        expect(environment["BATON__CLUSTER__PEER_ADDRESS"] == f"{name}:22867", f"{name} has another address")
        ports |= {port.split(":")[0] for port in service["ports"]}
        path = folder / f"{name}.toml"
        shutil.copy(DEPLOY / "baton.toml", path)
        inside = {key: str(value).replace("/etc/baton/shared", str(shared)) for key, value in environment.items()}
        # As it is, but for the places of files: the address of the database is taken.
        seen = tomllib.loads(run(files.baton, "serve", "--config", path, "--check", env=clean_environment(inside)))
        expect(seen["cluster"]["log"] == "postgres://baton@db/baton?sslmode=disable", f"the log is {seen['cluster']['log']}")
        peer = f"127.0.0.1:{held_port()}"
        changes = {
            "BATON__LISTEN": "127.0.0.1:0",
            "BATON__DATA": str(folder / name),
            "BATON__METRICS__LISTEN": "127.0.0.1:0",
            "BATON__CLUSTER__LOG": f"file://{folder}/log",
            "BATON__CLUSTER__PEER_LISTEN": peer,
            "BATON__CLUSTER__PEER_ADDRESS": peer,
        }
        command = [files.baton if part == "/usr/local/bin/baton" else part for part in service["healthcheck"]["test"][1:]]
        command = [str(folder / name) if part == at else str(part) for part in command]
        started = clean_environment(inside | changes)
        process = subprocess.Popen(
            [files.baton, "serve", "--config", path], env=started, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
        )
        processes[name] = (process, command, started)
    expect(len(ports) == len(brokers), f"two brokers have the same published port: {ports}")
    try:
        end = time.monotonic() + WITHIN_SECONDS
        for name, (process, command, environment) in processes.items():
            while outcome(*command, env=environment)[:2] != (0, "ready\n"):
                expect(process.poll() is None, f"{name} ends with exit code {process.returncode}")
                expect(time.monotonic() < end, f"{name} is not healthy in time")
                time.sleep(0.05)
        environment = processes["b1"][2]
        status = json.loads(
            run(files.baton, "cluster", "status", "--config", folder / "b1.toml", "--output", "json", env=environment)
        )
        roles = sorted(member["role"] for member in status["members"])
        expect(roles == ["following", "following", "leading"], f"the brokers are {roles}")
    finally:
        for process, _, _ in processes.values():
            process.terminate()
        codes = {name: process.wait(WITHIN_SECONDS) for name, (process, _, _) in processes.items()}
    expect(set(codes.values()) == {0}, f"the brokers end with exit codes {codes}")
    print("compose of a cluster: healthy, one of three leads")


def check_unit(baton: Path, folder: Path) -> None:
    """systemd knows every key of the unit, and exposes it to little."""
    if not shutil.which("systemd-analyze"):
        print("unit: skipped, there is no systemd-analyze")
        return
    unit = folder / "baton.service"
    text = (DEPLOY / "baton.service").read_text("utf-8")
    # The user need not exist here, and the program is elsewhere.
    text = re.sub(r"^(User|Group)=baton$", "", text, flags=re.MULTILINE).replace("/usr/local/bin/baton", str(baton))
    unit.write_text(text, "utf-8")
    code, printed, errors = outcome("systemd-analyze", "verify", "--man=no", unit)
    complaints = [line for line in (printed + errors).splitlines() if "baton.service" in line]
    expect(code == 0 and not complaints, f"systemd-analyze verify: {code}\n{printed}{errors}")
    shutil.copy(DEPLOY / "baton.service", unit)
    run("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", unit)
    print("unit: verified")


def main() -> None:
    """Checks all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--helm", type=Path, required=True)
    parser.add_argument("--compose-schema", type=Path, required=True)
    parser.add_argument("baton", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        baton = arguments.baton.resolve()
        files = Files(baton, Path(folder))
        check_chart(arguments.helm, files)
        check_compose(arguments.compose_schema, files)
        check_compose_of_a_cluster(arguments.compose_schema, files)
        check_unit(baton, Path(folder))


if __name__ == "__main__":
    try:
        main()
    except CheckFailedError as error:
        sys.exit(f"FAILED: {error}")
