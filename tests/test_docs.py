"""The pages hold: examples run and print what they say, configurations parse, links and commands exist, drawn parts are
up to date.

A comment before a fenced block says what is done with it: ``<!-- file: NAME -->`` saves it, ``<!-- run: NAME -->``
saves and runs it (``NAME.sh`` with ``sh``), ``<!-- served CONFIG, run: NAME -->`` does so while ``edgeserve serve
CONFIG`` runs, with its fronts (``broker,`` before it: beside an MQTT broker), ``<!-- beside PAGE, file: NAME -->``
saves the files of that page first, and ``<!-- prints -->`` is what the run before it must have printed. Files whose
name starts with ``test_`` are run by pytest. The ports that a page names stand for free ones.
Blocks without a comment must at least be well-formed.
"""

import ast
import contextlib
import dataclasses
import glob
import importlib
import inspect
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest
from draw import configuration
from for_each import for_each
from lib import drawn
from mqtt_broker import broker

import edgeserve
from edgeserve import cli
from edgeserve.commands import front
from edgeserve.config import loading, schema
from edgeserve.errors import REASONS
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd
from edgeserve.sched.policy_api.policy import Bid, Change
from edgeserve.sched.requests.states import Job, RequestRecord

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DRAWN = (
    *("draw.command_line", "draw.configuration", "draw.errors", "draw.lifecycle", "draw.metrics"),
    *("draw.policy_options", "draw.reference"),
    *("figures.results", "figures.schemble_tables"),  # imported by their test: scikit-learn takes a second
)
READY_S_MAX = 60.0


def pages():
    patterns = ("*.md", ".github/*.md", "docs/**/*.md", "examples/*/*.md", "jetson/*.md", "profiles/*.md")
    found = [path for pattern in patterns for path in glob.glob(os.path.join(ROOT, pattern), recursive=True)]
    return sorted(os.path.relpath(path, ROOT) for path in found)


PAGES = pages()


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class Block:
    """A fenced block: language, text, the comment before it, and the line it starts on."""

    def __init__(self, language, text, mark, line):
        self.language, self.text, self.mark, self.line = language, text, mark, line


def blocks(page):
    found, mark, inside, language, start = [], "", None, "", 0
    for number, line in enumerate(page.splitlines(), 1):
        fence = re.match(r"\s*```(.*)$", line)
        if fence and inside is None:
            inside, language, start = [], fence.group(1).strip(), number
        elif fence:
            found.append(Block(language, "\n".join(inside) + "\n", mark, start))
            inside, mark = None, ""
        elif inside is not None:
            inside.append(line)
        elif line.strip():
            comment = re.match(r"<!-- (.*) -->$", line.strip())
            mark = comment.group(1) if comment else ""
    assert inside is None, f"a fence that begins on line {start} does not end"
    return found


def code_of(page):
    """Every code span and every block that is neither Python nor TOML: where commands are shown."""
    shown = [block.text for block in blocks(page) if block.language not in ("python", "toml", "json", "mermaid")]
    prose = re.sub(r"(?ms)^\s*```.*?^\s*```$", "", page)
    return shown + re.findall(r"`([^`\n]+)`", prose)


# --- examples --------------------------------------------------------------------------------------------------------


@pytest.fixture
def place():
    """A directory with a short name: a socket's path is bounded."""
    directory = tempfile.mkdtemp(prefix="edgeserve-docs-")
    yield directory
    shutil.rmtree(directory)


def environment(place):
    return {
        **os.environ,
        "XDG_RUNTIME_DIR": place,
        "PYTHONPATH": ROOT,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": os.path.join(place, "bin") + os.pathsep + os.environ.get("PATH", ""),
    }


PIP = """
import sys
from setuptools import setup
assert sys.argv[1:] == ["install", "--editable", "."], sys.argv
sys.argv[1:] = ["--quiet", "egg_info"]
setup()
"""
"""``pip install --editable .`` as far as the examples need it: the metadata, beside the project."""


