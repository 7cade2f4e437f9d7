"""The shape of the code: who may import whom, where clocks and optional libraries may be, the size of functions,
docstrings.

The imports are read from the sources, those inside functions too; only what is imported for type checkers alone does
not count. A new room gets its line in ``ROOMS``.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections import Counter

from for_each import for_each
from parsed import tree_of

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FUNCTION_LINES_MAX = 80  # docstring and signature included: a longer function does two things
# Files of the package's top: the public ones.
LOOSE = {
    "",
    "__main__",
    "answer_streams",
    "answers",
    "app",
    "async_runtime",
    "child",
    "cli",
    "client",
    "compiled",
    "engine",
    "errors",
    "interpreter",
    "lognormal",
    "owners",
    "policy",
    "priority_class",
    "python_file",
    "request",
    "request_options",
    "runtime",
    "server",
    "tap",
    "texts",
    "units",
    "waits",
}

GROUND = {
    "units",
    "errors",
    "answer_streams",
    "answers",
    "request",
    "request_options",
    "owners",
    "priority_class",
    "config",
    "child",
    "compiled",
    "lognormal",
    "interpreter",
    "texts",
    "waits",
}  # level 0
OUTSIDE = {"engines", "offload", "ipc", "device"}  # level 2: threads, sockets, engines

# Room -> what it may import besides itself and the ground. The package itself ("") gives its version.
ROOMS = {
    "units": set(),
    "errors": set(),
    "answer_streams": {"answers", "interpreter", "waits"},
    "answers": {"interpreter"},
    "request": set(),
    "request_options": set(),
    "owners": set(),
    "priority_class": set(),
    "config": {"priority_class"},
    "child": {"interpreter"},
    "compiled": set(),
    "lognormal": set(),
    "interpreter": set(),
    "texts": set(),
    "waits": set(),
    "sched": set(),
    "loop": {"sched.protocol", "sched.latency.window"},
    "engines": {"", "predict"},
    "ipc": set(),
    "offload": {"engines"},
    "device": {"sched.protocol"},
    "predict": set(),
    "predict.serving": {"predict", "engines", "sched", "live"},
    "taps": {"sched", ""},
    "sim": {"sched", "loop", "taps", "device.filter"},
    "testing": {"sched", "loop", "sim", "taps", "engines.base", "front", "client", "runtime", "cli"},
    "live": {"sched", "loop", "tap", ""} | OUTSIDE,  # taps and predictions by the names of live/plug_ins.py
    "policy": {"sched"},
    "engine": {"engines"},
    "tap": {"sched"},
    "app": {"engines.base"},
    "runtime": {"sched", "live", "tap", "taps", "testing.invariants", "app", ""} | OUTSIDE,
    "async_runtime": {"runtime", "live"},
    "python_file": {"async_runtime", "runtime"},
    "server": {"live", "runtime", "python_file", "taps", "front", "sched", ""} | OUTSIDE,
    "client": {"ipc", ""},
    "front": {"client", "ipc.other_end", "ipc.connections", ""},
    "fronts": {"front", "client", "engines.image", ""},
    "fronts.http": {"front", "client", "taps", ""},
    "fronts.ray": {"async_runtime", "runtime", "live.errors", ""},
    "commands": {
        "sched",
        "loop",
        "sim",
        "predict",
        "live",
        "taps",
        "runtime",
        "python_file",
        "client",
        "front",
        "fronts",
        "",
    }
    | OUTSIDE,
    "cli": {"server", "commands", ""},
    "__main__": {"cli"},
    "": {"app", "runtime", "async_runtime", "client"},
}

# What a front imports, as a stranger's does; and the exceptions, with what each is for.
FRONTS = ("fronts",)
FRONT_MAY = ("", "front", "client", "answers", "answer_streams", "errors", "priority_class", "units", "waits")
FRONT_EXCEPTIONS = {
    "fronts.http.backend": {"request_options"},  # the form of a traceparent
    "fronts.http.health_routes": {"taps.metrics_endpoint"},  # /metrics
    "fronts.http.kserve": {"config.gone"},  # what Triton's shared memory is answered
    "fronts.http.kserve_routes": {"config.gone"},
    "fronts.http.page_routes": {"taps.timeline", "taps.trace"},  # the page's timeline
    "fronts.http.grpc_service": {"texts"},  # tensors of texts
    "fronts.http.tensors": {"texts"},
    "fronts.image_apps": {"engines.image"},  # resized as the server resizes
    "fronts.ros_messages": {"engines.image"},
    "fronts.ray.client": {"request_options"},
    "fronts.ray.deployment": {"config.loading"},
    "fronts.ray.replica": {"async_runtime", "config.loading", "config.schema", "live.errors"},  # it embeds the runtime
}

# The same inside ``sched``, lowest first. Shared objects know no policy; policies see ``policy_api`` and nothing above.
SCHED_ROOMS = {
    "protocol": set(),
    "requests": {"protocol"},
    "latency": {"requests"},
    "resources": {"protocol", "requests", "latency"},
    "policy_api": {"protocol", "requests", "latency", "resources"},
    "policies": {"protocol", "requests", "latency", "resources", "policy_api"},
    "plan": {"protocol", "requests", "latency", "resources", "policy_api", "policies"},
    "published": {"protocol", "requests", "latency", "resources", "policy_api", "policies"},
    "core": {"protocol", "requests", "latency", "resources", "policy_api", "policies"},
}

PUBLISHED = "sched.published"  # policies as papers have them: loaded by name, imported by nothing
PUBLISHED_MAY = {"common"}  # rooms of sched/policies that they use

# Library -> the only modules that may import it.
OPTIONAL = {
    "onnxruntime": {
        "engines.onnx",
        "engines.onnx_ports",
        "engines.onnx_providers",
        "engines.onnx_settings",
        "engines.onnx_failures",
        "engines.onnx_libraries",
        "engines.lm",
    },
    "tensorrt": {"engines.tensorrt"},
    "torch": {"engines.torch", "engines.lm"},
    "cuda": {"engines.cuda"},
    "pynvml": {"device.nvml"},
    "onnx": {"engines.image_graph", "engines.tensorrt.half", "commands.fit", "commands.lm_model"},
    "sklearn": {"commands.fit"},
    "threadpoolctl": {"commands.fit"},
    "starlette": {
        "fronts.http.asgi",
        "fronts.http.audio_routes",
        "fronts.http.kserve_routes",
        "fronts.http.chat_routes",
        "fronts.http.forms",
        "fronts.http.health_routes",
        "fronts.http.front",
        "fronts.http.ollama_routes",
        "fronts.http.page_routes",
    },
    "uvicorn": {"fronts.http.connections", "fronts.http.front"},
    "uvloop": {"fronts.http.front"},
    "grpc": {"fronts.http.grpc_service"},
    "google": {"fronts.http.grpc_messages", "fronts.http.grpc_service"},
    "PIL": {"front.images", "commands", "fronts"},
    "av": {"fronts.sources"},
    "gi": {"fronts.sources"},
    "rosbags": {"fronts.bag", "fronts.ros_messages"},
    "wyoming": {"fronts.voice_answers", "fronts.wyoming", "fronts.wyoming_events"},
    "zeroconf": {"fronts.mdns"},
    "aiomqtt": {"fronts.mqtt", "fronts.mqtt_cameras", "fronts.mqtt_inbox"},
    "paho": {"fronts.mqtt"},
    "prometheus_client": {"taps"},
    "opentelemetry": {"taps"},
    "pytest": {"testing"},
    "transformers": {"engines.lm"},
    "tokenizers": {"engines.lm", "commands.lm_model"},
    "jinja2": {"engines.lm"},
    "llama_cpp": {"engines.lm"},
    "ctranslate2": {"engines.speech"},
    "gguf": {"commands.lm_model"},
    "ray": {"fronts.ray.deployment"},
    "hypothesis": set(),
}

PURE = ("sched", "loop", "device.filter")  # the last is the simulator's, too
METHODS_TOO = GROUND | {"sched", "loop", "taps", "sim", "runtime"}  # what others write code against
MAY_READ_THE_CLOCK = (
    "live",
    "taps.span_export",
    "waits",
    "client",
    "front.contract",
    "fronts.camera_front",
    "ipc.courier",
    "fronts.ray.calls",
    "commands",
    "testing.engine_conformance",
    "testing.tap_conformance",
    "engines.tensorrt.build_process",
)  # a program of its own
IMPURE = {
    "time",
    "datetime",
    "threading",
    "socket",
    "select",
    "selectors",
    "asyncio",
    "multiprocessing",
    "subprocess",
    "queue",
    "concurrent",
    "signal",
    "os",
    "io",
    "random",
    "zmq",
    "ssl",
    "ctypes",
    "mmap",
    "secrets",
    "uuid",
}


def sources(*folders):
    """Path relative to the root -> source, of every Python file below."""
    found = {}
    for folder in folders:
        for place, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in sorted(names):
                if name.endswith(".py"):
                    path = os.path.join(place, name)
                    with open(path, encoding="utf-8") as file:
                        found[os.path.relpath(path, ROOT)] = file.read()
    return found


def module_of(path):
    """``edgeserve/sched/resources/lanes.py`` -> ``sched.lanes``; the package itself is ``""``."""
    name = path[len("edgeserve" + os.sep) : -len(".py")].replace(os.sep, ".")
    return name[: -len("__init__")].rstrip(".") if name.endswith("__init__") else name


def is_for_type_checkers(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def is_package(module):
    return os.path.isdir(os.path.join(ROOT, "edgeserve", *module.split(".")))


def nodes_of(tree):
    """Every node that runs: all but what stands below ``if TYPE_CHECKING``."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for child in ast.iter_child_nodes(node):
            waiting.extend(child.orelse if is_for_type_checkers(child) else (child,))


