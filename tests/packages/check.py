"""Makes the packages of a ready program, installs each in a clean environment without a network, and uses it.

    check.py target/debug/baton

Runs docs/how-to/install.md as it stands there, in a copy of the checkout, and prints how long it takes from the files to a
first handoff in Python and in TypeScript: at most a minute each. Then it starts and stops a broker of each package, tries the
launcher of npm, and makes all packages a second time, which must give the same bytes. No page may name a registry that does not
have the packages yet.

What the clients need from PyPI and npm is downloaded into BATON_CI_CACHE before the clock starts. Where the kernel permits it,
everything after that runs in a network of its own, which has only the loopback address. Needs python3 with venv, npm,
dpkg-deb and nfpm.
"""

import contextlib
import fcntl
import gzip
import hashlib
import importlib.util
import io
import json
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("wheel", "npm", "tar", "deb", "rpm", "oci")
FIRST_HANDOFF_SECONDS = 60
WITHIN_SECONDS = 60
# A program that ends in the way that its argument names: by SIGTERM, with the number of its SIGINTs, or with a code.
STAND_IN = """#!/usr/bin/env node
const wish = process.argv[2];
let count = 0;
process.on("SIGINT", () => (count += 1));
if (wish === "TERM") process.kill(process.pid, "SIGTERM");
else if (wish === "COUNT") {
  for (let turn = 0; turn < 8; turn += 1) setTimeout(() => console.log("ready"), 100 * turn);
  setTimeout(() => process.exit(count), 1200);
}
else process.exit(Number(wish));
"""

specification = importlib.util.spec_from_file_location("readme", ROOT / "tests" / "readme" / "check.py")
readme = importlib.util.module_from_spec(specification)
sys.modules["readme"] = readme
specification.loader.exec_module(readme)


class CheckFailedError(Exception):
    """A package does not do what it must."""


def expect(is_so: bool, text: str) -> None:
    """Raises CheckFailedError with this text unless it is so."""
    if not is_so:
        raise CheckFailedError(text)


def run(*command: str | Path, **options: object) -> str:
    """What a command prints. Raises CheckFailedError if it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=WITHIN_SECONDS * 5, stdin=subprocess.DEVNULL, **options
    )
    expect(done.returncode == 0, f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def wait_for(is_so: object, what: str) -> None:
    """Waits until it is so. Raises CheckFailedError if that takes too long."""
    end = time.monotonic() + WITHIN_SECONDS
    while not is_so():
        expect(time.monotonic() < end, f"{what}: not within {WITHIN_SECONDS} s")
        time.sleep(0.02)


class Broker:
    """A broker for development, started by a command."""

    def __init__(self, command: list[Path], data: Path) -> None:
        self.data = data
        (data / "address").unlink(missing_ok=True)
        # Without a terminal: in one, the launcher leaves SIGINT to its keyboard.
        self.process = subprocess.Popen(
            [*command, "dev", "--port", "0", "--data", data], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        wait_for(lambda: self.is_ready(), f"{command} dev")

    def is_ready(self) -> bool:
        """Whether the broker has written its address. Raises CheckFailedError if it has ended instead."""
        if self.process.poll() is not None:
            raise CheckFailedError(f"{self.process.args}: exit code {self.process.returncode}\n{self.process.stdout.read()}")
        address = self.data / "address"
        return address.exists() and bool(address.read_text("utf-8"))

    def connection(self) -> list[str]:
        """The flags for a command that calls this broker."""
        token = (self.data / "operator.token").read_text("utf-8").strip()
        address = (self.data / "address").read_text("utf-8").strip()
        return ["--server", address, "--ca", str(self.data / "tls" / "ca.pem"), "--token", token]

    def stop(self, number: signal.Signals) -> None:
        """Sends a signal to the command, which must end with exit code 0."""
        self.process.send_signal(number)
        try:
            output, _ = self.process.communicate(timeout=WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            raise CheckFailedError(f"{self.process.args} goes on running after {number.name}") from None
        expect(self.process.returncode == 0, f"after {number.name}: exit code {self.process.returncode}\n{output}")

    def end(self) -> None:
        """Ends what is left of it, also behind a launcher."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def broker(command: list[Path], data: Path) -> Iterator[Broker]:
    """A broker that does not outlive its check."""
    started = Broker(command, data)
    try:
        yield started
    finally:
        started.end()