def write_command(place):
    """``edgeserve``, ``python`` and ``pip`` of this checkout, for the pages' shell commands."""
    os.makedirs(os.path.join(place, "bin"), exist_ok=True)
    for name, words in (("edgeserve", "-m edgeserve.cli"), ("python", ""), ("pip", "-c '" + PIP + "'")):
        path = os.path.join(place, "bin", name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        os.chmod(path, 0o700)


HURRIED = {"too_short.py": 4, "late.py": 4}
"""Examples that show what happens within a few milliseconds -> how often they may be started: a machine that is busy
with something else for that long shows another outcome."""


def run(place, *command):
    program = sys.executable
    if command[0].endswith(".sh"):
        write_command(place)
        program, command = "sh", ("-e", *command)
    for _ in range(HURRIED.get(command[0], 1)):
        with subprocess.Popen(
            [program, *command],
            cwd=place,
            env=environment(place),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                printed, errors = process.communicate(timeout=60)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also what an example that failed left running
        if process.returncode == 0:
            break
    assert process.returncode == 0, printed + errors
    return printed


PORT = r"(?<=:)(8000|8001|8090)\b|(?<=port[ =])(1883)\b"
"""The ports that examples listen at, and that of their broker."""


def with_free_ports(path):
    """The blocks of a page, each port in them another that is free, and that of the broker."""
    page, free = read(path), {}
    with contextlib.ExitStack() as held:
        for number in sorted({found.group() for found in re.finditer(PORT, page)}):
            free[number] = str(held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1])
    found = blocks(page)
    for block in found:
        block.text = re.sub(PORT, lambda number: free[number.group()], block.text)
    return found, int(free.get("1883", 0))


def is_open(address):
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


def places_of(place, file):
    """The addresses at which the fronts of a configuration listen."""
    if not file.endswith(".toml"):
        return []
    with open(os.path.join(place, file), "rb") as read_file:
        fronts = tomllib.load(read_file).get("front", {}).values()
    return [table[key] for table in fronts for key in ("listen", "grpc") if key in table]


@contextlib.contextmanager
def served(place, file):
    server = subprocess.Popen(
        [sys.executable, "-m", "edgeserve.cli", "serve", file],
        cwd=place,
        env=environment(place),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end_s = time.monotonic() + READY_S_MAX
        while not os.path.exists(os.path.join(place, "edgeserve", "bus")):
            assert server.poll() is None, server.stderr.read()
            assert time.monotonic() < end_s, "the server was not ready in time"
            time.sleep(0.02)
        while not all(map(is_open, places_of(place, file))):
            assert time.monotonic() < end_s, "a front was not ready in time"
            time.sleep(0.02)
        yield
    finally:
        server.terminate()
        server.communicate(timeout=30)
    assert server.returncode == 0


def with_examples():
    return [path for path in PAGES if any(re.search(r"\b(run|file): ", block.mark) for block in blocks(read(path)))]


def test_conformance_on_a_page_is_run():
    marks = {path: [block.mark for block in blocks(read(path)) if "Conformance)" in block.text] for path in PAGES}
    assert {path for path, found in marks.items() if found} >= {
        os.path.join("docs", "guide", "write-an-engine.md"),
        os.path.join("docs", "guide", "write-a-policy.md"),
    }
    assert [mark for found in marks.values() for mark in found if not mark.startswith("file: test_")] == []


HTTP_FRONT = ("starlette", "uvicorn", "PIL", "python_multipart")
NEEDED = {
    os.path.join("docs", "guide", "tracing.md"): ["opentelemetry.sdk"],
    os.path.join("docs", "guide", "write-a-command.md"): ["setuptools"],
    os.path.join("docs", "guide", "http.md"): [*HTTP_FRONT, "grpc", "tritonclient.http", "tritonclient.grpc"],
    os.path.join("docs", "guide", "openai.md"): [*HTTP_FRONT, "openai", "ollama"],
    os.path.join("docs", "guide", "mqtt.md"): ["aiomqtt", "PIL"],
}
"""Page -> the packages that its examples need, which not every Python of the tests has."""


def save_files_of(path, place):
    """The files of another page, which an example is built on."""
    for block in blocks(read(path)):
        if block.mark.startswith("file: "):
            with open(os.path.join(place, block.mark[len("file: ") :]), "w", encoding="utf-8") as file:
                file.write(block.text)


LONG = (
    "docs/start/robot.md",
    *(f"docs/guide/write-a-{what}.md" for what in ("policy", "front", "command", "tap")),
    *(f"docs/guide/{page}.md" for page in ("simulate", "asynchronous-engines", "http", "mqtt", "openai")),
)
"""Pages whose examples take so long that they are nightly."""


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=pytest.mark.nightly) if path in LONG else path for path in with_examples()]
)
def test_examples_run_and_print_what_the_page_says(path, place):
    printed, compared = None, 0
    for package in NEEDED.get(path, ()):
        pytest.importorskip(package, reason=f"the example of {path} needs it")
    found, broker_port = with_free_ports(path)
    if not shutil.which("curl") and any("curl " in block.text for block in found if "run: " in block.mark):
        pytest.skip("curl is not installed")
    with contextlib.ExitStack() as beside:
        served_now = None
        for block in found:
            named = re.match(
                r"(?:beside (?P<page>\S+), )?(?P<broker>broker, )?(?:served (?P<config>\S+), )?"
                r"(?P<verb>run|file): (?P<name>\S+)$",
                block.mark,
            )
            if named:
                if named["page"]:
                    save_files_of(os.path.join(os.path.dirname(path), named["page"]), place)
                with open(os.path.join(place, named["name"]), "w", encoding="utf-8") as file:
                    file.write(block.text)
                wanted = (named["broker"], named["config"]) if named["verb"] == "run" else None
                if wanted != served_now:  # what serves one example serves the next one, as for a reader
                    beside.close()
                    served_now = wanted
                    if named["broker"]:
                        beside.enter_context(broker(broker_port))
                    if named["config"]:
                        beside.enter_context(served(place, named["config"]))
                if named["name"].startswith("test_"):
                    run(place, "-m", "pytest", "-q", "-p", "no:cacheprovider", named["name"])
                elif named["verb"] == "run":
                    printed = run(place, named["name"])
            elif block.mark == "prints":
                assert block.text == printed, f"{path}, line {block.line}"
                printed, compared = None, compared + 1
            else:
                assert not block.mark or block.mark.startswith("drawn "), f"{path}, line {block.line}: {block.mark!r}?"
    assert compared, "an example that prints nothing shows nothing"


