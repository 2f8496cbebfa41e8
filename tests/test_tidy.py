"""House rules as tests: who may import whom, how long a module may be, where clocks may stand."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "roamcast"
MODULES = sorted(PACKAGE.rglob("*.py"))
PURE = {"model", "matching", "channels", "overlay", "placement", "identity", "broker"}

# Imports point towards `model`; each room names the rooms it may use (docs/architecture.md).
MAY_IMPORT = {
    "errors": set(),
    "model": {"errors"},
    "matching": {"model", "errors"},
    "placement": {"model", "errors"},
    "channels": {"model", "matching", "errors"},
    "identity": {"model", "matching", "errors"},
    "overlay": {"model", "matching", "channels", "placement", "identity", "errors"},
    "broker": {"model", "matching", "channels", "overlay", "placement", "identity", "errors"},
    "journal": {"model", "errors"},
    # identity: the user agent's rules are written once and run live and in Spark (decision 0050)
    # channels: a plan replays a broker's own choice of channels (decision 0045)
    "pipeline": {"model", "matching", "placement", "journal", "identity", "channels", "errors"},
    "transport": {"model", "channels", "errors"},
    "client": {"model", "matching", "channels", "transport", "errors"},
    "sim": PURE | {"journal", "errors"},
    "live": PURE | {"journal", "pipeline", "transport", "errors"},
}
ANYTHING = {"lab", "commands", "cli", "__init__", "__main__"}

LINES_MAX = 550  # a sign, not a wall: settings are one declaration
LINES_MAX_SPARK = 250


def room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_towards_the_model(path: Path) -> None:
    where = room(path)
    if where in ANYTHING:
        return
    assert where in MAY_IMPORT, f"{where} is no room of the house: add it to docs/architecture.md"
    assert imported_rooms(path) - {where} <= MAY_IMPORT[where]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_is_one_idea_and_says_which(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    limit = LINES_MAX_SPARK if room(path) == "pipeline" else LINES_MAX
    assert len(text.splitlines()) <= limit
    assert ast.get_docstring(ast.parse(text)), "its first line says what question it answers"


CLOCKS = re.compile(
    r"\b(time\.(time|monotonic|perf_counter)(_ns)?\(|datetime\.(now|utcnow|today)\(|uuid[14]\(|"
    r"\brandom\.(random|choice|choices|randint|shuffle|sample|uniform|seed)\(|"
    r"np\.random\.(rand|randn|randint|random|choice|seed|shuffle)\(|default_rng\(\))"
)


@pytest.mark.parametrize(
    "path",
    [p for p in MODULES if room(p) in PURE | {"sim", "journal"}],
    ids=lambda p: str(p.relative_to(PACKAGE)),
)
def test_time_and_randomness_are_inputs(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not CLOCKS.findall(text)
    machines = PURE - {"model", "matching", "placement"}
    if room(path) in machines:
        assert not re.search(
            r"^\s*(import|from) (random|socket|asyncio|threading)\b", text, re.MULTILINE
        )


def test_tests_mirror_the_source() -> None:
    rooms = {room(p) for p in MODULES}
    for folder in (p for p in (ROOT / "tests").iterdir() if p.is_dir() and p.name[0] != "_"):
        assert folder.name in rooms | {"bench"}, f"tests/{folder.name} mirrors no room"


def test_nothing_names_a_registry_host_or_a_workplace() -> None:
    banned = re.compile(r"pypi\.(org|python)|pythonhosted|registry\.npmjs|deb\.debian\.org|/work/")
    for path in ROOT.rglob("*"):
        inside = path.relative_to(ROOT).parts
        if path.is_dir() or inside[0].startswith(".") or inside[0] in {"build", "dist"}:
            continue
        if "__pycache__" in inside or path.name == "test_tidy.py" or path.suffix == ".png":
            continue
        assert not banned.search(path.read_text(encoding="utf-8", errors="ignore")), path


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


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
    for command in commands():
        assert f"roamcast {command}" in text, f"no page shows: roamcast {command}"


def test_every_command_explains_itself() -> None:
    from typer.testing import CliRunner

    from roamcast.cli import build

    app = build()
    for command in commands():
        done = CliRunner().invoke(app, [*command.split(), "--help"])
        assert done.exit_code == 0, command
        assert "Usage" in done.output, command


def test_the_targets_the_readme_names_are_real() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"^make ([a-z]+)", text, re.MULTILINE))
        named |= set(re.findall(r"`make ([a-z]+)`", text))
        assert named <= targets, page.name


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
