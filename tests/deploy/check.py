"""The chart, the compose files and the unit in deploy/ are valid, and what they give to a broker starts one.

    check.py --helm HELM --compose-schema SCHEMA [--versitygw VERSITYGW] target/debug/baton

`helm lint` and `helm template` with several values; each object by the schemas of Kubernetes; the compose files by their schema;
`baton serve --check` with the configuration and the environment of both, and a broker that is asked by the health check of the
compose file. Three brokers with what the chart of a cluster gives them act as one, and answer its probes; so do those of the other
compose file. With a versitygw, brokers of both act as one over a bucket, too. Values that the chart cannot use are refused. The unit is
verified where systemd-analyze is there.
"""

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

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
OF_CLUSTER = {"enabled": True, "keysSecretName": "brokers", "log": {"secretName": "database"}}
CLUSTER = {**LEAST, "cluster": OF_CLUSTER}
CLUSTER_ALL = {
    **ALL,
    "cluster": {
        **OF_CLUSTER,
        "replicas": 5,
        "name": "agents.1",
        "log": {"secretName": "database", "caSecretName": "database-ca"},
        "lease": "2s",
        "logKeep": "12h",
        "logBytesMax": 107374182400,
        "zones": "DoNotSchedule",
    },
}
OF_BUCKET = {
    **OF_CLUSTER,
    "log": {
        "secretName": "bucket",
        "credentialsSecretName": "bucket-keys",
        "endpoint": "https://s3.example.org",
        "region": "eu-central-1",
    },
}
BUCKET = {**LEAST, "cluster": OF_BUCKET, "serviceAccountName": "agents"}
# The chosen values of a cluster, each with its key in the configuration.
KEYS_OF_CLUSTER = {"name": "name", "lease": "lease", "logKeep": "log_keep", "logBytesMax": "log_bytes_max"}
# The chosen values of its log, each with its key in the configuration.
KEYS_OF_LOG = {"endpoint": "log_endpoint", "region": "log_region"}
# What the secrets with the address of the log have.
ADDRESSES = {
    "database": "postgres://baton:secret@db.internal/baton?sslmode=verify-full",
    "bucket": "s3://agents/baton",
}
# What a secret with the credentials of a bucket has.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "broker", "AWS_SECRET_ACCESS_KEY": "a-secret-of-this-check"}
# Values that are refused, each with a word of the reason.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "secretName"),
    ({**LEAST, "replicas": 2}, "replicas"),
    ({**LEAST, "operators": {"secretName": "signers"}}, "audience"),
    ({**LEAST, "config": {"tls": {"key": "x"}}}, "tls"),
    ({**LEAST, "config": {"handoff": {"Accept": "x"}}}, "Accept"),
    ({**LEAST, "podDisruptionBudget": {"maxUnavailable": 2}}, "maxUnavailable"),
    ({**LEAST, "persistence": {"size": "much"}}, "size"),
    ({**LEAST, "config": {"cluster": {"lease": "2s"}}}, "cluster"),
    ({**LEAST, "cluster": {**OF_CLUSTER, "keysSecretName": ""}}, "baton cluster keys --out keys"),
    ({**LEAST, "cluster": {**OF_CLUSTER, "log": {}}}, "cluster.log.secretName is missing"),
    ({**CLUSTER, "metrics": {"enabled": False}}, "the probes of a cluster"),
    ({**LEAST, "cluster": {**OF_CLUSTER, "replicas": 1}}, "replicas"),
    ({**LEAST, "cluster": {**OF_CLUSTER, "zones": "Never"}}, "zones"),
    ({**LEAST, "cluster": {**OF_CLUSTER, "name": "a/b"}}, "name"),
    ({**LEAST, "cluster": {**OF_CLUSTER, "log": {**OF_BUCKET["log"], "endpoint": "s3.example.org"}}}, "endpoint"),
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
        run(baton, "cluster", "keys", "--out", folder / "etc" / "cluster", env=clean_environment({}))
        for name, path in self.tls.items():
            shutil.copy(path, folder / "etc" / "tls" / f"tls.{name}")
        shutil.copy(made / "tls" / "ca.pem", folder / "etc" / "clients" / "ca.crt")
        (folder / "etc" / "operators" / "keys.pem").write_text(json.dumps(KEYS), "utf-8")
        (folder / "etc" / "policy" / "rules.cedar").write_text('@id("none") forbid (principal, action, resource);\n', "utf-8")

    def write(self, text: str, name: str = "baton.toml") -> Path:
        """A configuration whose files are in this folder."""
        path = self.folder / name
        path.write_text(text.replace("/etc/baton/", f"{self.folder}/etc/"), "utf-8")
        return path

    def check(self, text: str, environment: dict[str, str]) -> dict[str, Any]:
        """What `baton serve --check` makes of a configuration."""
        path = self.write(text)
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
    for chosen in (LEAST, FEW, ALL, CLUSTER, CLUSTER_ALL, BUCKET):
        values.write_text(json.dumps(chosen), "utf-8")
        run(helm, "lint", "--strict", CHART, "--values", values, "--kube-version", KUBERNETES)
        objects = objects_of(helm, values)
        for document in objects:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        kinds = sorted(document["kind"] for document in objects)
        expected = ["ConfigMap", "Service", "StatefulSet"]
        if chosen is not FEW:
            expected += ["PodDisruptionBudget", "Service"]
        if "cluster" in chosen:
            expected += ["Service"]
        expect(kinds == sorted(expected), f"the objects are {kinds}")
        names = {(document["kind"], document["metadata"]["name"]) for document in objects}
        expect(len(names) == len(objects), f"two objects have the same name: {names}")
        check_pod(objects, chosen, files)
        if "cluster" in chosen:
            check_objects_of_a_cluster(objects, chosen["cluster"])
        check_notes(helm, values, files, chosen)
    for chosen, reason in REFUSED:
        values.write_text(json.dumps(chosen), "utf-8")
        code, _, errors = outcome(helm, "template", "one", CHART, "--values", values, "--kube-version", KUBERNETES)
        expect(code != 0 and reason in errors, f"{chosen} is not refused for {reason}: exit code {code}\n{errors}")
    version = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    expect(chart["version"] == chart["appVersion"] == version, f"the chart is not of version {version}")
    print(f"chart: {KUBERNETES}, {len(REFUSED)} values refused")