WORDS_MAX = 2000


def test_the_first_app_has_at_most_20_lines():
    app = next(block.text for block in blocks(read("README.md")) if block.mark == "run: app.py")
    lines = [line for line in app.splitlines() if line.strip()]
    assert 10 < len(lines) <= 20


@for_each(lambda: [path for path in PAGES if path.startswith(os.path.join("docs", "guide"))])
def test_a_page_of_the_guide_is_read_in_a_quarter_of_an_hour(path):
    assert len(read(path).split()) <= WORDS_MAX, "split it by task"


@for_each(lambda: PAGES)
def test_python_on_the_page_is_python(path):
    for block in blocks(read(path)):
        if block.language == "python":
            compile(
                block.text,
                f"{path}, line {block.line}",
                "exec",
                flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                dont_inherit=True,
            )


# --- configurations --------------------------------------------------------------------------------------------------

KINDS = {"device": schema.DeviceConfig, "lane": schema.LaneConfig, "model": schema.ModelConfig}


def check_keys(table):
    """Every key is one that exists, with a value of its type. What the sections refer to may stand elsewhere."""
    loading.read_table(schema.ServerConfig, table.get("server", {}), "[server]")
    for section, kind in KINDS.items():
        for name, keys in table.get(section, {}).items():
            loading.read_table(kind, keys, f"[{section}.{name}]", name=name)
    for name, keys in table.get("app", {}).items():
        loading._app(name, {"model": "m", **keys} if "node" not in keys else keys)


