"""House rules as tests, one test a rule; each lists everything that breaks it."""

import ast
import importlib.util
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "roamcast"
MODULES = sorted(PACKAGE.rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

PURE = {"model", "matching", "channels", "overlay", "placement", "identity", "broker"}
MACHINES = PURE - {"model", "matching", "placement"}

# Imports point towards `model`; each room names the rooms it may use (docs/architecture.md).
MAY_IMPORT = {
    "errors": set(),
    "files": {"errors"},
    "model": {"errors"},
    "matching": {"model", "errors"},
    "placement": {"model", "errors"},
    "channels": {"model", "matching", "errors"},
    "identity": {"model", "matching", "errors", "files"},
    "overlay": {"model", "matching", "channels", "placement", "identity", "errors"},
    "broker": {"model", "matching", "channels", "overlay", "placement", "identity", "errors"},
    "journal": {"model", "files", "errors"},
    # identity: the user agent's rules are written once and run live and in Spark (decision 0050)
    # channels: a plan replays a broker's own choice of channels (decision 0045)
    "pipeline": {"model", "matching", "placement", "journal", "identity", "channels"}
    | {"files", "errors"},
    "transport": {"model", "channels", "files", "errors"},
    # identity: the SDK signs registrations and opens mail with the person's own keys
    # overlay: the ends of flows, `overlay/flows/cursor.py`, are at people
    "client": {"model", "matching", "channels", "overlay", "identity", "transport"}
    | {"files", "errors"},
    "sim": PURE | {"journal", "errors"},
    "live": PURE | {"journal", "pipeline", "transport", "files", "errors"},
}
ANYTHING = {"lab", "commands", "cli", "__init__", "__main__"}

LINES_MAX = 600
"""Lengths follow ideas; a module beyond this is likely to hold two of them."""

LONGER = {
    "broker.py",
    "sim/workloads/broker.py",
    "channels/server/contexts.py",
    "channels/failover/replication.py",
    "channels/sessions/hub.py",
}
"""One idea that is longer: the whole broker, everybody who uses it and what they are promised; the
map and its updates, and the frames of those who watch, which every PUT passes; the disk of a
broker, from a part's write to the followers and the hand-over."""

CLOCKS = re.compile(
    r"\b(time\.(time|monotonic|perf_counter)(_ns)?\(|datetime\.(now|utcnow|today)\(|uuid[14]\(|"
    r"\brandom\.(random|choice|choices|randint|shuffle|sample|uniform|seed)\(|"
    r"np\.random\.(rand|randn|randint|random|choice|seed|shuffle)\(|default_rng\(\))"
)
IMPURE_IMPORTS = re.compile(r"^\s*(import|from) (random|socket|asyncio|threading)\b", re.MULTILINE)


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def short(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def assert_none(problems: Iterable[str]) -> None:
    found = sorted(problems)
    if found:
        pytest.fail(f"{len(found)} found:\n  " + "\n  ".join(found), pytrace=False)


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
            if node.module == "roamcast":
                names = [f"roamcast.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {n.split(".")[1] for n in names if n.startswith("roamcast.") and "." in n}
    return found


def test_imports_point_towards_the_model() -> None:
    assert_none(
        f"{short(path)} imports {other}"
        for path in MODULES
        if room(path) not in ANYTHING
        for other in imported_rooms(path) - {room(path)} - MAY_IMPORT.get(room(path), set())
    )


def test_every_room_is_known() -> None:
    assert {room(path) for path in MODULES} <= set(MAY_IMPORT) | ANYTHING


def test_a_module_is_one_idea_and_says_which() -> None:
    assert_none(
        [
            *(
                f"{short(path)} has more than {LINES_MAX} lines"
                for path in MODULES
                if short(path) not in LONGER and len(text_of(path).splitlines()) > LINES_MAX
            ),
            *(
                f"{short(path)} has no docstring"
                for path in MODULES
                if not ast.get_docstring(tree_of(path))
            ),
        ]
    )


def test_time_and_randomness_are_inputs() -> None:
    assert_none(
        [
            *(
                f"{short(path)} calls {found.group()}"
                for path in MODULES
                if room(path) in PURE | {"sim", "journal"}
                for found in CLOCKS.finditer(text_of(path))
            ),
            *(
                f"{short(path)} has {found.group().strip()}"
                for path in MODULES
                if room(path) in MACHINES
                for found in IMPURE_IMPORTS.finditer(text_of(path))
            ),
        ]
    )


def test_tests_mirror_the_source() -> None:
    """A folder of tests has the name of a folder of the source, at every depth."""
    extra = {"bench", "page"}  # benches lie beside the package; the page is built from web/
    folders = [p for p in (ROOT / "tests").rglob("*") if p.is_dir() and p.name[0] not in "_."]
    assert_none(
        f"tests/{folder.relative_to(ROOT / 'tests')} mirrors no room"
        for folder in folders
        if not (PACKAGE / folder.relative_to(ROOT / "tests")).is_dir() and folder.name not in extra
    )


# --- words


OUT = {"told", "said", "kept", "heard", "peer", "peers"}
"""Words that name nothing that leaves a function (docs/glossary.md has the words to use)."""

OUT_ALONE = {"one"}
"""Names that say nothing by themselves: no parameter, field or function has one of them."""

OUT_IN = {
    "object": {"channels", "live", "client", "broker"},  # what is on the map is a context
    "objects": {"channels", "live", "client", "broker"},
}
AGENT_ROOMS = {"identity"}
"""A user agent may be called agent; AMS's agent is a relay."""

ALLOWED_WORDS = {
    "model/records.py": "peer",
    "pipeline/ingest/run.py": "agent",
}
"""What is left of them, by module. Only ever remove: a name that has gone must go here, too."""


def defined_names(path: Path) -> Iterator[str]:
    """Give a module's name, and the names of what it defines that leaves a function."""
    yield from path.relative_to(PACKAGE).with_suffix("").parts
    yield from assigned(tree_of(path).body)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef):
            yield node.name
            yield from assigned(node.body)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
            given = node.args
            named = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
            yield from (one.arg for one in named if one is not None)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def assigned(body: list[ast.stmt]) -> Iterator[str]:
    for part in body:
        targets: list[ast.expr] = []
        if isinstance(part, ast.Assign):
            targets = part.targets
        elif isinstance(part, ast.AnnAssign):
            targets = [part.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def words_of(name: str) -> set[str]:
    """Take `heard_us`, `HeardBy` and `HEARD_MAX` apart."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}


def out_in(path: Path) -> set[str]:
    out = OUT | {word for word, rooms in OUT_IN.items() if room(path) in rooms}
    return out if room(path) in AGENT_ROOMS else out | {"agent", "agents"}


def used_words() -> dict[str, set[str]]:
    found = {
        short(path): {
            name
            for name in defined_names(path)
            if name in OUT_ALONE or words_of(name) & out_in(path)
        }
        for path in MODULES
    }
    return {path: names for path, names in found.items() if names}


def test_words_that_are_out_name_nothing() -> None:
    assert_none(
        f"{path}: {name}"
        for path, names in used_words().items()
        for name in names - set(ALLOWED_WORDS.get(path, "").split())
    )


def test_the_list_of_allowed_words_only_shrinks() -> None:
    used = used_words()
    assert_none(
        f"remove {name!r} of {path} from ALLOWED_WORDS"
        for path, names in ALLOWED_WORDS.items()
        for name in set(names.split()) - used.get(path, set())
    )


SHARED_NAMES = {
    "Fault": "a journal record; what the simulator does",
    "Settings": "of the service; of a Spark session",
    "Watchdog": "the machine, and its address",
}
"""Classes of one name in several modules, each with the reason."""


def test_one_class_name_has_one_home() -> None:
    homes = defaultdict(list)
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(short(path))
    shared = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert_none(
        [
            *(f"{name}: {', '.join(shared[name])}" for name in shared.keys() - SHARED_NAMES),
            *(f"remove {name!r} from SHARED_NAMES" for name in SHARED_NAMES.keys() - shared),
        ]
    )


# --- timers


WORDED_TIMERS = {
    "overlay/casts/casts.py",
    "overlay/casts/consents.py",
    "overlay/casts/desk.py",
    "overlay/casts/delivery.py",
    "overlay/casts/endings.py",
    "overlay/casts/handing.py",
    "overlay/casts/lookups.py",
    "overlay/casts/reports.py",
    "overlay/casts/results.py",
    "overlay/consumers/desk.py",
    "overlay/flows/flows.py",
    "overlay/handoff/handoff.py",
}
"""Modules whose timers still have words for kinds. Only ever remove."""


def is_word(node: ast.expr) -> bool:
    """Whether a timer's key says in words of which kind it is: "trim", (HOLD, session)."""
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and is_word(node.elts[0])
    if isinstance(node, ast.Name):
        return node.id.isupper() or node.id == "what"
    return isinstance(node, ast.JoinedStr | ast.Constant)


def test_kinds_of_timers_are_structs() -> None:
    worded = {
        short(path)
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and node.args
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"set", "sooner", "cancel"}
        and chain(node.func.value)[-1:] in (["timers"], ["_timers"])
        and is_word(node.args[0])
    }
    assert_none(
        [
            *(f"{path}: make the kinds `Timer` structs" for path in worded - WORDED_TIMERS),
            *(f"remove {path!r} from WORDED_TIMERS" for path in WORDED_TIMERS - worded),
        ]
    )


# --- drivers


BROKER_READS = (
    *("find", "get", "page", "count", "price", "steps", "nearest", "prepared"),  # what people ask
    *(
        "rules_for",
        "default_rules",
        "publication_for",
        "webhooks_of",
        "webhooks",
    ),  # what is one's own
    *("name", "epoch", "map_settings", "class_of_group", "class_of_client", "takes"),  # for links
    *("held", "overlay_view", "placement_view", "drain_view", "sessions_of"),  # for operators
    *("node", "check_place", "check_newcomer"),  # for who comes, and where to
    *("remembers", "past_stays_us", "blur"),  # for questions about the past
    *("cast_view", "cast_body", "cast_leaves", "consents", "key_of"),  # for senders, receipts
)
"""What drivers may read of a broker beside giving it inputs; none of these changes it."""


def chain(node: ast.expr) -> list[str]:
    """Take `self.broker.hub` apart."""
    if isinstance(node, ast.Attribute):
        return [*chain(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else []


def test_drivers_hold_no_policy() -> None:
    """Whoever holds a broker gives it inputs and reads; its parts are reached through it alone.

    `settings.server` and uvicorn's `server` are others: a map server is found as `broker.server`.
    """
    assert_none(
        f"{short(path)}:{node.lineno}: {'.'.join(names)}"
        for path in MODULES
        if room(path) == "live"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute)
        and len(names := chain(node)) > 1
        and (
            (names[-2].strip("_") == "broker" and names[-1] not in (*BROKER_READS, "receive"))
            or names[-2].strip("_") == "hub"
        )
    )


# --- pages and commands


def test_nothing_names_a_registry_host_or_a_workplace() -> None:
    banned = re.compile(r"pypi\.(org|python)|pythonhosted|registry\.npmjs|deb\.debian\.org|/work/")
    listed = checked_in_files()
    assert_none(
        str(path.relative_to(ROOT))
        for path in listed
        if path.name != "test_tidy.py"
        and path.suffix != ".png"
        and banned.search(path.read_text(encoding="utf-8", errors="ignore"))
    )


def checked_in_files() -> Iterator[Path]:
    """Give the checkout's files; what is built or hidden is none of them."""
    for top in ROOT.iterdir():
        if top.name.startswith(".") or top.name in {"build", "dist"}:
            continue
        for path in [top] if top.is_file() else top.rglob("*"):
            if path.is_file() and not {"__pycache__", "node_modules"} & set(path.parts):
                yield path


def commands() -> list[str]:
    """Give every command the command line offers, as `group name` or `name`."""
    from typer.main import get_command

    from roamcast.cli import build

    found = []
    for name, command in get_command(build()).commands.items():
        inner = getattr(command, "commands", None)
        found += [f"{name} {sub}" for sub in inner] if inner else [name]
    return found


def test_every_command_is_documented() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert_none(f"no page shows: roamcast {c}" for c in commands() if f"roamcast {c}" not in text)


def test_every_command_explains_itself() -> None:
    from typer.testing import CliRunner

    from roamcast.cli import build

    app = build()
    answers = {c: CliRunner().invoke(app, [*c.split(), "--help"]) for c in commands()}
    assert_none(c for c, done in answers.items() if done.exit_code or "Usage" not in done.output)


def test_the_targets_that_pages_name_are_real() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    assert_none(
        f"{page.name}: make {name}"
        for page in PAGES
        for name in re.findall(r"(?:^|`)make ([a-z]+)", page.read_text("utf-8"), re.MULTILINE)
        if name not in targets
    )


@pytest.mark.process
def test_the_readmes_commands_run() -> None:
    """Every line that starts with .venv/bin/roamcast in the README, as it stands there."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\.venv/bin/(roamcast [^#\n]+)", text, re.MULTILINE)
    assert lines
    binary = Path(sys.executable).parent
    for line in lines:
        done = subprocess.run(
            f"{binary}/{line}", shell=True, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"


def test_every_limit_has_a_test() -> None:
    script = ROOT / "scripts" / "docs.py"
    spec = importlib.util.spec_from_file_location("docs_script", script)
    assert spec is not None
    assert spec.loader is not None
    docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docs)
    assert docs.limit_tests().keys() == docs.limits().keys()