def environment_of(container: dict[str, Any], pod: str) -> dict[str, str]:
    """The environment of a container, as Kubernetes makes it for the pod of this name."""
    environment: dict[str, str] = {}
    for entry in container["env"]:
        source = entry.get("valueFrom", {})
        if source.get("fieldRef") == {"fieldPath": "metadata.name"}:
            value = pod
        elif source.get("secretKeyRef", {}).get("key") == "url":
            value = ADDRESSES[source["secretKeyRef"]["name"]]
        elif "value" in entry:
            value = re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], entry["value"])
        else:
            continue
        environment[entry["name"]] = value
    if "envFrom" in container:
        expect(container["envFrom"] == [{"secretRef": {"name": "bucket-keys"}}], f"the environment is from {container['envFrom']}")
        environment |= CREDENTIALS
    return environment


def check_objects_of_a_cluster(objects: list[dict[str, Any]], chosen: dict[str, Any]) -> None:
    """The pods find each other, are spread, and are evicted one at a time."""
    of_kind: dict[str, dict[str, Any]] = {}
    for document in objects:
        of_kind[f"{document['kind']} {document['metadata']['name']}"] = document.get("spec", {})
    stateful = of_kind["StatefulSet one-baton"]
    expect(stateful["serviceName"] == "one-baton-peers", "the names of the pods are those of another service")
    for name in ("one-baton-peers", "one-baton-metrics"):
        service = of_kind[f"Service {name}"]
        expect(service["clusterIP"] == "None" and service["publishNotReadyAddresses"], f"{name} does not lead to each pod")
    clients = of_kind["Service one-baton"]
    expect("publishNotReadyAddresses" not in clients, "agents reach a broker that is not ready")
    expect([port["port"] for port in clients["ports"]] == [22866], "agents reach another port than theirs")
    expect(of_kind["PodDisruptionBudget one-baton"]["maxUnavailable"] == 1, "two pods may be evicted at a time")
    labels = stateful["template"]["metadata"]["labels"].items()
    spread = {}
    for rule in stateful["template"]["spec"]["topologySpreadConstraints"]:
        selected = rule["labelSelector"]["matchLabels"].items()
        expect(rule["maxSkew"] == 1 and selected <= labels, f"the pods are not spread: {rule}")
        spread[rule["topologyKey"]] = rule["whenUnsatisfiable"]
    zones = chosen.get("zones", "ScheduleAnyway")
    expected = {"kubernetes.io/hostname": "DoNotSchedule", "topology.kubernetes.io/zone": zones}
    expect(spread == expected, f"the pods are spread by {spread}")
    (container,) = stateful["template"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        expect(container[probe]["httpGet"]["port"] == "metrics", f"the {probe} asks a port that a follower passes on")


def check_notes(helm: Path, values: Path, files: Files, chosen: dict[str, Any]) -> None:
    """The notes of an installation name the pod, and files that it has."""
    chart = files.folder / "noted"
    shutil.copytree(CHART, chart, dirs_exist_ok=True)
    # Without Kubernetes helm prints objects alone: so the notes are the text of one.
    shutil.copy(chart / "templates" / "NOTES.txt", chart)
    (chart / "templates" / "noted.yaml").write_text('noted: {{ tpl (.Files.Get "NOTES.txt") . | quote }}\n', "utf-8")
    only = ("--show-only", "templates/noted.yaml", "--kube-version", KUBERNETES)
    printed = run(helm, "template", "one", chart, "--namespace", "agents", "--values", values, *only)
    notes = yaml.safe_load(printed)["noted"]
    token = "/etc/baton/cluster" if "cluster" in chosen else "/var/lib/baton/data"
    for part in ("one-baton.agents.svc:22866", f"exec one-baton-0 -- cat {token}/operator.token"):
        expect(part in notes, f"the notes lack {part!r}:\n{notes}")
    expect(("baton cluster status" in notes) == ("cluster" in chosen), f"the notes are of another case:\n{notes}")


def check_pod(objects: list[dict[str, Any]], chosen: dict[str, Any], files: Files) -> None:
    """The pods are as many as chosen, run as the user of the image, and their brokers take the configuration."""
    (stateful,) = (document for document in objects if document["kind"] == "StatefulSet")
    (config,) = (document for document in objects if document["kind"] == "ConfigMap")
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    of_cluster = chosen.get("cluster", {})
    replicas = of_cluster.get("replicas", 3) if of_cluster else 1
    expect(stateful["spec"]["replicas"] == replicas, f"there are not {replicas} pods")
    expect(pod.get("serviceAccountName") == chosen.get("serviceAccountName"), "the pods have another service account")
    user = pod["securityContext"]["runAsUser"]
    for image in ("Containerfile", "Containerfile.ready"):
        expect(f"--uid {user} " in (DEPLOY / image).read_text("utf-8"), f"{image} has another user than {user}")
    named = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    wanted = {chosen["tls"]["secretName"], chosen["tls"].get("clientCaSecretName"), chosen.get("operators", {}).get("secretName")}
    wanted |= {of_cluster.get("keysSecretName"), of_cluster.get("log", {}).get("caSecretName")}
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
    seen = files.check(config["data"]["baton.toml"], environment_of(container, "one-baton-2"))
    expect(("cluster" in seen) == bool(of_cluster), "a broker alone is no member of a cluster")
    if of_cluster:
        cluster = seen["cluster"]
        expect(cluster["broker"] == "one-baton-2", f"the broker is {cluster['broker']}")
        expect(cluster["peer_address"] == "one-baton-2.one-baton-peers.agents.svc:22867", f"it is at {cluster['peer_address']}")
        address = ADDRESSES[of_cluster["log"]["secretName"]]
        expect(cluster["log"] == address.replace(":secret", ""), f"the log is {cluster['log']}")
        expect(("envFrom" in container) == ("credentialsSecretName" in of_cluster["log"]), "the credentials are of another case")
        for value, key in KEYS_OF_LOG.items():
            expect(cluster.get(key) == of_cluster["log"].get(value), f"{key} is {cluster.get(key)}")
        for value, key in KEYS_OF_CLUSTER.items():
            expect(value not in of_cluster or cluster[key] == of_cluster[value], f"{key} is {cluster[key]}")
    for section, keys in chosen.get("config", {}).items():
        for key, value in keys.items() if isinstance(keys, dict) else [(section, keys)]:
            found = seen[section][key] if isinstance(keys, dict) else seen[section]
            expect(found == value, f"{section}.{key} is {found} and not {value}")
    if "audience" in chosen.get("operators", {}):
        expect(seen["operators"]["audience"] == chosen["operators"]["audience"], "the audience is another")


def compose_file(name: str, schema: Path, variables: dict[str, str] | None = None) -> dict[str, Any]:
    """A compose file that is valid by the schema, with these variables, and the defaults of the others."""
    given = variables or {}

    def value(found: re.Match[str]) -> str:
        (variable, default) = found.groups()
        expect(variable in given or default is not None, f"{name} needs {variable}")
        return given.get(variable, default or "")

    text = re.sub(r"\$\{(\w+):(?:-([^}]*)|\?[^}]*)\}", value, (DEPLOY / name).read_text("utf-8"))
    compose = yaml.safe_load(text)
    jsonschema.validate(compose, json.loads(schema.read_text("utf-8")))
    return compose


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two compose files, as Compose merges those of COMPOSE_FILE. Without lists in both."""
    both = {key: merged(below[key], above[key]) for key in below.keys() & above.keys() if isinstance(below[key], dict)}
    return below | above | both


def until(what: str, is_so: Callable[[], bool]) -> None:
    """Waits until it is so. Raises CheckFailedError if it is not in time."""
    end = time.monotonic() + WITHIN_SECONDS
    while not is_so():
        expect(time.monotonic() < end, f"not in time: {what}")
        time.sleep(0.05)


class Brokers:
    """Brokers of this machine with the environment of a cluster elsewhere, over a log and at addresses of this machine."""

    def __init__(self, baton: Path, folder: Path, log: dict[str, str] | None = None) -> None:
        self.baton = baton
        self.folder = folder
        # The variables that name it. None: a folder.
        self.log = log or {"BATON__CLUSTER__LOG": f"file://{folder}/log"}
        self.configurations: dict[str, tuple[Path, dict[str, str]]] = {}
        self.metrics: dict[str, str] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, name: str, configuration: Path, environment: dict[str, str]) -> None:
        """A broker that is not started yet."""
        peer, self.metrics[name] = (f"127.0.0.1:{held_port()}" for _ in range(2))
        changes = {
            "BATON__LISTEN": "127.0.0.1:0",
            "BATON__DATA": str(self.folder / name),
            "BATON__METRICS__LISTEN": self.metrics[name],
            **self.log,
            "BATON__CLUSTER__PEER_LISTEN": peer,
            "BATON__CLUSTER__PEER_ADDRESS": peer,
        }
        self.configurations[name] = (configuration, clean_environment(environment | changes))

    def start(self, name: str) -> None:
        """Starts a broker, also one that has ended."""
        configuration, environment = self.configurations[name]
        command = [self.baton, "serve", "--config", configuration]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log)

    def end(self, name: str) -> None:
        """Ends a broker in order."""
        process = self.processes.pop(name)
        process.terminate()
        code = process.wait(WITHIN_SECONDS)
        expect(code == 0, f"{name} ends with exit code {code}")

    def __enter__(self) -> Self:
        for name in self.configurations:
            self.start(name)
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        for process in self.processes.values():
            process.terminate()
        codes = {name: process.wait(WITHIN_SECONDS) for name, process in self.processes.items()}
        if kind is None:
            expect(set(codes.values()) == {0}, f"the brokers end with exit codes {codes}")

    def roles(self) -> dict[str, str]:
        """The role of each broker that runs, as the first one of them tells it. Empty while none leads."""
        self.expect_alive()
        configuration, environment = self.configurations[next(iter(self.processes))]
        command = [self.baton, "cluster", "status", "--config", configuration, "--output", "json"]
        code, printed, _ = outcome(*command, env=environment)
        members = json.loads(printed)["members"] if code == 0 else []
        return {member["broker"]: member["role"] for member in members if member["broker"] in self.processes}

    def one_leads(self) -> str:
        """The name of the broker that leads, once all others that run follow."""
        expected = ["following"] * (len(self.processes) - 1) + ["leading"]
        roles: dict[str, str] = {}

        def is_so() -> bool:
            roles.clear()
            roles.update(self.roles())
            return sorted(roles.values()) == expected

        until(f"one of {list(self.processes)} leads", is_so)
        return next(name for name, role in roles.items() if role == "leading")

    def expect_alive(self) -> None:
        """Raises CheckFailedError if a broker has ended by itself."""
        for name, process in self.processes.items():
            code = process.poll()
            log = (self.folder / f"{name}.log").read_text("utf-8")[-2000:] if code is not None else ""
            expect(code is None, f"{name} ends with exit code {code}:\n{log}")

    def answer(self, name: str, path: str) -> tuple[int, str]:
        """What a broker answers on the port of its metrics; 0 while it does not."""
        self.expect_alive()
        try:
            with urllib.request.urlopen(f"http://{self.metrics[name]}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode().strip()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode().strip()
        except OSError:
            return 0, ""


class Bucket:
    """A bucket of a server that is compatible with S3."""

    def __init__(self, versitygw: Path, folder: Path) -> None:
        self.versitygw = versitygw
        self.folder = folder
        self.server = f"127.0.0.1:{held_port()}"

    def variables(self) -> dict[str, str]:
        """What names the bucket, for brokers with the credentials of the check."""
        return {
            "BATON__CLUSTER__LOG": "s3://agents/baton",
            "BATON__CLUSTER__LOG_ENDPOINT": f"http://{self.server}",
            "BATON__CLUSTER__LOG_REGION": "us-east-1",
            "BATON__CLUSTER__LOG_ALLOW_HTTP": "true",
        }

    def __enter__(self) -> Self:
        (self.folder / "agents").mkdir(parents=True)
        access, secret = CREDENTIALS.values()
        command = [self.versitygw, "--access", access, "--secret", secret, "--port", self.server, "posix", self.folder]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        host, port = self.server.split(":")

        def serves() -> bool:
            expect(self.process.poll() is None, "versitygw has ended")
            try:
                socket.create_connection((host, int(port)), timeout=10).close()
            except OSError:
                return False
            return True

        until("versitygw serves", serves)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(WITHIN_SECONDS)


def check_chart_of_a_cluster(helm: Path, files: Files, bucket: Bucket | None) -> None:
    """Three brokers with the configuration and the environment of the pods act as one, and answer the probes of the pods."""
    name = "pods" if bucket is None else "pods-of-bucket"
    values = files.folder / "values.yaml"
    values.write_text(json.dumps(CLUSTER if bucket is None else BUCKET), "utf-8")
    objects = objects_of(helm, values)
    (stateful,) = (document for document in objects if document["kind"] == "StatefulSet")
    (config,) = (document for document in objects if document["kind"] == "ConfigMap")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    startup, alive, ready = (container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe"))
    folder = files.folder / name
    folder.mkdir()
    path = files.write(config["data"]["baton.toml"], f"{name}.toml")
    cluster = Brokers(files.baton, folder, bucket and bucket.variables())
    for place in range(stateful["spec"]["replicas"]):
        pod = f"{stateful['metadata']['name']}-{place}"
        cluster.add(pod, path, environment_of(container, pod))
    with cluster:
        for pod in cluster.configurations:
            for probe in (startup, alive, ready):
                until(f"{pod} answers {probe}", lambda pod=pod, probe=probe: cluster.answer(pod, probe)[0] == 200)
        first = cluster.one_leads()
        said = {pod: cluster.answer(pod, ready)[1] for pod in cluster.configurations}
        expect(sorted(said.values()) == ["following", "following", "ready"], f"the pods say {said}")
        # As an update does with each pod: another broker leads, and the pod comes back with its volume.
        cluster.end(first)
        second = cluster.one_leads()
        cluster.start(first)
        until(f"{first} is ready again", lambda: cluster.answer(first, ready) == (200, "following"))
        expect(cluster.one_leads() == second, "a broker that comes back leads again")
    over = "a folder" if bucket is None else "a bucket"
    print(f"chart of a cluster over {over}: ready, one of {len(cluster.configurations)} leads; another one after its end")


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


def check_compose_of_a_cluster(schema: Path, files: Files, bucket: Bucket | None) -> None:
    """The compose files of a cluster are valid, and its brokers act as one, over a folder or a bucket: each passes its health check."""
    compose = compose_file("compose.cluster.yml", schema)
    expected = "postgres://baton@db/baton?sslmode=disable"
    if bucket is not None:
        expected = bucket.variables()["BATON__CLUSTER__LOG"]
        compose = merged(compose, compose_file("compose.bucket.yml", schema, {"BATON_BUCKET": expected}))
        expect(compose["services"]["db"]["profiles"] == ["database"], "the database starts, too")
    services = compose["services"]
    brokers = {name: service for name, service in services.items() if service.get("command", [""])[0] == "serve"}
    expect(list(brokers) == ["b1", "b2", "b3"], f"the brokers are {list(brokers)}")
    folder = files.folder / ("cluster" if bucket is None else "cluster-of-bucket")
    shared = folder / "shared"
    # What the service `setup` makes in the volume of its own, at the places where the brokers look for it.
    (volume, place) = services["setup"]["volumes"][0].split(":")
    run(files.baton, "cluster", "keys", "--out", shared / "cluster", env=clean_environment({}))
    run(files.baton, "serve", "--make-certificate", "broker.example.com", "--data", shared, env=clean_environment({}))
    head = (DEPLOY / "compose.cluster.yml").read_text("utf-8")
    expect(f"setup cluster keys --out {place}/cluster\n" in head, "the file does not say how to make the keys")
    expect(f"--make-certificate broker.example.com --data {place}\n" in head, "the file does not say how to make a certificate")
    cluster = Brokers(files.baton, folder, bucket and bucket.variables())
    ports = set()
    for name, service in brokers.items():
        # A variable without a value is that of the caller.
        caller = CREDENTIALS | (bucket.variables() if bucket else {})
        environment = {key: caller.get(key) if value is None else value for key, value in service["environment"].items()}
        environment = {key: value for key, value in environment.items() if value is not None}
        needs = service["depends_on"]["db"].get("required", True)
        expect(needs == (bucket is None), f"whether {name} needs the database: {needs}")
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
        expect(seen["cluster"]["log"] == expected, f"the log is {seen['cluster']['log']}")
        command = [files.baton if part == "/usr/local/bin/baton" else part for part in service["healthcheck"]["test"][1:]]
        expect(at in command, f"the health check of {name} asks another folder than the one of the volume")
        cluster.add(name, path, inside)
    expect(len(ports) == len(brokers), f"two brokers have the same published port: {ports}")
    with cluster:
        for name in brokers:
            asked = [str(folder / name) if part == at else str(part) for part in command]
            until(f"{name} is healthy", lambda asked=asked: outcome(*asked, env=clean_environment({}))[:2] == (0, "ready\n"))
        cluster.one_leads()
    over = "a folder" if bucket is None else "a bucket"
    print(f"compose of a cluster over {over}: healthy, one of three leads")


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
    parser.add_argument("--versitygw", type=Path)
    parser.add_argument("baton", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        baton = arguments.baton.resolve()
        files = Files(baton, Path(folder))
        check_chart(arguments.helm, files)
        check_compose(arguments.compose_schema, files)
        check_chart_of_a_cluster(arguments.helm, files, None)
        check_compose_of_a_cluster(arguments.compose_schema, files, None)
        if arguments.versitygw:
            for check, what in ((check_chart_of_a_cluster, arguments.helm), (check_compose_of_a_cluster, arguments.compose_schema)):
                with Bucket(arguments.versitygw.resolve(), files.folder / check.__name__) as bucket:
                    check(what, files, bucket)
        check_unit(baton, Path(folder))


if __name__ == "__main__":
    try:
        main()
    except CheckFailedError as error:
        sys.exit(f"FAILED: {error}")