@for_each(lambda: PAGES)
def test_configurations_on_the_page_are_read(path):
    for block in blocks(read(path)):
        if block.language != "toml":
            continue
        try:
            check_keys(tomllib.loads(block.text))
            if block.mark == "file: edge.toml":
                loading.parse_config(tomllib.loads(block.text), tempfile.gettempdir())
        except (loading.ConfigError, tomllib.TOMLDecodeError) as error:
            raise AssertionError(f"{path}, line {block.line}: {error}") from error


KEYS_MAX = 74
"""Keys of the configuration: another one takes the place of one that is used less."""


def test_the_keys_are_few_and_each_stands_in_an_example():
    kinds = {**KINDS, "server": schema.ServerConfig, "app": schema.AppConfig}
    kinds.update(node=schema.NodeConfig, inputs=schema.TensorConfig)
    keys = {
        (section, item.metadata["key"] or item.name)
        for section, kind in kinds.items()
        for item in dataclasses.fields(kind)
        if "read" in item.metadata
    }
    shown = set()
    files = glob.glob(os.path.join(ROOT, "examples", "**", "*.toml"), recursive=True)
    on_pages = [block.text for page in PAGES for block in blocks(read(page)) if block.language == "toml"]
    for text in [*map(read, files), *on_pages]:
        shown |= keys_in(tomllib.loads(text))
    assert len(keys) <= KEYS_MAX
    assert sorted(keys - shown) == []


def keys_in(table):
    """(section, key) of a configuration's tables."""
    found = {("server", key) for key in table.get("server", {})}
    for section in KINDS:
        found |= {(section, key) for keys in table.get(section, {}).values() for key in keys}
    for app in table.get("app", {}).values():
        inside = [("app", app), *(("node", node) for node in app.get("node", ()))]
        inside += [("inputs", tensor) for tensor in app.get("inputs", {}).values()]
        found |= {(section, key) for section, keys in inside for key in keys}
    return found


def test_the_example_of_the_configuration_page_is_complete():
    first = next(
        block
        for block in blocks(read(os.path.join("docs", "reference", "configuration.md")))
        if block.language == "toml"
    )
    assert set(loading.parse_config(tomllib.loads(first.text)).apps) == {"reader"}


# --- links and commands ----------------------------------------------------------------------------------------------


def anchors(page):
    """Names of a page's headings, as hosts of Markdown make them."""
    prose = re.sub(r"(?ms)^```.*?^```$", "", page)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", title).lower()).replace(" ", "-")
        for title in re.findall(r"(?m)^#+ (.*?)\s*$", prose)
    }


@for_each(lambda: PAGES)
def test_links_lead_somewhere(path):
    page = re.sub(r"(?ms)^\s*```.*?^\s*```$", "", read(path))
    for target in re.findall(r"\]\(([^)\s]+)\)", page):
        if re.match(r"[a-z]+://", target):
            continue
        place, _, anchor = target.partition("#")
        full = os.path.normpath(os.path.join(ROOT, os.path.dirname(path), place)) if place else os.path.join(ROOT, path)
        assert os.path.exists(full), f"{path}: {target} does not exist"
        if anchor:
            with open(full, encoding="utf-8") as file:
                assert anchor in anchors(file.read()), f"{path}: {target}: no such heading"


FOLDERS = ("clients", "docs", "edgeserve", "examples", "jetson", "research", "scripts", "tests")
PYTHON = [
    os.path.relpath(path, ROOT)
    for pattern in ("*.py", *(os.path.join(folder, "**", "*.py") for folder in FOLDERS))
    for path in glob.glob(os.path.join(ROOT, pattern), recursive=True)
]
OWN = {  # what a page tells a reader to write is the reader's file
    block.mark.split()[-1]
    for path in PAGES
    for block in blocks(read(path))
    if re.search(r"(run|file): \S+$", block.mark)
}