def use(name: str, command: list[Path], folder: Path) -> None:
    """A broker starts, shows a handoff, ends in order at each signal, and keeps its data."""
    data = folder / f"data of {name}"
    with broker(command, data) as first:
        shown = run(*command, "demo", *first.connection())
        expect("COMPLETED" in shown, f"{name}: the demo prints\n{shown}")
        before = run(*command, "handoff", "list", "-o", "jsonl", *first.connection())
        first.stop(signal.SIGTERM)
    with broker(command, data) as second:
        after = run(*command, "handoff", "list", "-o", "jsonl", *second.connection())
        second.stop(signal.SIGINT)
    states = [json.loads(line)["state"] for line in after.splitlines()]
    expect(states == ["HANDOFF_STATE_COMPLETED"] * 2, f"{name}: the handoffs are {states}")
    expect(before == after, f"{name}: the data is another one after a restart:\n{before}{after}")
    for arguments, code in (["--version"], 0), (["no-such-command"], 2):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        expect(done.returncode == code, f"{name} {arguments}: exit code {done.returncode}, and not {code}")
    print(f"{name}: dev, demo, SIGTERM, SIGINT, the data stays, exit codes", flush=True)


def control_c(command: list[Path | str], ready: bytes) -> int:
    """Starts a command in a terminal, presses ctrl-C whenever it prints this, and returns its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    printed = b""
    try:
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while chunk := os.read(terminal, 65536):
                before = printed.count(ready)
                printed += chunk
                os.write(terminal, b"\x03" * (printed.count(ready) - before))
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)
    expect(ready in printed, f"{command} prints\n{printed.decode('utf-8', 'replace')}")
    return os.waitstatus_to_exitcode(status)


def check_wheel(folder: Path, dist: Path) -> None:
    """The module knows where the program is, and the name of the wheel says what the program needs."""
    virtual = folder / "copy" / "try" / "python" / ".venv"
    use("wheel", [virtual / "bin" / "baton"], folder)
    use("wheel, second name", [virtual / "bin" / "baton-broker"], folder)
    content = (virtual / "bin" / "baton").read_bytes()
    expect(content[:4] == b"\x7fELF", "the command of the wheel is not the program itself")
    needed = max((int(major), int(minor)) for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?=\0)", content))
    (wheel,) = dist.glob("baton_broker-*.whl")
    expect("-manylinux_{}_{}_x86_64.whl".format(*needed) in wheel.name, f"{wheel.name}: the program needs glibc {needed}")
    ask = "import baton_broker; print(baton_broker.path())"
    told = run(virtual / "bin" / "python", "-c", ask).strip()
    expect(told == str((virtual / "bin" / "baton").resolve()), f"path() is {told}")
    target = folder / "a target"
    run(virtual / "bin" / "pip", "install", "--quiet", "--no-deps", "--target", target, wheel)
    told = run(sys.executable, "-c", ask, env={**os.environ, "PYTHONPATH": str(target)}).strip()
    expect(told == str(target / "bin" / "baton"), f"path() of --target is {told}")
    run(told, "--version")
    print("wheel: path(), platform tag")


def check_npm(folder: Path, dist: Path) -> None:
    """The launcher passes signals and exit codes on, in a folder with spaces, and says why it cannot."""
    project = folder / "a project"
    project.mkdir()
    (project / "package.json").write_text('{"private": true}', "utf-8")
    packages = sorted(dist.glob("baton-broker-cli-*.tgz"))
    run("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages, cwd=project)
    launcher = project / "node_modules" / ".bin" / "baton"
    use("npm", [launcher], folder)
    code = control_c([launcher, "dev", "--port", "0", "--data", folder / "data of a terminal"], b"Ctrl-C stops the broker")
    expect(code == 0, f"dev ends with exit code {code} after ctrl-C")
    program = project / "node_modules" / "@baton-broker" / "cli-linux-x64" / "bin" / "baton"
    program.write_text(STAND_IN, "utf-8")
    code = control_c([launcher, "COUNT"], b"ready")
    # Two that come at once count as one.
    expect(1 <= code <= 8, f"ctrl-C, 8 times, signals the program {code} times")  # noqa: PLR2004
    for code in range(11):
        done = subprocess.run([launcher, str(code)], check=False)
        expect(done.returncode == code, f"the launcher makes {done.returncode} of exit code {code}")
    done = subprocess.run([launcher, "TERM"], check=False)
    expect(done.returncode == -signal.SIGTERM, f"the launcher makes {done.returncode} of a program that SIGTERM has ended")
    shutil.rmtree(program.parents[1])
    done = subprocess.run([launcher, "--version"], check=False, capture_output=True, text=True)
    expect(done.returncode == 1 and "cli-linux-x64 is not installed" in done.stderr, f"without a program: {done}")
    print("npm: ctrl-C, exit codes 0 to 10, --ignore-scripts, a path with spaces, no program")


def check_archive(folder: Path) -> None:
    """All files are there, and the sample configuration is one."""
    (unpacked,) = (folder / "copy").glob("baton-0*-linux-gnu")
    use("archive", [unpacked / "baton"], folder)
    for name in ("LICENSE", "README.md", "baton.service", "completions/_baton", "completions/baton.fish", "man/man1/baton.1"):
        expect((unpacked / name).stat().st_size > 0, f"{name} is empty")
    run("bash", "-n", unpacked / "completions" / "baton.bash")
    tls = folder / "data of archive" / "tls"
    sample = (unpacked / "baton.toml").read_text("utf-8")
    for name in ("server.pem", "server.key"):
        expect(f'"/etc/baton/{name}"' in sample, f"baton.toml does not name {name}")
        sample = sample.replace(f'"/etc/baton/{name}"', json.dumps(str(tls / name)))
    (folder / "sample.toml").write_text(sample, "utf-8")
    run(unpacked / "baton", "serve", "--config", folder / "sample.toml", "--check")
    print("archive: files, completions, the sample configuration")


def check_deb(folder: Path, dist: Path) -> None:
    """What dpkg unpacks works, and the unit starts the program and uses the user of the package."""
    (package,) = dist.glob("*.deb")
    root = folder / "root"
    run("dpkg-deb", "--extract", package, root)
    run("dpkg-deb", "--control", package, folder / "control")
    use("deb", [root / "usr" / "bin" / "baton"], folder)
    unit = (root / "usr/lib/systemd/system/baton.service").read_text("utf-8")
    (started,) = re.findall(r"^ExecStart=/(\S+) serve --config /(\S+)$", unit, re.MULTILINE)
    for path in started:
        expect((root / path).is_file(), f"the unit names /{path}, which is not in the package")
    expect((folder / "control" / "conffiles").read_text("utf-8").split() == [f"/{started[1]}"], "conffiles")
    (user,) = re.findall(r"^User=(\S+)$", unit, re.MULTILINE)
    made = re.findall(r"^u (\S+)", (root / "usr/lib/sysusers.d/baton.conf").read_text("utf-8"), re.MULTILINE)
    expect(made == [user], f"the package makes {made}, and the unit uses {user}")
    run("md5sum", "--check", "--quiet", folder / "control" / "md5sums", cwd=root)
    for script in ("postinst", "prerm"):
        run("sh", "-n", folder / "control" / script)
    print("deb: unit, user, sums")


def check_rpm(folder: Path, dist: Path) -> None:
    """What an rpm has works, and the unit starts the program."""
    (package,) = dist.glob("*.rpm")
    root = folder / "root of the rpm"
    # rpmfile takes the list of files from the head of the package, and knows no mode when it unpacks.
    script = (
        "import rpmfile, pathlib, sys\n"
        "with rpmfile.open(sys.argv[1]) as found:\n"
        "    for member in found.getmembers():\n"
        "        path = pathlib.Path(sys.argv[2]) / member.name.lstrip(chr(47))\n"
        "        path.parent.mkdir(parents=True, exist_ok=True)\n"
        "        path.write_bytes(found.extractfile(member).read())\n"
        "    print(found.headers['name'].decode(), found.headers['version'].decode(), found.headers['arch'].decode())\n"
    )
    told = run(folder / "tools" / "bin" / "python", "-c", script, package, root).split()
    expect(told[0] == "baton-broker" and told[2] == "x86_64", f"the rpm says {told}")
    program = root / "usr" / "bin" / "baton"
    program.chmod(0o755)
    use("rpm", [program], folder)
    unit = (root / "usr/lib/systemd/system/baton.service").read_text("utf-8")
    expect("ExecStart=/usr/bin/baton serve" in unit, "the unit does not start /usr/bin/baton")
    for name in ("postinstall", "preremove"):
        run("sh", "-n", ROOT / "deploy" / "packages" / "rpm" / name)
    print("rpm: name, program, unit, scripts")


def check_image(folder: Path, dist: Path) -> None:
    """The image is a whole OCI layout, and its program starts with nothing but the files of the image.

    An engine gives it the name by which the page runs it.
    """
    (archive,) = dist.glob("baton-*-oci.tar")
    layout, root = folder / "layout", folder / "root of the image"
    with tarfile.open(archive) as tar:
        tar.extractall(layout, filter="data")

    def blob(of: dict) -> bytes:
        content = (layout / "blobs" / of["digest"].replace(":", "/")).read_bytes()
        expect(f"sha256:{hashlib.sha256(content).hexdigest()}" == of["digest"], f"{of} is damaged")
        expect(len(content) == of["size"], f"{of} has another size")
        return content

    (found,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    manifest = json.loads(blob(found))
    configuration = json.loads(blob(manifest["config"]))
    name = found["annotations"]["io.containerd.image.name"]
    (saved,) = json.loads((layout / "manifest.json").read_bytes())
    expect(saved["RepoTags"] == [name], f"the image is {saved['RepoTags']} for Docker, and {name} for others")
    same = [saved["Config"], *saved["Layers"]]
    expect(
        same == [f"blobs/{of['digest'].replace(':', '/')}" for of in (manifest["config"], *manifest["layers"])],
        f"manifest.json has other parts: {same}",
    )
    page = (ROOT / "docs" / "how-to" / "install.md").read_text("utf-8")
    runs = re.findall(r"^(?:docker|podman) run (?:.*\\\n)*.*", page, re.MULTILINE)
    expect(len(runs) == 2 and all(name in line.split() for line in runs), f"the page does not run {name}: {runs}")
    expect(f"load --input dist/{archive.name}" in page, f"the page does not load {archive.name}")
    owners = {}
    for layer, diff in zip(manifest["layers"], configuration["rootfs"]["diff_ids"], strict=True):
        content = gzip.decompress(blob(layer))
        expect(f"sha256:{hashlib.sha256(content).hexdigest()}" == diff, f"{diff} is another layer")
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            owners |= {member.name.removeprefix("./"): member.uid for member in tar}
            tar.extractall(root, filter="data")
    user = int(configuration["config"]["User"].split(":")[0])
    expect(owners["var/lib/baton"] == user != 0, f"the data folder belongs to {owners['var/lib/baton']}")
    (program,) = configuration["config"]["Entrypoint"]
    if os.geteuid() == 0:
        said = json.loads(run("chroot", root, program, "version", "-o", "json"))
        run("chroot", root, program, "keygen", "--out", "/var/lib/baton/key.pem")
        print(f"image: digests, owner, baton {said['version']} alone in its root")
    else:
        print("image: digests, owner")


def check_bytes(folder: Path, dist: Path) -> None:
    """A second run gives the same bytes, in another folder, zone and umask."""
    for kind in KINDS:
        run(
            folder / "copy" / "deploy" / "package", kind, folder / "again", cwd="/", umask=0o077,
            env={**os.environ, "TZ": "Asia/Tokyo", **packing(folder)},
        )  # fmt: skip
    made = sorted((folder / "again").iterdir())
    expect(len(made) == len(KINDS) + 1, f"the files are {made}")
    for path in made:
        expect(path.read_bytes() == (dist / path.name).read_bytes(), f"a second run makes another {path.name}")
    print("two runs give the same bytes")


def packing(folder: Path) -> dict[str, str]:
    """The environment of deploy/package: the program, and as fast as can be."""
    return {"BATON_PROGRAM": str(folder / "program" / "baton"), "BATON_COMPRESSION": "1"}


def cached(cache: Path, kind: str, locks: list[bytes], fill: object) -> Path:
    """A folder of the cache, filled unless it is there."""
    folder = cache / f"packages-{kind}-{hashlib.sha256(b''.join(locks)).hexdigest()[:12]}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            fill(Path(temporary) / "new")
            (Path(temporary) / "new").rename(folder)
    return folder


def download(folder: Path, dist: Path, cache: Path) -> None:
    """Brings what the clients depend on: wheels, and a cache of npm."""
    python, typescript = ROOT / "clients" / "python", ROOT / "clients" / "typescript"
    needs = tomllib.loads((python / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    versions = python / "requirements.txt"

    def wheels(into: Path) -> None:
        options = ("--quiet", "--only-binary", ":all:", "--constraint", versions, "--dest", into)
        run(folder / "tools" / "bin" / "pip", "download", *options, *needs)

    def packages(into: Path) -> None:
        (client,) = dist.glob("baton-broker-client-*.tgz")
        project = folder / "download"
        project.mkdir()
        options = ("--no-audit", "--no-fund", "--ignore-scripts", "--cache", into)
        run("npm", "install", *options, client, "tsx@4", cwd=project)

    found = cached(cache, "wheels", [versions.read_bytes(), *(need.encode() for need in needs)], wheels)
    (folder / "wheels").symlink_to(found)
    found = cached(cache, "npm", [(typescript / "package-lock.json").read_bytes()], packages)
    # npm writes into its cache.
    shutil.copytree(found, folder / "npm")


def make(folder: Path, program: Path) -> None:
    """Makes the files, as the page says."""
    readme.copy_of_the_checkout(folder / "copy")
    (folder / "tmp").mkdir()
    (folder / "program").mkdir()
    for path in (program, program.with_name("baton-conformance")):
        if path.exists():
            (folder / "program" / path.name).symlink_to(path)
    run(sys.executable, "-m", "venv", folder / "tools")
    run(folder / "tools" / "bin" / "pip", "install", "--quiet", "rpmfile==2.2.1")
    environment = {**readme.environment_in(folder), **packing(folder)}
    environment["PATH"] = f"{folder / 'tools' / 'bin'}:{environment['PATH']}"
    terminals = readme.Terminals(folder / "copy", environment)
    try:
        for block in blocks():
            if block.terminal == "main" and block.kind == "run":
                terminals.run(block)
    finally:
        terminals.close()


def blocks() -> list[object]:
    """The blocks of the page."""
    return readme.blocks_of(ROOT / "docs" / "how-to" / "install.md")


def follow_the_page(folder: Path) -> None:
    """Installs the files as the page says, and measures the time to the first handoff of each language."""
    terminals = readme.Terminals(folder / "copy", readme.environment_in(folder))
    begun, ended = {}, {}
    try:
        for block in blocks():
            if block.terminal == "main" and block.kind == "run":
                continue
            begun.setdefault(block.terminal, time.monotonic())
            try:
                terminals.run(block)
            except readme.BlockFailedError as error:
                raise CheckFailedError(f"{block.place}:\n{block.commands}{error}") from None
            ended[block.terminal] = time.monotonic()
    finally:
        terminals.close()
    for language, terminal in ("Python", "python"), ("TypeScript", "node"):
        taken = ended[terminal] - begun[terminal]
        print(f"{language}: {taken:.1f} s from the files to the first handoff", flush=True)
        expect(taken <= FIRST_HANDOFF_SECONDS, f"that is more than {FIRST_HANDOFF_SECONDS} s")


def inside(folder: Path, *, is_alone: bool) -> None:
    """All that needs no network."""
    if is_alone:
        with socket.socket() as any_socket:
            # SIOCSIFFLAGS: the loopback device goes up and runs.
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 0x41))
    print("without a network" if is_alone else "pip and npm are told to use no network", flush=True)
    dist = folder / "copy" / "dist"
    os.environ.update(
        PIP_NO_INDEX="1", PIP_FIND_LINKS=str((folder / "wheels").resolve()), PIP_DISABLE_PIP_VERSION_CHECK="1",
        npm_config_offline="true", npm_config_cache=str(folder / "npm"), npm_config_update_notifier="false",
        no_proxy="127.0.0.1", no_grpc_proxy="127.0.0.1",
    )  # fmt: skip
    readme.check_ports()
    follow_the_page(folder)
    check_wheel(folder, dist)
    check_npm(folder, dist)
    check_archive(folder)
    check_deb(folder, dist)
    check_rpm(folder, dist)
    check_image(folder, dist)
    check_bytes(folder, dist)


def check_lines() -> None:
    """No page tells a reader to install from a registry that does not have the package."""
    wrong = re.compile(
        r"(pip install|uv pip install|uv tool install|uvx|pipx run) [^`\n]*(?<![\w/])baton[-_](broker|client)(?![-.\w])"
        r"|(npm (install|i)|npx -?y?) [^`\n]*(?<![\w/])@baton-broker/|go (get|install) github.com/baton-broker"
        r"|cargo (add|install|binstall) (?!--)[^`\n]*baton"
    )
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    found = [
        f"{name}: {line.strip()}"
        for name in tracked.splitlines()
        for line in (ROOT / name).read_text("utf-8").splitlines()
        if wrong.search(line)
    ]
    expect(not found, "lines that cannot work:\n" + "\n".join(found))


def check_links() -> None:
    """Pages that PyPI and npm show as they are have no relative link, and links to the repository lead to files of it."""
    repository = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]["repository"]
    pages = [ROOT / "clients" / "python" / "README.md", *(ROOT / "deploy" / "packages").glob("*/README.md")]
    expect(len(pages) > 1, "there are no pages of packages")
    for page in pages:
        text = page.read_text("utf-8")
        relative = [link for link in re.findall(r"\]\(([^)]*)\)", text) if not link.startswith("https://")]
        expect(not relative, f"{page} has links that a registry cannot follow: {relative}")
        for path in re.findall(rf"{re.escape(repository)}/(?:blob|tree)/main/([^)#>\s]*)", text):
            expect((ROOT / path).exists(), f"{page} links {path}, which is not there")


def main() -> int:
    """Runs the check. Returns the exit code."""
    if sys.argv[1] == "--inside":
        inside(Path(sys.argv[3]), is_alone=sys.argv[2] == "alone")
        return 0
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton-ci"
    cache = Path(os.environ.get("BATON_CI_CACHE") or default)
    cache.mkdir(parents=True, exist_ok=True)
    check_lines()
    check_links()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        began = time.monotonic()
        make(folder, Path(sys.argv[1]).resolve())
        download(folder, folder / "copy" / "dist", cache)
        print(f"the files are made after {time.monotonic() - began:.0f} s", flush=True)
        alone = ["unshare", "--user", "--map-root-user", "--net"]
        can = subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0
        again = [sys.executable, __file__, "--inside", "alone" if can else "told", str(folder)]
        return subprocess.run([*(alone if can else []), *again], check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CheckFailedError, readme.BlockFailedError) as failure:
        sys.exit(f"FAILED: {failure}")
