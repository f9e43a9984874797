#!/usr/bin/env python3
"""Builds the site of the documentation from the pages of the repository.

    docs/site/build.py                           the site, into target/site
    docs/site/build.py --api python,go           with the API references of these clients; `all` for all five
    docs/site/build.py --out FOLDER              into another folder, which is emptied
    docs/site/build.py --url https://ADDRESS/    for a site at this address: llms.txt has whole addresses
    docs/site/build.py --check                   only the checks that need no tool

Needs Python 3.11 or later, and the tools of each client whose reference it builds. The rest comes in pinned versions from PyPI
and npm into BATON_CI_CACHE. Exit code 75: a registry cannot be reached.

docs/README.md is the list of pages: each of its headings is a group of the navigation. A link that leads nowhere fails the
build, and so does a page without a place in the list.
"""

import argparse
import hashlib
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from html import escape
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "docs/site"
LIST = "docs/README.md"
REPOSITORY = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["repository"]
SUMMARY = (
    "baton is a gRPC broker for AI agents. One agent hands a task to another through it; no message is lost, and exactly one agent "
    "owns the task at any time. There are clients in Python, TypeScript, Go, Java and Rust, and a command line."
)
MERMAID = "mermaid@12.3.0"
TYPEDOC = "typedoc@0.28.20"
SKIPPED = 75

FENCE = re.compile(r"^ *(```+|~~~+)\s*(\S*)")
LINK = re.compile(r"\]\(([^()\s]+)\)")


class Unreachable(Exception):
    """A registry does not answer."""


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("BATON_CI_CACHE") or Path(base) / "baton-ci")


def run(*command, cwd=ROOT, given=None, **environment):
    """Runs a command, and shows its output if it fails."""
    command = [str(part) for part in command]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, input=given or "", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}")
    return done.stdout


# The pages.


def lines_of(text):
    """The lines of a page, each with whether it is code."""
    fence = None
    for line in text.split("\n"):
        match = FENCE.match(line)
        if fence is None and match:
            fence = match[1]
            yield line, True
        elif fence is not None:
            if match and match[1].startswith(fence) and not match[2]:
                fence = None
            yield line, True
        else:
            yield line, False


def without_code(line):
    """The line with blanks for each code span."""
    return re.sub(r"(`+).+?\1", lambda span: " " * len(span[0]), line)


def links_of(line):
    """The matches of LINK in a line of prose."""
    return LINK.finditer(without_code(line))


def anchors_of(text):
    """The anchors of the headings, as GitHub makes them."""
    anchors = []
    for line, is_code in lines_of(text):
        match = None if is_code else re.match(r"#+ +(.*)", line)
        if match:
            heading = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", match[1].strip().lower())
            anchor = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
            again = sum(1 for known in anchors if known == anchor or re.fullmatch(re.escape(anchor) + r"-\d+", known))
            anchors.append(f"{anchor}-{again}" if again else anchor)
    return anchors


def title_of(text):
    for line, is_code in lines_of(text):
        if not is_code and line.startswith("# "):
            return line[2:].strip().replace("`", "")
    raise SystemExit("a page has no title")