def stale_files(text):
    """Code spans ``x.py``, ``a/b.py`` and ``a/b.py: name`` of no file, or of no file that has this name. The first
    folders of a path may be left out, and ``COMMIT:x.py`` is a file of that commit."""
    for _, span in re.findall(r"(?<!`)(`{1,2})([^`\n]+)\1(?!`)", text):
        for name, inside in re.findall(r"(?<![\w./*:-])([\w./-]+\.py)\b(?:: ?(\w+)$)?", span):
            paths = [path for path in PYTHON if f"/{path}".endswith(f"/{name}")]
            if name not in OWN and not any(inside in read(path) for path in paths):
                yield f"{name}: {inside}" if inside else name


@for_each(lambda: PAGES)
def test_files_named_on_the_page_exist(path):
    assert list(stale_files(re.sub(r"(?ms)^\s*```.*?^\s*```$", "", read(path)))) == []


@pytest.mark.parametrize("folder", ["edgeserve", "research", "scripts"])
def test_files_named_in_the_code_exist(folder):
    sources = [path for path in PYTHON if path.startswith(folder + os.sep)]
    assert [(path, name) for path in sources for name in stale_files(read(path))] == []


SHORT = [name for name in edgeserve.__all__ if not name.startswith("_")]  # stand for ``edgeserve.NAME``
FILES = ("edgeserve.service", "edgeserve.hpp")
NO_NAMES = (os.path.join("edgeserve", "taps", "spans.py"),)  # the attributes of spans are named alike


def dotted_names(text):
    """``edgeserve.x.y``, ``Runtime.x``, ``errors.X`` and what Python blocks and docstrings import, as whole paths."""
    for name in re.findall(r"(?<![\w./@\"'-])edgeserve(?:\.[A-Za-z_]\w*)+", text):
        if name not in FILES:
            yield name
    for module, many, one in re.findall(r"(?m)^ *from (edgeserve[\w.]*) import (?:\(([\w,\s]+)\)|([\w, ]+)$)", text):
        names = many or one
        yield from (f"{module}.{name.split(' as ')[0].strip()}" for name in names.split(",") if name.strip())
    for head, rest in re.findall(r"(?<![\w./\"'$-])([A-Za-z]\w*)((?:\.[A-Za-z]\w*)+)(?=[(`])", text):
        if head in SHORT and (head != "errors" or rest[1].isupper()):  # or it is a list of some function's
            yield f"edgeserve.{head}{rest}"


def resolves(name):
    """True if a dotted name exists: a module, or what a module or class has, annotated attributes included. A module
    whose library is not installed is looked for as a file, and what is in it as a word of that."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = os.path.join(ROOT, *parts[:count])
        if os.path.isdir(path) or os.path.exists(path + ".py"):
            break
    try:
        found = importlib.import_module(".".join(parts[:count]))
    except ImportError:
        return count == len(parts) or parts[count] in read(os.path.join(*parts[:count]) + ".py")
    for part in parts[count:]:
        if not hasattr(found, part):
            kinds = getattr(found, "__mro__", ())
            said = [item for kind in kinds for item in (*vars(kind).get("__annotations__", ()), *_slots(kind))]
            return part in said or re.search(rf"\bself\.{part}\b", inspect.getsource(found)) is not None
        found = getattr(found, part)
    return True


def _slots(kind):
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


@for_each(lambda: PAGES)
def test_dotted_names_on_the_page_exist(path):
    assert [name for name in dict.fromkeys(dotted_names(read(path))) if not resolves(name)] == []


def test_dotted_names_in_the_code_exist():
    """In docstrings, comments and messages of errors."""
    sources = [path for path in PYTHON if path.startswith("edgeserve" + os.sep) and path not in NO_NAMES]
    stale = [(path, name) for path in sources for name in dict.fromkeys(dotted_names(read(path))) if not resolves(name)]
    assert stale == []


def options_of(verb, rest):
    """The options of ``edgeserve VERB REST``; those of a front are the front's own."""
    name = next(iter(rest.split()), "")
    if verb == "front" and name in front.FRONTS:
        return set(front.front_parser(name)[0]._option_string_actions)
    return set(cli.verb_parser(verb)[0]._option_string_actions)


