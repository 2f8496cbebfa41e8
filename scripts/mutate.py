"""Plant small defects, one at a time, and see whether a test notices (decision 0088).

A mutant is one edit of one expression or statement, in a copy of the tree. It runs against the
tests that reach its function, until one fails. What survives is printed as a diff with the command
that repeats it, unless docs/mutants.md says why it is harmless.
"""

# ruff: noqa: D102  (methods of ast.NodeVisitor are named by the node they visit)

import argparse
import ast
import gc
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from cProfile import Profile
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from hashlib import blake2b
from importlib.util import module_from_spec, spec_from_file_location
from itertools import islice
from multiprocessing import Pipe
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / os.environ.get("MUTATE_FOLDER", "mutate")
"""Traces and copies; another name lets two runs go side by side."""

CLEAN = WORK / "clean"
HARMLESS = ROOT / "docs" / "mutants.md"
PACKAGES = ("model", "matching", "placement", "channels", "identity", "overlay", "broker.py")
TESTS = ("model", "matching", "placement", "channels", "identity", "overlay", "sim")
MARKS = "not spark and not process and not soak and not slow"
PRELOADED = (
    "numpy",
    "numba",
    "pyarrow",
    "shapely",
    "msgspec",
    "cql2",
    "h3",
    "hypothesis",
    "pytest",
)
"""Imported before the fork: each mutant starts a second later without."""

SOURCE = "src/roamcast/"
COMPILE_S = 240
"""Added to the time limit of a mutant in compiled code, which is compiled anew."""

SLACK, LIMIT_MIN_S = 4, 30
"""Time limit of a mutant: so many times what its tests took, and at least so many seconds."""

WAIT = 10
"""A mutant that waits instead of working ends after so many times its limit."""

PROFILE = os.environ.get("MUTATE_PROFILE", "quick")
"""How many examples: `quick` is a fifth, so what it catches `make test` catches."""

UNPLANTED = 99
FAILURE = "failure.txt"

COMPARES: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "+",
    ast.LShift: ">>", ast.RShift: "<<", ast.BitOr: "&", ast.BitAnd: "|",
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
COMPILED = {"kernel", "inlined"}
KERNELS, STAMP = "model/kernels.py", "kernels.stamp"
QUIET = {"log", "logger", "warnings"}
"""Calls on these only tell somebody something."""


_sources: dict[str, bytes] = {}


def source_of(file: str) -> bytes:
    """Read a file once: the work tree may change while mutants of it are tried."""
    if file not in _sources:
        _sources[file] = (ROOT / file).read_bytes()
    return _sources[file]