class Parsed(dict):
    """Made at the first use: processes that only collect these tests need not parse everything."""

    def __init__(self, keys, make):
        super().__init__((key, None) for key in keys)
        self.make = make

    def __getitem__(self, key):
        if super().__getitem__(key) is None:
            self[key] = self.make(key)
        return super().__getitem__(key)


SOURCES = sources("edgeserve")
EVERYTHING = sources("edgeserve", "scripts", "research", "tests", "examples")
PATHS = {module_of(path): path for path in SOURCES}
TREES = Parsed(PATHS, lambda module: tree_of(SOURCES[PATHS[module]]))


def statements(body, everything=False):
    """Every statement that runs, inner ones too: all but what stands below ``if TYPE_CHECKING``, unless ``everything``
    is set. Expressions hold no imports and are most of a tree."""
    waiting = [*body]
    while waiting:
        node = waiting.pop()
        if is_for_type_checkers(node) and not everything:
            waiting += node.orelse
            continue
        yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            waiting += getattr(node, field, ())


def imports_of(module, everything=False):
    """Full names of the modules that a module imports."""
    found = set()
    for node in statements(TREES[module].body, everything):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import; write the whole name"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                inner = whole[len("edgeserve.") :] if whole.startswith("edgeserve.") else None
                found.add(whole if inner in TREES else node.module)
    return found