@for_each(lambda: PAGES)
def test_commands_on_the_page_exist(path):
    targets = set(re.findall(r"(?m)^([\w-]+):", read("Makefile")))
    own = set(re.findall(rf'entry-points."{cli.GROUP}"\]\n(\w+) = ', read(path)))  # that the page itself installs
    for code in code_of(read(path)):
        for line in code.splitlines():
            command = re.search(r"(?<![\w/.\[-])(?<!from )edgeserve ([a-z]+)\b(.*)", line)
            if command:
                verb = command.group(1)
                if verb in own:
                    continue
                assert verb in cli.VERBS, f"{path}: 'edgeserve {verb}' in {line!r}"
                rest = re.split(r"\s[#&|]|\s{3,}", command.group(2))[0]
                unknown = {word.split("=")[0] for word in rest.split() if word.startswith("--")} - options_of(
                    verb, rest
                )
                assert not unknown, f"{path}: 'edgeserve {verb}' has no {sorted(unknown)}"
            for script in re.findall(r"(?<![\w:/])(?:scripts|research)/[\w*/]+\.py", line):
                assert glob.glob(os.path.join(ROOT, script)), f"{path}: {script} does not exist"
            for target in re.findall(r"(?:^|\s)make ([a-z][\w-]*)\b", line):
                assert target in targets, f"{path}: 'make {target}' does not exist"


def test_no_page_installs_from_an_index_that_lacks_the_package():
    """Until there is a release; the page of installation says what messages mean."""
    said = {os.path.basename(path) for path in PAGES if re.search(r"pip install\s+'edgeserve-runtime", read(path))}
    assert said <= {"install.md", "aarch64.md"}  # the latter quotes tests


def test_each_row_of_the_table_of_attacks_names_a_test():
    rows = re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", read(os.path.join("docs", "develop", "attacks.md")))
    assert len(rows) > 20
    for path, name in rows:
        assert f"def {name}(" in read(os.path.join("tests", path)), f"{path} has no {name}"


def test_the_hosted_run_uses_the_pythons_that_the_script_knows():
    """The script tests on the oldest and the newest that it finds: the workflow has to bring these two."""
    script = read(os.path.join(".ci", "run"))
    bounds = [f"3.{re.search(rf'supported_{end}=([0-9]+)', script).group(1)}" for end in ("min", "max")]
    workflow = read(os.path.join(".github", "workflows", "ci.yml"))
    assert re.findall(r"(?m)^ +(3\.\d+)$", workflow) == bounds
    assert re.findall(r"(?m)^ +run: (.*)$", workflow) == [".ci/run"]
    assert tomllib.loads(read("pyproject.toml"))["project"]["requires-python"] == f">={bounds[0]}"


def test_hooks_run_the_tools_that_the_project_pins():
    entries = re.findall(r"(?m)^ +entry: (.*)$", read(".pre-commit-config.yaml"))
    assert entries and "rev:" not in read(".pre-commit-config.yaml")  # a second pin would differ one day
    for entry in entries:
        assert entry.startswith(".venv/bin/python -m "), entry
        for path in re.findall(r"\btests/[\w/]+\.py", entry):
            assert os.path.exists(os.path.join(ROOT, path)), entry


# --- what pages say of the code --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_parts_are_up_to_date(name):
    script = importlib.import_module(name)
    assert not drawn.stale(script.PAGE, script.parts(), script.SCRIPT), f"run python {script.SCRIPT}"


def test_every_key_of_the_configuration_is_on_its_page():
    page = read(os.path.join("docs", "reference", "configuration.md"))
    for kind in (schema.ServerConfig, *KINDS.values(), schema.AppConfig, schema.NodeConfig, schema.TensorConfig):
        comments = configuration.comments_of(kind)
        for item in loading.fields(kind):
            if "read" in item.metadata:
                assert f"| `{item.metadata['key'] or item.name}` |" in page
                assert len(comments[item.name]) > 5