@dataclass(frozen=True)
class Mutant:
    """One edit: the bytes from `start` to `end` of a file become `text`."""

    file: str
    owner: str
    """Qualified name of the function or class around it; empty in the module."""
    line: int
    start: int
    end: int
    text: str
    compiled: bool

    def apply(self, source: bytes) -> bytes:
        """Return the source with the edit."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def lines(self) -> tuple[list[str], list[str]]:
        """Return the lines before and after, without indentation."""
        source = source_of(self.file)
        begin = source.rfind(b"\n", 0, self.start) + 1
        end = source.find(b"\n", self.end)
        after = source[begin : self.start] + self.text.encode() + source[self.end : end]
        return _stripped(source[begin:end]), _stripped(after)

    def is_python(self) -> bool:
        """Whether the source with the edit can be read: some edits need other parentheses."""
        try:
            ast.parse(self.apply(source_of(self.file)))
        except SyntaxError:
            return False
        return True

    @property
    def name(self) -> str:
        """A short name, the same as long as the file stays as it is."""
        source = source_of(self.file)
        return blake2b(self.file.encode() + self.apply(source), digest_size=4).hexdigest()


def _stripped(text: bytes) -> list[str]:
    return [line.strip() for line in text.decode().splitlines()]


class Finder(ast.NodeVisitor):
    """Lists the mutants of one file, except in what no test should look at.

    Left out: docstrings, annotations, decorators, asserts (our own invariants), the texts of
    errors, `__repr__`, and numbers that a name is given (a limit or a setting is a choice, and
    tests use its name).
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.source = source_of(file)
        self.begins = [0]
        for line in self.source.splitlines(keepends=True):
            self.begins.append(self.begins[-1] + len(line))
        self.found: list[Mutant] = []
        self.owners: list[str] = []
        self.compiled = False
        self.visit(ast.parse(self.source))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in ("__repr__", "occupancy_text"):
            return
        before = self.compiled
        self.compiled = before or is_compiled(node)
        self.owners.append(node.name)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self._body(node.body)
        self.owners.pop()
        self.compiled = before

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.owners.append(node.name)
        self._body(node.body)
        self.owners.pop()

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Nothing: right code keeps its asserts, however they are worded."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Nothing: f-strings are texts for people, or names that a test would only repeat."""

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None and not ast.unparse(node.exc).startswith("AssertionError"):
            self._add(node, "pass")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assigned(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.visit(target)
        self._assigned(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node, "pass")
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        if not all(isinstance(target, ast.Name) for target in node.targets):
            self._add(node, "pass")

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value
        if isinstance(call, ast.Call):
            root = ast.unparse(call.func).partition(".")[0]
            if root in QUIET:
                return
            self._add(node, "pass")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add(node, "break")

    def visit_Break(self, node: ast.Break) -> None:
        self._add(node, "continue")

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for index, operator in enumerate(node.ops):
            if type(operator) in COMPARES:
                self._between(sides[index], sides[index + 1], COMPARES[type(operator)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, other)
        for index, value in enumerate(node.values):  # without one of its conditions
            rest = [self._text(one) for one in node.values if one is not value]
            joint = " and " if isinstance(node.op, ast.And) else " or "
            if not any(isinstance(one, ast.NamedExpr) for one in ast.walk(value)) or not index:
                self._add(node, joint.join(rest))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, f"bool({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = (ast.Constant, ast.JoinedStr)
        of_texts = any(
            isinstance(side, texts) and not isinstance(getattr(side, "value", 0), (int, float))
            for side in (node.left, node.right)
        )
        if type(node.op) in ARITHMETIC and not of_texts:
            self._between(node.left, node.right, ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in CALLS:
            self._add(node.func, CALLS[node.func.id])
        if isinstance(node.func, ast.Name) and node.func.id in ("TypeVar", "cast", "Meta"):
            return
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, str(not node.value))
        elif isinstance(node.value, int):
            self._add(node, str(node.value + 1))

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._add(node, f"({self._text(node.body)})")
        self._add(node, f"({self._text(node.orelse)})")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if ast.unparse(node.value) in ("Annotated", "Literal"):
            return
        self.generic_visit(node)

    def _body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.visit(statement)

    def _assigned(self, value: ast.expr) -> None:
        named = not self.owners or self.owners[-1][0].isupper()
        if named and not any(isinstance(one, ast.Call) for one in ast.walk(value)):
            if not isinstance(value, ast.Constant | ast.BinOp | ast.UnaryOp):
                self.visit(value)
            return
        self.visit(value)

    def _at(self, line: int, column: int) -> int:
        return self.begins[line - 1] + column

    def _text(self, node: ast.expr) -> str:
        start = self._at(node.lineno, node.col_offset)
        text = self.source[
            start : self._at(node.end_lineno or 0, node.end_col_offset or 0)
        ].decode()
        return f"({text})" if isinstance(node, ast.BoolOp | ast.IfExp | ast.NamedExpr) else text

    def _between(self, left: ast.expr, right: ast.expr, text: str) -> None:
        """Replace the operator between two operands; parentheses around them stay."""
        assert left.end_lineno is not None
        assert left.end_col_offset is not None
        start = self._at(left.end_lineno, left.end_col_offset)
        end = self._at(right.lineno, right.col_offset)
        gap = self.source[start:end].decode()
        inner = gap.strip(" )(\n\\")
        place = gap.find(inner) if inner else -1
        if place < 0 or "#" in gap:
            return
        self._edit(left.lineno, start + place, start + place + len(inner.encode()), text)

    def _add(self, node: ast.stmt | ast.expr, text: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._at(node.lineno, node.col_offset)
        self._edit(node.lineno, start, self._at(node.end_lineno, node.end_col_offset), text)

    def _edit(self, line: int, start: int, end: int, text: str) -> None:
        owner = ".".join(self.owners)
        self.found.append(Mutant(self.file, owner, line, start, end, text, self.compiled))


def is_compiled(node: ast.FunctionDef) -> bool:
    """Whether Numba compiles a function."""
    return any(ast.unparse(one) in COMPILED for one in node.decorator_list)


def functions_of(file: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Give the functions and classes of a file with their qualified names, outer ones first."""
    todo: list[tuple[str, ast.AST]] = [("", ast.parse(file.read_bytes()))]
    while todo:
        above, node = todo.pop()
        for child in ast.iter_child_nodes(node):
            name = above
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{above}.{child.name}".lstrip(".")
                yield name, child
            todo.append((name, child))


class Copy:
    """A copy of the tree in which one mutant lives at a time."""

    def __init__(self, number: int) -> None:
        self.root = WORK / f"tree{number}"
        self.root.mkdir(parents=True, exist_ok=True)
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],  # noqa: S607
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        shutil.rmtree(self.root / "src", ignore_errors=True)
        shutil.rmtree(self.root / "tests", ignore_errors=True)
        shutil.copytree(ROOT / "src", self.root / "src")
        for name in listed:
            if not name.startswith("src/") and (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)

    def plant(self, mutant: Mutant) -> None:
        """Write the mutant; no byte code of the file as it was is left."""
        path = self.root / mutant.file
        path.write_bytes(mutant.apply(source_of(mutant.file)))
        for code in (path.parent / "__pycache__").glob(f"{path.stem}.cpython*"):
            code.unlink()

    def restore(self, mutant: Mutant) -> None:
        """Take the mutant away, and everything that was compiled with it."""
        path = self.root / mutant.file
        path.write_bytes(source_of(mutant.file))
        for code in (path.parent / "__pycache__").glob(f"{path.stem}.cpython*"):
            code.unlink()
        cached = CLEAN / Path(mutant.file).parent / "__pycache__"
        if (cached / STAMP).exists():  # the folder has machine code
            shutil.rmtree(path.parent / "__pycache__")
            shutil.copytree(cached, path.parent / "__pycache__")

    def keep(self) -> None:
        """Make this tree, with all that is compiled in it, the one to restore from."""
        shutil.rmtree(CLEAN, ignore_errors=True)
        shutil.copytree(self.root / "src", CLEAN / "src")

    def trust(self, mutant: Mutant, stale: set[str] | None) -> None:
        """In the child: use the cached machine code that the mutant cannot change.

        `kernels.py` would compile the folder anew, and Numba the file: minutes for each mutant.
        """
        from numba.core import caching

        folder = (self.root / mutant.file).parent
        cache = folder / "__pycache__"
        if stale is None or not (cache / STAMP).exists():
            return
        for name in stale:
            for code in cache.glob(f"*.{name}-*.nb[ci]"):
                code.unlink()
        spec = spec_from_file_location("kernels_of_copy", self.root / SOURCE / KERNELS)
        assert spec is not None
        assert spec.loader is not None
        kernels = module_from_spec(spec)
        spec.loader.exec_module(kernels)
        (cache / STAMP).write_text(kernels._digest(folder), encoding="ascii")  # noqa: SLF001
        by_content: Any = caching._hash_source_file  # noqa: SLF001

        def of_clean(path: str, *stamp: Any) -> Any:
            clean = CLEAN / Path(path).relative_to(self.root)
            return by_content(str(clean if clean.exists() else path), *stamp)

        vars(caching)["_hash_source_file"] = of_clean


class Watcher:
    """A pytest plugin: how long each test took, whether it passed, and what it reached."""

    def __init__(self, root: Path | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self.reached: dict[str, set[str]] = {}
        """Tests → functions under `root`, as file::qualified name."""
        # Entries of functions are enough: coverage, which traces lines, took twice as long.
        self.profile = None if root is None else Profile(subcalls=False, builtins=False)
        self._source = f"{root}/"

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        """A test begins."""
        del location
        self.seconds[nodeid] = -time.process_time()
        if self.profile is not None:
            self.profile.clear()
            self.profile.enable()

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        """A test has ended."""
        del location
        self.seconds[nodeid] += time.process_time()
        if self.profile is not None:
            self.profile.disable()
            self.reached[nodeid] = set(self._places())

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a failure."""
        if report.failed:
            self.failed.append(report.nodeid)

    def _places(self) -> Iterator[str]:
        assert self.profile is not None
        for entry in self.profile.getstats():
            if isinstance(entry.code, str) or not entry.code.co_filename.startswith(self._source):
                continue
            parts = [part for part in entry.code.co_qualname.split(".") if part[0] != "<"]
            if parts:  # a comprehension or a lambda belongs to the function around it
                inside = entry.code.co_filename.removeprefix(self._source)
                yield f"{inside}::{'.'.join(parts)}"


def move_into(root: Path, output: Path) -> None:
    """Make this process one that works in a copy and writes into a file."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(root)
    sys.path[:0] = [str(root / "src"), str(root)]
    os.environ["PYTHONPATH"] = str(root / "src")
    sys.dont_write_bytecode = True


def in_child(root: Path, output: Path, limit_s: float, work: Any) -> int | None:
    """Run `work` in a fork inside a copy; return its code, or None if it took too much time.

    The limit is of processor time, so that a busy machine convicts nobody.
    """
    pid = os.fork()
    if not pid:
        code = 70
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s) + 1))
            move_into(root, output)
            code = int(work())
        except Exception:  # noqa: BLE001
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + WAIT * limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def run_tests(arguments: list[str], watcher: Watcher) -> int:
    """Run pytest in this process."""
    import pytest

    # Hypothesis was loaded before pytest could rewrite its asserts, which nobody needs.
    options = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options += ["-q", "-n", "0", "-p", "no:cacheprovider", "-m", MARKS]
    options.append(f"--hypothesis-profile={PROFILE}")
    return int(pytest.main([*options, *arguments], plugins=[watcher]))


class Warm:
    """A process that has loaded every test. In a fork of it a mutant replaces only code objects.

    Nothing is imported anew, so that most mutants cost no more than their tests. What it cannot
    plant, and what an import may run, is tried in a fork that imports the mutant's file.
    """

    def __init__(self, copy: Copy, files: list[str]) -> None:
        self.copy = copy
        self.ours, theirs = Pipe()
        self.sound: dict[str, bool] = {}
        self.pid = os.fork()
        if not self.pid:
            try:
                self._serve(theirs, files)
            finally:
                os._exit(0)
        assert self.ours.recv() == "ready"

    def ask(self, limit_s: float, work: str, *values: Any) -> int | None:
        """Run a method in a fork; return its code, or None if it took too much time."""
        self.ours.send((limit_s, work, values))
        code: int | None = self.ours.recv()
        return code

    def close(self) -> None:
        """End the process."""
        self.ours.close()
        os.waitpid(self.pid, 0)

    def is_sound(self, test: str) -> bool:
        """Whether a test passes here without a mutant."""
        if test not in self.sound:
            self.sound[test] = self.ask(600, "run", None, [test]) == 0
        return self.sound[test]

    def run(self, mutant: Mutant | None, tests: list[str]) -> int:
        """In a fork: plant a mutant and run tests; UNPLANTED if it is none of a function's code."""
        if mutant is not None and not implant(mutant, self.copy.root):
            return UNPLANTED
        watcher = Watcher()
        code = run_tests(["-x", *tests], watcher)
        (self.copy.root / FAILURE).write_text("\n".join(watcher.failed))
        return code

    def trace(self, file: str, result: str) -> int:
        """In a fork: write which functions the tests of a file reach."""
        watcher = Watcher(self.copy.root)
        run_tests([file], watcher)
        Path(result).write_text(json.dumps(read_trace(watcher)))
        return 0

    def _serve(self, theirs: Any, files: list[str]) -> None:
        self.ours.close()
        move_into(self.copy.root, self.copy.root / "warm.txt")
        run_tests(["--collect-only", *files], Watcher())
        theirs.send("ready")
        while True:
            try:
                limit_s, work, values = theirs.recv()
            except EOFError:
                return
            do = getattr(self, work)
            output = self.copy.root / "output.txt"
            theirs.send(in_child(self.copy.root, output, limit_s, lambda: do(*values)))  # noqa: B023


def implant(mutant: Mutant, root: Path) -> bool:
    """Give the functions of a loaded file the mutant's code; whether one of them has changed."""
    path = str(root / mutant.file)
    source = source_of(mutant.file)
    if source[mutant.start : mutant.end].count(b"\n") != mutant.text.count("\n"):
        return False  # functions are known by their lines
    old, new = (
        dict(codes_of(compile(text, path, "exec"))) for text in (source, mutant.apply(source))
    )
    planted = False
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename == path:
            name = one.__code__.co_qualname, one.__code__.co_firstlineno
            if name in new and new[name] != old[name]:
                if new[name].co_freevars != one.__code__.co_freevars:
                    return False
                one.__code__ = new[name]
                planted = True
        elif isinstance(one, _lru_cache_wrapper) and one.__module__.startswith("roamcast."):
            one.cache_clear()
    return planted


def codes_of(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """Give every piece of code in a piece of code, by its name and line."""
    yield (code.co_qualname, code.co_firstlineno), code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes_of(inner)


class Reach:
    """Which tests reach which function, and how long they take; made once per test file."""

    def __init__(self, warm: Warm) -> None:
        self.warm = warm
        self.path = WORK / "reach.json"
        self.files: dict[str, Any] = {}
        if self.path.exists():
            self.files = msgspec.json.decode(self.path.read_bytes())
        self.tests: dict[str, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        self.compiled: set[str] = set()
        self.callers: dict[str, set[str]] = defaultdict(set)
        self.at_import: set[str] = set()

    def build(self, tests: list[str]) -> None:
        """Trace the test files that are new or have changed."""
        for number, file in enumerate(tests, 1):
            text = (self.warm.copy.root / file).read_bytes()
            digest = blake2b(text, digest_size=8).hexdigest()
            if self.files.get(file, {}).get("digest") != digest:
                say(f"tracing {file} ({number} of {len(tests)})")
                self.files[file] = {"digest": digest, **self._trace(file)}
                self.path.write_bytes(msgspec.json.encode(self.files))
            for test, found in self.files[file]["tests"].items():
                self.seconds[test] = found["s"]
                for place in found["reaches"]:
                    self.tests[self.files[file]["places"][place]].add(test)
        self._add_compiled()

    def of(self, mutant: Mutant, seconds_max: float) -> list[str]:
        """Give the tests for a mutant: of its own package first, then the shortest."""
        # In a class: whatever reaches one of its methods. In a module: whatever reaches the file.
        for place in (f"{mutant.file}::{mutant.owner}", f"{mutant.file}::"):
            inside = place if place.endswith("::") else f"{place}."
            reached = [t for p, t in self.tests.items() if p == place or p.startswith(inside)]
            tests = set().union(*reached)
            if tests:
                break
        words = set(re.split(r"\W|_", mutant.file.removeprefix(SOURCE)))

        def distance(test: str) -> tuple[int, float]:
            file = test.partition("::")[0]
            return -len(words & set(re.split(r"\W|_", file))), self.seconds[test]

        chosen: list[str] = []
        left = seconds_max
        for test in sorted(tests, key=distance):
            left -= self.seconds[test]
            if left < 0 and chosen:
                break
            chosen.append(test)
        return chosen

    def _trace(self, file: str) -> dict[str, Any]:
        result = WORK / "traced.json"
        result.unlink(missing_ok=True)
        self.warm.ask(1_800, "trace", file, str(result))
        if not result.exists():
            say(f"  {file} could not be traced: see {self.warm.copy.root / 'output.txt'}")
            return {"places": [], "tests": {}}
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    def _add_compiled(self) -> None:
        """Compiled code is not traced: whoever reaches a caller in its folder reaches it."""
        for path in sorted((ROOT / SOURCE).rglob("*.py")):
            for name, node in functions_of(path):
                place = f"{path.relative_to(ROOT)}::{name}"
                if isinstance(node, ast.FunctionDef):
                    self.compiled |= {place} if is_compiled(node) else set()
                    for used in _names_in(node):
                        self.callers[used].add(place)
            for statement in ast.parse(path.read_bytes()).body:
                if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                    self.at_import |= _names_in(statement)
        for place in self.compiled:
            for above in self._above(place) - self.compiled:
                self.tests[place] |= self.tests.get(above, set())

    def _above(self, place: str) -> set[str]:
        """Give a function, the kernels of its folder it is compiled into, and who calls those."""
        todo, seen = [place], {place}
        while todo:
            for above in self.callers[todo.pop().rpartition("::")[2]] - seen:
                if above.rpartition("/")[0] == place.rpartition("/")[0]:
                    seen.add(above)
                    todo += [above] if above in self.compiled else []
        return seen

    def stale(self, mutant: Mutant) -> set[str] | None:
        """Name the kernels that a mutant changes; None: any, for it may change a constant."""
        if mutant.file == SOURCE + KERNELS or mutant.owner.partition(".")[0] in self.at_import:
            return None
        if mutant.compiled:
            found = self._above(f"{mutant.file}::{mutant.owner}") & self.compiled
            return {place.rpartition("::")[2] for place in found}
        return set() if mutant.owner else None


def read_trace(watcher: Watcher) -> dict[str, Any]:
    """Give the functions that each test reached, as numbers into the list of them."""
    reached = watcher.reached
    places = sorted(set().union(*reached.values())) if reached else []
    numbers = {place: number for number, place in enumerate(places)}
    return {
        "places": places,
        "tests": {
            test: {"s": round(s, 3), "reaches": sorted(numbers[p] for p in reached[test])}
            for test, s in watcher.seconds.items()
            if test not in watcher.failed
        },
    }


def _names_in(node: ast.AST) -> set[str]:
    found = {getattr(one, "id", None) or getattr(one, "attr", None) for one in ast.walk(node)}
    return {name for name in found if isinstance(name, str)}


def harmless() -> set[tuple[str, str, str]]:
    """Read the survivors with a reason: (file, lines before, lines after)."""
    if not HARMLESS.exists():
        return set()
    found = set()
    for part in re.split(r"^### ", HARMLESS.read_text(), flags=re.MULTILINE)[1:]:
        file = part.split()[0].strip("`")
        for diff in re.findall(r"```diff\n(.*?)```", part, flags=re.DOTALL):
            lines = diff.splitlines()
            before = "\n".join(line[1:].strip() for line in lines if line[:1] == "-")
            after = "\n".join(line[1:].strip() for line in lines if line[:1] == "+")
            found.add((file, before, after))
    return found


def shown(mutant: Mutant) -> str:
    """Print a mutant as docs/mutants.md has it."""
    before, after = mutant.lines()
    lines = [*(f"-{line}" for line in before), *(f"+{line}" for line in after)]
    return "\n".join(
        [f"### {mutant.file} {mutant.owner}, line {mutant.line}", "```diff", *lines, "```"]
    )


def key(mutant: Mutant) -> tuple[str, str, str]:
    """What docs/mutants.md is searched for."""
    before, after = mutant.lines()
    return mutant.file, "\n".join(before), "\n".join(after)


def try_mutant(mutant: Mutant, warm: Warm, reach: Reach, seconds_max: float) -> tuple[str, str]:
    """Return `caught`, `slow` (by its time limit), `survived` or `unreached`, and by what."""
    tests = reach.of(mutant, seconds_max)
    if not tests:
        return "unreached", ""
    expected = sum(reach.seconds[test] for test in tests)
    limit = max(LIMIT_MIN_S, SLACK * expected) + COMPILE_S * mutant.compiled
    failure = warm.copy.root / FAILURE
    failure.unlink(missing_ok=True)
    if not mutant.compiled:
        code = warm.ask(limit, "run", mutant, tests)
        if code is None:
            return "slow", f"over {limit:.0f} s"
        failed = failure.read_text().splitlines() if code == 1 and failure.exists() else []
        if failed and warm.is_sound(failed[0]):
            return "caught", failed[0]
        if code == 0 and mutant.owner.partition(".")[0] not in reach.at_import:
            return "survived", f"{len(tests)} tests, {expected:.0f} s"
    return try_alone(mutant, warm.copy, reach, tests, limit)


def try_alone(
    mutant: Mutant, copy: Copy, reach: Reach, tests: list[str], limit: float
) -> tuple[str, str]:
    """Try a mutant in its file, in a process that imports and compiles it."""
    failure = copy.root / FAILURE
    failure.unlink(missing_ok=True)

    def work() -> int:
        copy.trust(mutant, reach.stale(mutant))
        watcher = Watcher()
        near = tests[0].partition("::")[0]
        code = 0
        for nearest in (True, False):  # most are caught by the nearest file: load the others later
            group = [test for test in tests if (test.partition("::")[0] == near) is nearest]
            if group and not code:
                code = run_tests(["-x", *group], watcher)
        failure.write_text("\n".join(watcher.failed) or "(at import)")
        return code

    copy.plant(mutant)
    try:
        code = in_child(copy.root, copy.root / "output.txt", limit, work)
    finally:
        copy.restore(mutant)
    if code == 0:
        return "survived", f"{len(tests)} tests, {sum(reach.seconds[t] for t in tests):.0f} s"
    if code is None:
        return "slow", f"over {limit:.0f} s"
    output = (copy.root / "output.txt").read_text(errors="replace")
    if code == 4 and "found no collectors" in output:
        return "caught", "(at import)"  # the tests were there when they were traced
    if code > 2:  # pytest's own trouble is no verdict
        raise RuntimeError(f"pytest ended with {code}: {output}")
    return "caught", failure.read_text() if failure.exists() else f"exit code {code}"


def find_mutants(packages: list[str]) -> list[Mutant]:
    """List every edit of some packages or files."""
    found: list[Mutant] = []
    for package in packages:
        path = ROOT / SOURCE / package
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            found += Finder(str(file.relative_to(ROOT))).found
    return found


def sampled(mutants: list[Mutant], seed: int) -> Iterator[Mutant]:
    """Shuffle by the seed: any number of the first ones is a fair sample."""
    order = list(mutants)
    random.Random(seed).shuffle(order)  # noqa: S311
    known = harmless()
    return (mutant for mutant in order if key(mutant) not in known and mutant.is_python())


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def test_files() -> list[str]:
    """List the test files that may reach what is mutated."""
    found = [file for folder in TESTS for file in (ROOT / "tests" / folder).rglob("test_*.py")]
    found += (ROOT / "tests").glob("test_broker*.py")
    return sorted(str(file.relative_to(ROOT)) for file in found)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="random small defects against the tests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300, help="mutants; 0: all there are")
    parser.add_argument("--skip", type=int, default=0, help="the first mutants of the sample")
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60, help="of tests per mutant, at most")
    parser.add_argument("--only", default="", help="names of mutants, to repeat them: a,b")
    parser.add_argument("--tests", default="", help="a pattern of the test files to use")
    parser.add_argument("--list", action="store_true", help="print the mutants, run nothing")
    parser.add_argument("packages", nargs="*", default=list(PACKAGES))
    return parser.parse_args()


def main() -> int:
    """Try mutants; 1 if one survived."""
    given = arguments()
    packages = [name for name in given.packages if (ROOT / SOURCE / name).exists()]
    found = find_mutants(packages)
    order = sampled(found, given.seed)
    if given.only:
        mutants = [mutant for mutant in found if mutant.name in given.only.split(",")]
    else:
        mutants = list(islice(order, given.skip, given.skip + given.count if given.count else None))
    if given.list:
        for mutant in mutants:
            say(shown(mutant))
        return 0
    end = time.monotonic() + given.minutes * 60
    for name in PRELOADED:
        __import__(name)
    files = [file for file in test_files() if re.match(given.tests, file)]
    warms = [Warm(Copy(number), files) for number in range(given.workers)]
    reach = Reach(warms[0])
    reach.build(files)
    warms[0].copy.keep()
    survivors = run(mutants, warms, reach, end, given.seconds)
    for warm in warms:
        warm.close()
    return 1 if survivors else 0


def run(
    mutants: list[Mutant], warms: list[Warm], reach: Reach, end: float, seconds_max: float
) -> list[Mutant]:
    """Try mutants until all are done or the time is over; print survivors and the share."""
    free = list(warms)
    counts: Counter[str] = Counter()
    by_package: dict[str, Counter[str]] = defaultdict(Counter)
    survivors: list[Mutant] = []

    def one(mutant: Mutant) -> None:
        if time.monotonic() > end:
            return
        warm = free.pop()
        try:
            outcome, by = try_mutant(mutant, warm, reach, seconds_max)
        finally:
            free.append(warm)
        counts[outcome] += 1
        by_package[mutant.file.removeprefix(SOURCE).partition("/")[0]][outcome] += 1
        if outcome in ("survived", "unreached"):
            survivors.append(mutant)
            again = f"scripts/mutate.py --only {mutant.name} {mutant.file.removeprefix(SOURCE)}"
            say(f"\n{shown(mutant)}\n{outcome} {by}: {again}")
        else:
            say(f"{outcome} {mutant.file}:{mutant.line} {mutant.text[:40]!r} {by.splitlines()[0]}")

    with ThreadPoolExecutor(len(warms)) as pool:
        list(pool.map(one, mutants))
    for package, found in sorted(by_package.items()):
        caught = found["caught"] + found["slow"]
        say(f"{package}: {caught} of {found.total()} caught, {found['slow']} by the time limit")
    caught = counts["caught"] + counts["slow"]
    total = counts.total()
    say(f"{caught} of {total} mutants caught: {100 * caught / max(total, 1):.1f} %")
    return survivors


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the tests' own: Python reads it at its start
        os.environ["PYTHONHASHSEED"] = "0"
        os.environ.pop("NUMBA_CACHE_DIR", None)  # machine code lies beside each copy's source
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606
    sys.exit(main())