IMPORTS = Parsed(PATHS, imports_of)


def inner(module):
    """The imports of a module from this package, without the package's name."""
    return {name[len("edgeserve") :].lstrip(".") for name in IMPORTS[module] if name.split(".")[0] == "edgeserve"}


def within(name, room):
    return name == room or (room != "" and name.startswith(room + "."))


@for_each(lambda: sorted(TREES))
def test_imports_go_down_as_the_table_says(module):
    room = max((room for room in ROOMS if within(module, room)), key=len, default=None)
    assert room is not None, f"edgeserve.{module} has no line in ROOMS"
    may = GROUND | ROOMS[room] | ({room} if room else set())
    if room in GROUND:
        may = ({"units", "errors", room} | ROOMS[room]) - ({"errors"} if room == "units" else set())
    wrong = sorted(name for name in inner(module) if not any(within(name, allowed) for allowed in may))
    assert wrong == [], f"edgeserve.{module} ({room}) must not import {wrong}"


@for_each(lambda: sorted(name for name in TREES if name.split(".")[0] in FRONTS))
def test_a_front_imports_what_a_strangers_may(module):
    seen = {name for name in inner(module) if not within(name, module.split(".")[0])}
    more = {name for name in seen if not any(within(name, room) for room in FRONT_MAY)}
    assert more == FRONT_EXCEPTIONS.get(module, set()), f"edgeserve.{module}: use edgeserve.front, or mend the list"