def test_options_of_a_policy_are_on_its_page():
    from edgeserve.sched.policies import POLICIES
    from edgeserve.sched.policy_api.options import options_of

    for kind, policy in POLICIES.items():
        if policy.__module__.startswith("edgeserve."):  # the tutorial adds one of its own
            name = configuration.page_of(kind)
            page = read(os.path.join("docs", "guide", "policies", name))
            if "](../../reference/policy-options.md)" in page:
                continue  # which is drawn
            for option, known in options_of(policy.options_type).items():
                default = known.default
                if option == "trials":
                    continue  # every policy's: docs/guide/deadlines.md
                shown = str(default).lower() if isinstance(default, bool) else default
                assert f"| `{option}` | `{shown}` |" in page, f"docs/guide/policies/{name}: {kind} {option}"


def test_the_indexes_lead_to_every_policy_and_to_every_page_of_one():
    from edgeserve.sched.policies import POLICIES

    own = {name for name in os.listdir(os.path.join(ROOT, "docs", "guide", "policies")) if name.endswith(".md")}
    own -= {"README.md"}
    table = read(os.path.join("docs", "guide", "policies", "README.md"))
    index = read(os.path.join("docs", "README.md"))
    assert [name for name in sorted(own) if f"]({name})" not in table] == []
    assert [name for name in sorted(own) if f"](guide/policies/{name})" not in index] == []
    kinds = [kind for kind, policy in POLICIES.items() if policy.__module__.startswith("edgeserve.")]
    assert [kind for kind in kinds if f"[{kind}]({configuration.page_of(kind)})" not in table] == []


def test_every_page_of_the_docs_is_in_the_index():
    index = read(os.path.join("docs", "README.md"))
    own = {os.path.relpath(path, "docs") for path in PAGES if path.startswith("docs" + os.sep)} - {
        "README.md",
        "cover.md",
    }
    assert [name for name in sorted(own) if f"]({name}" not in index] == []


def reasons_in_the_code():
    """The hints of ``Rejected`` and ``Dropped``: the hints of the live side, and what is raised with a reason."""
    from edgeserve.live.errors import HINTS

    found = set(HINTS)
    for path in glob.glob(os.path.join(ROOT, "edgeserve", "**", "*.py"), recursive=True):
        text = read(path)
        for node in ast.walk(ast.parse(text)) if re.search(r"\b(Rejected|Dropped)\(", text) else ():
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") in ("Rejected", "Dropped")
                and len(node.args) == 2
                and isinstance(node.args[1], ast.Constant)
            ):
                found.add(node.args[1].value)
    return found


def test_every_reason_is_explained():
    reasons = reasons_in_the_code()
    assert "stopped" in reasons and "cannot_make_deadline" in reasons
    assert sorted(reasons - set(REASONS)) == []


def test_dependencies_are_those_of_the_project():
    project = tomllib.loads(read("pyproject.toml"))["project"]
    needed = project["dependencies"] + sum(project["optional-dependencies"].values(), [])
    names = {re.match(r"[\w-]+", item).group() for item in needed}
    first_cells = " ".join(re.findall(r"(?m)^\|([^\n]*)", read(os.path.join("docs", "develop", "dependencies.md"))))
    assert [name for name in sorted(names) if f"`{name}`" not in first_cells] == []


def rooms_of_the_package():
    """Its modules and packages, packages with a slash behind the name."""
    place = os.path.join(ROOT, "edgeserve")
    names = [name for name in os.listdir(place) if not name.startswith("_")]
    packages = [f"{name}/" for name in names if os.path.exists(os.path.join(place, name, "__init__.py"))]
    return [name for name in names if name.endswith(".py")] + packages


def test_architecture_names_every_place():
    page = read(os.path.join("docs", "develop", "architecture.md"))
    assert [name for name in rooms_of_the_package() if f"`{name}`" not in page] == []
    for path in glob.glob(os.path.join(ROOT, "edgeserve", "sched", "*", "[a-z]*.py")):
        room, name = path.split(os.sep)[-2:]
        assert f"`{room}/`" in page, room
        assert room == "policies" or f"`{name}`" in page, path