class Pages:
    """The pages of docs/README.md, by their path in the repository."""

    def __init__(self):
        self.groups = {}
        self.problems = []
        self.texts = {"README.md": (ROOT / "README.md").read_text(), LIST: (ROOT / LIST).read_text()}
        group, about = None, None
        for line, is_code in lines_of(self.texts[LIST]):
            if not is_code and line.startswith("## "):
                group = self.groups.setdefault(line[3:].strip(), [])
            elif group is not None:
                row = re.fullmatch(r"\| (.*) \| (.*) \|", line)
                about = row[2] if row else ""
                for match in links_of(row[1] if row else line):
                    path = self.path(LIST, match[1].partition("#")[0])
                    if path is not None and path.endswith(".md") and path not in self.texts:
                        self.texts[path] = (ROOT / path).read_text()
                        group.append((path, re.sub(r"\[(.*?)\]\(.*?\)", r"\1", about)))
        self.anchors = {path: anchors_of(text) for path, text in self.texts.items()}
        listed = set(self.texts)
        for path in sorted((ROOT / "docs").rglob("*.md")):
            name = path.relative_to(ROOT).as_posix()
            if name not in listed:
                self.problems.append(f"{name} is not in {LIST}")

    def path(self, page, target):
        """The path in the repository that a link of a page leads to: that of a folder's README.md, if it is a page."""
        path = os.path.normpath(PurePosixPath(page).parent / unquote(target)) if target else page
        if path.startswith("..") or not (ROOT / path).exists():
            return None
        readme = f"{path}/README.md"
        return readme if (ROOT / path).is_dir() and (ROOT / readme).is_file() and readme in self.texts else path

    def target(self, page, number, target):
        """The target of a link on the site. Notes what is wrong with it."""
        if target.startswith(f"{REPOSITORY}/"):
            # A README on a package registry names pages by their whole address.
            match = re.fullmatch(re.escape(REPOSITORY) + r"/(?:blob|tree)/main/([^#]*)(#.*)?", target)
            if not match:
                return target
            page_of, target = "README.md", match[1] + (match[2] or "")
        elif "://" in target or target.startswith("mailto:"):
            return target
        else:
            page_of = page
        file, _, anchor = target.partition("#")
        path = self.path(page_of, file)
        if path is None:
            self.problems.append(f"{page}:{number}: {target}: no file")
            return target
        is_page = path in self.texts
        if anchor and is_page and anchor not in self.anchors[path]:
            self.problems.append(f"{page}:{number}: {target}: no heading")
        if is_page or path.startswith("docs/"):
            relative = os.path.relpath(path, PurePosixPath(page).parent)
            return f"{relative}#{anchor}" if anchor else relative
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/main/{path}" + (f"#{anchor}" if anchor else "")

    def for_site(self, page):
        """The page as the site has it: links lead to pages of the site, or to the repository."""
        made = []
        for number, (line, is_code) in enumerate(lines_of(self.texts[page]), 1):
            if is_code:
                # The second word is for the compiler.
                made.append(re.sub(r"^( *```\w+),\w+$", r"\1", line))
                continue
            if re.fullmatch(r"<!-- (run|file).*-->", line):
                continue
            for match in reversed(list(links_of(line))):
                target = self.target(page, number, match[1])
                text = line[: match.start()]
                # A link whose text is the name of a page has its title instead.
                named = re.search(r"\[([\w./-]+\.md)$", text)
                path = self.path(page, match[1].partition("#")[0])
                if named and path in self.texts:
                    text = text[: named.start(1)] + title_of(self.texts[path])
                line = f"{text}]({target}){line[match.end() :]}"
            made.append(line)
        return "\n".join(made)


def for_mkdocs(text):
    """The page as Python-Markdown reads it: what belongs to a numbered item begins four columns to the right, not three, and a list
    in it has an empty line before and after it."""
    made, is_in_item = [], False
    for line, is_code in lines_of(text):
        if not is_code and re.match(r"\d\. ", line):
            if is_in_item and re.match(r"    -|      ", made[-1]):
                made.append("")
            is_in_item = True
        elif is_in_item and line.startswith("   "):
            if not is_code and line.startswith("   - ") and not re.match(r"$|    -|      ", made[-1]):
                made.append("")
            line = f" {line}"
        elif line and not line.startswith(" ") and made and not made[-1]:
            is_in_item = False
        made.append(line)
    return "\n".join(made)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# What is for machines: https://llmstxt.org.


def llms(pages, texts, out, url):
    parts = ["# baton", f"> {SUMMARY}", "Each page is also there as Markdown. llms-full.txt has all of them in one file."]
    whole = []
    for group, entries in {"Overview": [("README.md", "what baton is, and a first handoff")], **pages.groups}.items():
        lines = [f"- [{title_of(texts[path])}]({url}{path}){': ' + about if about else ''}" for path, about in entries]
        # The heading whose pages a reader with little room leaves out.
        parts.append("\n".join([f"## {'Optional' if group == 'Contribute' else group}", "", *lines]))
        whole += [f"<!-- {url}{path} -->\n\n{texts[path].strip()}\n" for path, _ in entries]
    write(out / "llms.txt", "\n\n".join(parts) + "\n")
    write(out / "llms-full.txt", "\n\n".join(whole))
    for path, text in texts.items():
        write(out / path, text)