@for_each(lambda: sorted(name for name in TREES if name.startswith("sched.")))
def test_inside_sched_imports_go_down_too(module):
    room = module.split(".")[1]
    assert room in SCHED_ROOMS, f"edgeserve/sched/{room} has no line in SCHED_ROOMS"
    seen = {name.split(".")[1] for name in inner(module) if name.startswith("sched.")}
    assert seen <= SCHED_ROOMS[room] | {room}, f"{module} imports {sorted(seen - SCHED_ROOMS[room] - {room})}"


@for_each(lambda: sorted(name for name in TREES if name.startswith("sched.policies.")))
def test_policies_share_only_what_is_common(module):
    where = module.split(".")[2]
    seen = {name.split(".")[2] for name in inner(module) if name.startswith("sched.policies.")}
    may = {where} if where == "common" else {"common", where}
    assert seen <= may, f"{module} imports {sorted(seen - may)}"


@for_each(lambda: sorted(TREES))
def test_published_policies_are_imported_by_nothing_and_know_no_other_paper(module):
    """Not even for type checkers. They use what policies share, and what lies in their own folder or ``common``."""
    paper = ".".join(module.split(".")[:3])
    names = {name[len("edgeserve.") :] for name in imports_of(module, everything=True)}
    wrong = [
        name
        for name in names
        if within(name, PUBLISHED)
        and not (within(module, PUBLISHED) and any(within(name, room) for room in (paper, f"{PUBLISHED}.common")))
    ]
    assert wrong == [], f"{module} imports {sorted(wrong)}"
    if within(module, PUBLISHED):
        seen = {name.split(".")[2] for name in names if name.startswith("sched.policies.")}
        assert seen <= PUBLISHED_MAY, f"{module} imports {sorted(seen - PUBLISHED_MAY)}"