def test_the_map_for_contributors_names_every_room():
    section = read("CONTRIBUTING.md").split("\n## Map\n")[1].split("\n## ")[0]
    table = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {name for cell in table for name in re.findall(r"`([^`]+)`", cell)}
    assert sorted(set(rooms_of_the_package()) - named) == []
    assert [name for name in sorted(named) if not os.path.exists(os.path.join(ROOT, "edgeserve", name))] == []


INTERFACE = {  # heading of docs/reference/policy-interface.md -> class, and what of it is not for policies
    "Board": (Board, {"connect", "ends_ns"}),
    "Job": (
        Job,
        {
            "id",
            "demand_ns",
            "demand_worth",
            "breakdown",
            "queued",
            "state_bytes",
            "state_device",
            "cuts",
            "has_state",
            "tokens_in",
            "steps_total",
        },
    ),
    "Request": (
        RequestRecord,
        {
            "joins",
            "scopes",
            "breakdown",
            "log",
            "done_exits",
            "failure",
            "left_out",
            "leave_out",
            "part_hints",
            "fate",
            "fates",
            "learn",
            "hints_at",
            "note",
        },
    ),
    "Bid": (Bid, {"policy", "open_steps"}),
    "Expected end": (ExpectedEnd, {"count", "index"}),
    "Change": (Change, set()),
    "Latency": (
        BatchTime,
        {"observe", "forget", "set_speed", "set_clocks", "model", "lane", "age_ns", "version", "learns_work"},
    ),
}


@pytest.mark.parametrize("heading", sorted(INTERFACE))
def test_the_interface_of_policies_is_on_its_page_whole(heading):
    page = read(os.path.join("docs", "reference", "policy-interface.md"))
    section = re.split(r"^## ", page, flags=re.M)
    section = next(text for text in section if text.startswith(heading + "\n"))
    kind, inner = INTERFACE[heading]
    said = [*vars(kind), *getattr(kind, "__slots__", ()), *getattr(kind, "__annotations__", ())]
    said += re.findall(r"^        self\.(\w+)(?:: .+)? = ", inspect.getsource(kind), flags=re.M)
    names = {name for name in said if not name.startswith("_")} - inner
    missing = sorted(name for name in names if not re.search(rf"`{name}[`(\[]", section))
    assert missing == []


def test_the_changelog_knows_this_version():
    assert f"## {edgeserve.__version__}" in read("CHANGELOG.md")


# --- results ---------------------------------------------------------------------------------------------------------


def test_the_readme_can_be_read_in_one_sitting():
    assert len(read("README.md").splitlines()) <= 200


def unsourced(page):
    """Rows of tables with a measured number but no command since the last heading that makes it."""
    command, found = "", []
    for line in page.splitlines():
        if line.startswith("#"):
            command = ""
        command = command or next(
            iter(re.findall(r"`(python (?:scripts|research|examples)/[\w/]+\.py|make \w+)", line)), ""
        )
        cells = line.strip("| ").split("|") if line.startswith("|") else []
        if not command and any(re.fullmatch(r"[<>=~]* ?[\d.,]+ ?(ms|us|s|MB|%|x)?", cell.strip()) for cell in cells):
            found.append(line)
    return found


def test_numbers_in_tables_of_the_readme_name_the_command_that_makes_them():
    assert unsourced(read("README.md")) == []
    assert unsourced("# Speed\n| p50 | 3.2 ms |\n") == ["| p50 | 3.2 ms |"]
    assert unsourced("# Speed\n`python research/bench/bus.py`\n| p50 | 3.2 ms |\n") == []


def test_the_picture_says_in_words_what_it_shows():
    import xml.etree.ElementTree as ET

    picture = ET.fromstring(read(os.path.join("docs", "picture.svg")))
    names = [item.tag.split("}")[1] for item in picture.iter()]
    assert "title" in names and "desc" in names and "image" not in names
    assert "prefers-color-scheme: dark" in read(os.path.join("docs", "picture.svg"))