# The tools.


def reaches(*command):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def folder_of(name, *parts):
    """The folder of a tool in the cache: another one for other versions."""
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return cache_folder() / f"{name}-{key}"


def venv(name, *locks):
    """An environment of Python with the packages of the files."""
    folder = folder_of(name, *(lock.read_text() for lock in locks))
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        run(sys.executable, "-m", "venv", folder)
        pip = [folder / "bin/pip", "--quiet", "--disable-pip-version-check"]
        try:
            run(*pip, "install", "--no-deps", *(part for lock in locks for part in ("-r", lock)))
        except SystemExit:
            if reaches(*map(str, pip), "download", "--no-deps", "-d", tempfile.gettempdir(), "mergedeep==1.3.4"):
                raise
            raise Unreachable("PyPI cannot be reached") from None
        (folder / "complete").touch()
    return folder


def npm(name, package, lock=None):
    """A folder with a package of npm, and with those of a lock file if there is one."""
    files = [lock / "package.json", lock / "package-lock.json"] if lock else []
    folder = folder_of(name, package, *(file.read_text() for file in files))
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in files:
            shutil.copy(file, folder)
        quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts", "--prefix", folder]
        try:
            if files:
                run("npm", "ci", *quiet)
            run("npm", "install", "--no-save", *quiet, package)
        except SystemExit:
            if reaches("npm", "view", package, "version"):
                raise
            raise Unreachable("the registry of npm cannot be reached") from None
        (folder / "complete").touch()
    return folder


# The API references.


def api_python(out):
    # pdoc imports the client, and needs what that imports.
    tools = venv("docs-python", ROOT / "clients/python/requirements.txt", HERE / "requirements-python.txt")
    run(
        tools / "bin/pdoc", "--docformat", "markdown", "-o", out, "baton", "!baton._gen", "!baton.adapters",
        PYTHONPATH=str(ROOT / "clients/python/src"), PYTHONDONTWRITEBYTECODE="1",
    )  # fmt: skip


def api_typescript(out):
    client = ROOT / "clients/typescript"
    tools = npm("docs-typescript", TYPEDOC, client)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "package.json", "tsconfig.json"):
            (shutil.copytree if (client / name).is_dir() else shutil.copy)(client / name, copy / name)
        (copy / "node_modules").symlink_to(tools / "node_modules")
        run(
            copy / "node_modules/.bin/typedoc", "--tsconfig", "tsconfig.json", "--out", out, "--name", "@baton-broker/client",
            "--readme", "none", "--disableGit", "--basePath", copy, "--excludePrivate", "--logLevel", "Error",
            "--sourceLinkTemplate", f"{REPOSITORY}/blob/main/clients/typescript/{{path}}#L{{line}}", "src/index.ts", "src/ai.ts",
            cwd=copy,
        )  # fmt: skip


def api_go(out):
    """What `go doc` prints, each declaration with an anchor: pkg.go.dev has no static form."""
    text = run("go", "doc", "-all", ".", cwd=ROOT / "clients/go")
    lines, names = [], []
    for line in text.split("\n"):
        match = re.match(r"(?:func (?:\(\w+ \*?(?P<owner>\w+)\) )?|type )(?P<name>\w+)", line)
        shown = escape(line)
        if match:
            name = f"{match['owner']}.{match['name']}" if match["owner"] else match["name"]
            names.append(name)
            shown = f'<span id="{name}"><a href="#{name}">{shown}</a></span>'
        elif re.fullmatch(r"[A-Z]+", line):
            shown = f"<b>{shown}</b>"
        lines.append(shown)
    links = " ".join(f'<a href="#{name}">{name}</a>' for name in sorted(names, key=str.lower))
    write(out / "index.html", GO_PAGE.replace("LINKS", links).replace("TEXT", "\n".join(lines)))