def test_a_scheduler_of_other_policies_brings_no_published_one():
    code = (
        "import sys; import edgeserve.sched.core.build, edgeserve.policy, edgeserve.live.preflight; "
        "from edgeserve.sched.policies import POLICIES; known = 'orloj' in POLICIES and sorted(POLICIES); "
        f"assert not [name for name in sys.modules if name.startswith('edgeserve.{PUBLISHED}')]; "
        "print(POLICIES['orloj'].__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout.strip() == "edgeserve.sched.published.orloj.orloj", done.stderr


WAITS = {"select": "readable_files", "wait_for": "await_within"}
"""Waits of the standard library that fail with many open files, or lose a cancellation: what is used instead."""


@for_each(lambda: sorted(set(TREES) - {"waits"}))
def test_waits_are_those_of_one_module(module):
    text = SOURCES[PATHS[module]]
    for node in nodes_of(TREES[module]) if any(f".{name}" in text for name in WAITS) else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in WAITS:
            name = f"{node.value.id}.{node.attr}"
            assert name not in ("select.select", "asyncio.wait_for"), (
                f"{module}: waits.{WAITS[node.attr]} keeps its word"
            )


def test_only_public_modules_lie_at_the_top():
    assert {name for name in TREES if "." not in name and not is_package(name)} | {""} == LOOSE


def test_no_file_name_stands_three_times():
    """A name in a message, a trace or a search leads to one file, or to one of two."""
    times = Counter(os.path.basename(path) for path in PATHS.values())
    assert [name for name, count in times.items() if count > 2 and name != "__init__.py"] == []


TWICE = {"App", "Node"}
"""An app and its nodes as a program writes them, and as the scheduler has them."""


def test_no_name_of_a_class_stands_twice():
    nodes = [node for module in TREES for node in statements(TREES[module].body, everything=True)]
    times = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert {name for name, count in times.items() if count > 1} == TWICE


def test_no_two_modules_import_each_other_not_even_for_type_checkers():
    graph = {module: imports_of(module, everything=True) for module in TREES if module}  # the package is its version
    graph = {
        module: {name[len("edgeserve.") :] for name in names if name[len("edgeserve.") :] in TREES} - {module}
        for module, names in graph.items()
    }
    assert cycles(graph) == []


def cycles(graph):
    """The strongly connected components of more than one module (Tarjan's, without recursion by peeling instead)."""
    left = {module: set(names) for module, names in graph.items()}
    while True:  # what imports nothing that is left, or is imported by nothing that is left, is in no cycle
        imported = set().union(*left.values()) if left else set()
        ends = {module for module, names in left.items() if not names & set(left) or module not in imported}
        if not ends:
            return sorted(left)
        left = {module: names - ends for module, names in left.items() if module not in ends}


@for_each(lambda: sorted(name for name in TREES if any(within(name, room) for room in PURE)))
def test_sched_and_loop_have_no_clock_no_thread_and_no_io(module):
    outside = {name.split(".")[0] for name in IMPORTS[module]} - {"edgeserve"}
    assert not outside & IMPURE, f"{module} imports {sorted(outside & IMPURE)}"
    assert not {name for name in outside if name == "numpy" or name in OPTIONAL} - {"numpy"}
    calls = {
        node.func.id
        for node in nodes_of(TREES[module])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"open", "print", "input", "exec", "eval", "__import__"}


@for_each(lambda: sorted(TREES))
def test_the_clock_is_read_where_time_enters_and_handed_in_elsewhere(module):
    if "time" in IMPORTS[module]:
        assert any(within(module, room) for room in MAY_READ_THE_CLOCK), f"{module} imports time: take a clock instead"


@for_each(lambda: sorted(TREES))
def test_optional_libraries_are_imported_by_the_one_module_that_needs_them(module):
    for name in sorted({name.split(".")[0] for name in IMPORTS[module]} & set(OPTIONAL)):
        assert any(within(module, home) for home in OPTIONAL[name]), f"{module} imports {name}"


def test_unit_tests_never_sleep():
    waits_for_children = os.path.join("tests", "unit", "offload", "test_process.py")  # processes end in their own time
    rooms = (os.path.join("tests", "unit", ""), os.path.join("tests", "sim", ""))
    quiet = [path for path in EVERYTHING if path.startswith(rooms) and path != waits_for_children]
    assert len(quiet) > 50
    for path in quiet:
        sleeps = [
            node.lineno
            for node in (ast.walk(tree_of(EVERYTHING[path])) if ".sleep(" in EVERYTHING[path] else ())
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "sleep"
            and not (isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
        ]  # lets others run
        assert sleeps == [], path


def test_functions_are_of_a_size_that_fits_the_head():
    too_long = [
        f"{path}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path, text in EVERYTHING.items()
        for node in (ast.walk(tree_of(text)) if may_have_a_long_function(text) else ())
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert too_long == []


def may_have_a_long_function(text):
    """True if so many lines lie between a function's first one and the next definition outside: most files need no
    parser."""
    open_at = {}  # indentation -> line
    for number, line in enumerate(text.splitlines() + ["def end():"]):
        start = line.lstrip(" ")
        if start.startswith(("def ", "async def ", "class ")):
            indent = len(line) - len(start)
            if any(number - begun > FUNCTION_LINES_MAX for at, begun in open_at.items() if at >= indent):
                return True
            open_at = {at: begun for at, begun in open_at.items() if at < indent}
            if not start.startswith("class "):
                open_at[indent] = number
    return False


def test_every_source_starts_with_the_future_annotations():
    for module, path in PATHS.items():
        modules = [node.module for node in TREES[module].body if isinstance(node, ast.ImportFrom)]
        assert "__future__" in modules or not TREES[module].body[1:], path


def public_without_docstring():
    """``module: name`` of each public module, class and function that promises nothing in words."""
    for module in TREES:
        tree = TREES[module]
        if ast.get_docstring(tree) is None and tree.body:
            yield f"edgeserve.{module}"
        for node in tree.body:
            yield from undocumented(node, module)


def undocumented(node, where):
    """The verbs' two functions are promised once, in ``cli``. A subclass's methods inherit what the base promises."""
    if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
        return
    if node.name in ("main", "add_arguments") and within(where, "commands") or where == "server":
        return
    if ast.get_docstring(node) is None:
        yield f"edgeserve.{where}: {node.name}"
    if isinstance(node, ast.ClassDef) and not node.bases and where.split(".")[0] in METHODS_TOO:
        for child in node.body:
            yield from undocumented(child, f"{where}: {node.name}")


def test_everything_public_says_what_it_promises():
    assert list(public_without_docstring()) == []


def test_every_planted_bug_still_fits_its_line_and_is_python():
    spec = importlib.util.spec_from_file_location("plant_bugs", os.path.join(ROOT, "scripts", "dev", "plant_bugs.py"))
    plant_bugs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plant_bugs)
    stale = []
    for bug in plant_bugs.BUGS:
        text = SOURCES[os.path.normpath(os.path.join("edgeserve", "sched", *bug.file.split("/")))]
        if text.count(bug.old) != 1:
            stale.append(f"{bug.name}: {bug.old!r} stands {text.count(bug.old)} times in {bug.file}")
        else:
            ast.parse(text.replace(bug.old, bug.new))
        assert all(os.path.exists(os.path.join(ROOT, test.split("::")[0])) for test in bug.tests), bug.name
    assert stale == [], "mend scripts/dev/plant_bugs.py"


def test_importing_the_package_is_quick_and_brings_no_engine():
    code = (
        "import sys; before = set(sys.modules); import edgeserve; "
        "print(sorted(name for name in set(sys.modules) - before if name.startswith('edgeserve')), "
        "sorted({name.split('.')[0] for name in sys.modules} & {'numpy', 'zmq', 'onnxruntime', 'torch', 'rich'}))"
    )
    # Choosing a core brings the module that chooses it.
    env = {key: value for key, value in os.environ.items() if key != "EDGESERVE_CORE"}
    took_us = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            cwd=ROOT,
            env=env,
        )
        assert done.stdout.strip() == "['edgeserve'] []"
        line = next(line for line in done.stderr.splitlines() if line.split("|")[-1].strip() == "edgeserve")
        took_us.append(int(line.split("|")[1]))
    assert min(took_us) < 300_000


def test_a_docstring_that_says_when_it_is_true_is_of_a_question():
    wrong = []
    for path in TREES:
        for node in statements(TREES[path].body, everything=True):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                says = (ast.get_docstring(node) or "").startswith("True if")
                returns = "" if node.returns is None else ast.dump(node.returns)
                wrong += [f"{path}: {node.name}"] if says and "'bool'" not in returns else []
    assert wrong == []