GO_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>The Go client</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 60rem; padding: 0 1rem; }
nav a { display: inline-block; margin-right: 0.8rem; }
pre { overflow-x: auto; font-size: 0.85rem; }
pre a { text-decoration: none; font-weight: bold; }
</style>
<h1>github.com/baton-broker/baton/clients/go</h1>
<details><summary>All names</summary><nav>LINKS</nav></details>
<pre>TEXT</pre>
</html>
"""


def api_java(out):
    with tempfile.TemporaryDirectory() as folder:
        # In a copy: what the build leaves behind is not for the client's folder.
        copy = Path(folder) / "clients/java"
        shutil.copytree(ROOT / "clients/java", copy, ignore=shutil.ignore_patterns("target"))
        shutil.copytree(ROOT / "proto", Path(folder) / "proto")
        shutil.copy(ROOT / "LICENSE", folder)
        local = os.environ.get("MAVEN_REPO_LOCAL")
        options = ["--batch-mode", "--quiet", "--strict-checksums", *([f"-Dmaven.repo.local={local}"] if local else [])]
        run("mvn", *options, "-Dmaven.test.skip=true", "compile", "javadoc:javadoc", cwd=copy)
        shutil.copytree(copy / "target/reports/apidocs", out)


def api_rust(out):
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "doc"
    run("cargo", "doc", "--locked", "--no-deps", "--quiet", "-p", "baton-client", RUSTDOCFLAGS="-D warnings")
    shutil.copytree(target, out)


# Each with the page that it opens with.
REFERENCES = {
    "rust": ("Rust", "cargo doc", api_rust, "baton_client/index.html"),
    "python": ("Python", "pdoc", api_python, "baton.html"),
    "typescript": ("TypeScript", "TypeDoc", api_typescript, "index.html"),
    "go": ("Go", "go doc", api_go, "index.html"),
    "java": ("Java", "Javadoc", api_java, "index.html"),
}
API_PAGE = "api/index.md"


def api_page(wanted):
    rows = [f"| [{REFERENCES[name][0]}]({name}/{REFERENCES[name][3]}) | {REFERENCES[name][1]} |" for name in wanted]
    about = "Every type and call of the clients, from their sources. [The clients, call by call](../docs/clients.md) compares them."
    return "\n".join(["# API references", "", about, "", "| client | made by |", "|---|---|", *rows, ""])


# The site.


def navigation(pages, texts, wanted):
    nav = [{"Overview": "README.md"}, {"All pages": LIST}]
    for group, entries in pages.groups.items():
        # A tutorial's title says in a list of tutorials only the language.
        nav.append({group: [{title_of(texts[path]): path} for path, _ in entries if path not in ("README.md", LIST)]})
        if group == "Reference" and wanted:
            nav[-1][group].append({"API references": API_PAGE})
    return nav


def make(pages, texts, result, wanted, url):
    tools = venv("docs-site", HERE / "requirements.txt")
    mermaid = npm("docs-mermaid", MERMAID) / "node_modules/mermaid/dist/mermaid.min.js"
    with tempfile.TemporaryDirectory() as folder:
        stage, out = Path(folder) / "pages", Path(folder) / "site"
        for path, text in texts.items():
            write(stage / path, for_mkdocs(text))
        for picture in (ROOT / "docs/console").glob("*.png"):
            (stage / "docs/console").mkdir(exist_ok=True)
            shutil.copy(picture, stage / "docs/console")
        shutil.copy(mermaid, stage)
        shutil.copy(HERE / "site.css", stage)
        for name in wanted:
            print(f"# the API reference of {REFERENCES[name][0]}", flush=True)
            REFERENCES[name][2](stage / "api" / name)
            if not (stage / "api" / name / REFERENCES[name][3]).is_file():
                raise SystemExit(f"{REFERENCES[name][1]} made no {REFERENCES[name][3]}")
        if wanted:
            write(stage / API_PAGE, api_page(wanted))
        # What mkdocs.yml has no place for: paths of this build.
        added = {"docs_dir": str(stage), "site_dir": str(out), "site_url": url, "nav": navigation(pages, texts, wanted)}
        config = Path(folder) / "mkdocs.yml"
        write(config, (HERE / "mkdocs.yml").read_text() + "".join(f"{key}: {json.dumps(value)}\n" for key, value in added.items()))
        run(tools / "bin/mkdocs", "build", "--quiet", "--strict", "--config-file", config, PYTHONDONTWRITEBYTECODE="1", NO_MKDOCS_2_WARNING="1")
        check_shapes(tools, texts, out)
        llms(pages, texts, out, url)
        found = check_links(out)
        if found:
            raise SystemExit("\n".join(found))
        # Only a whole site takes the place of the one before.
        shutil.rmtree(result, ignore_errors=True)
        shutil.copytree(out, result)


SHAPES = """
import json, sys
from markdown_it import MarkdownIt
md = MarkdownIt("commonmark").enable(["table", "strikethrough"])
print(json.dumps({path: md.render(text) for path, text in json.load(sys.stdin).items()}))
"""


def check_shapes(tools, texts, out):
    """The site's Markdown is another one than that of a forge: each page has the same lists, tables and blocks in both."""
    forge = json.loads(run(tools / "bin/python", "-c", SHAPES, given=json.dumps(texts)))
    found = []
    for path, text in forge.items():
        made = page_of_site(out, path).read_text()
        made = made[made.index('<article class="md-content__inner') : made.index("</article>")]
        for tag in ("li", "ol", "tr", "td", "pre", "blockquote", "h1", "h2", "h3", "h4"):
            here, there = (len(re.findall(rf"<{tag}[ >]", each)) for each in (made, text))
            if here != there:
                found.append(f"{path}: {here} of <{tag}> on the site, {there} on a forge")
    if found:
        raise SystemExit("\n".join(found))


def page_of_site(out, path):
    folder = PurePosixPath(path).parent if PurePosixPath(path).name in ("README.md", "index.md") else PurePosixPath(path).with_suffix("")
    return out / folder / "index.html"


class Document(html.parser.HTMLParser):
    """The ids of a page of HTML, and its links."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links = {"", "top"}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def check_links(out):
    """The links of the built pages that lead to no file or no place in it. Of the API references, only whether the files are there."""
    documents, found = {}, []

    def document(path):
        if path not in documents:
            documents[path] = Document(path.read_text(errors="replace"))
        return documents[path]

    for page in sorted(out.rglob("*.html")):
        name = page.relative_to(out)
        # Has addresses from the root of the site.
        if name.name == "404.html" or name.parts[0] == "api" and len(name.parts) > 2:
            continue
        for link in document(page).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
                continue
            target = page if not parts.path else Path(os.path.normpath(page.parent / unquote(parts.path)))
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{name}: {link}: no file")
            elif target.suffix == ".html" and unquote(parts.fragment) not in document(target).ids and name.parts[0] != "api":
                found.append(f"{name}: {link}: no such place")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "target/site")
    parser.add_argument("--api", default="", help="clients, with commas between them, or all")
    parser.add_argument("--url", default="", help="the address of the site")
    parser.add_argument("--check", action="store_true", help="only the checks that need no tool")
    options = parser.parse_args()
    wanted = list(REFERENCES) if options.api == "all" else [name for name in options.api.split(",") if name]
    for name in wanted:
        if name not in REFERENCES:
            parser.error(f"there is no client {name}")
    if options.url and not re.fullmatch(r"https?://\S+/", options.url):
        parser.error("an address begins with https:// and ends with /")

    pages = Pages()
    texts = {path: pages.for_site(path) for path in pages.texts}
    if pages.problems:
        print("\n".join(pages.problems), file=sys.stderr)
        return 1
    if options.check:
        print(f"{len(texts)} pages are in order")
        return 0
    out = options.out.resolve()
    # Emptied only if it is a site, or nothing yet.
    if out.exists() and any(out.iterdir()) and not (out / "llms.txt").exists():
        parser.error(f"{out} has other files than those of a site")
    try:
        make(pages, texts, out, wanted, options.url)
    except Unreachable as problem:
        print(problem, file=sys.stderr)
        return SKIPPED
    print(f"{len(texts)} pages in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
