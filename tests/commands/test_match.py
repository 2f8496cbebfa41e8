"""`roamcast match`: the index answers as the reference does; bad files get one line and exit 2."""

import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roamcast import cli
from roamcast.errors import InputError
from roamcast.matching.files import ID_LENGTH_MAX, LINE_BYTES_MAX, write_matches
from roamcast.model.contexts import Context, encode
from roamcast.model.filters import Filter
from tests import strategies as pool

COMMAND = Path(sys.executable).parent / "roamcast"
ONE_FILTER = '{"id": "f", "filter": "age > 1"}\n'
ONE_CONTEXT = encode(Context("v", attributes={"age": 2})).decode() + "\n"


def write(folder: Path, filters: str | bytes, contexts: str | bytes) -> tuple[Path, Path]:
    paths = folder / "filters.jsonl", folder / "contexts.jsonl"
    for path, content in zip(paths, (filters, contexts), strict=True):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return paths


def answer(folder: Path, filters: str | bytes, contexts: str | bytes, **options: Any) -> list[Any]:
    out = io.BytesIO()
    write_matches(*write(folder, filters, contexts), out, **options)
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("pairs", [20_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_match_equals_the_reference(tmp_path: Path, pairs: int) -> None:
    draw = random.Random("match")
    filters = {f"f{n}": pool.some_filter(draw, depth=n % 4) for n in range(pairs // 200)}
    contexts = [pool.some_context(draw, f"v{n}@x") for n in range(200)]
    paths = write(
        tmp_path,
        "".join(json.dumps({"id": n, "filter": t}) + "\n" for n, t in filters.items()),
        b"".join(encode(context) + b"\n" for context in contexts),
    )
    parsed = {name: Filter.parse(text) for name, text in filters.items()}
    expected = [
        {"context": context.vid, "filter": name}
        for context in contexts
        for name, each in parsed.items()
        if each.matches(context)
    ]
    assert pairs // 10 < len(expected) < pairs * 9 // 10
    for options in ([], ["--reference"], ["--json"]):
        done = subprocess.run(
            [COMMAND, "match", *paths, *options], capture_output=True, check=True, timeout=300
        )
        assert done.stderr == b""
        assert msgspec.json.decode(b"[" + done.stdout.replace(b"\n", b",") + b"0]")[:-1] == expected


@pytest.mark.parametrize(
    "make", dict.fromkeys([*pool.STANDARD, *pool.OURS]), ids=lambda m: m.__name__
)
def test_every_construct_matches_as_the_reference_does(make: pool.Make, tmp_path: Path) -> None:
    draw = random.Random(make.__name__)
    texts = [make(draw) for _ in range(60)]
    texts = texts[:40] + [f"NOT ({text})" for text in texts[40:]]
    filters = "".join(json.dumps({"id": f"f{n}", "filter": t}) + "\n" for n, t in enumerate(texts))
    contexts = b"".join(encode(pool.some_context(draw, f"v{n}")) + b"\n" for n in range(40))
    found = answer(tmp_path, filters, contexts)
    assert found == answer(tmp_path, filters, contexts, reference=True)
    assert found


def test_pairs_come_in_the_order_of_the_files(tmp_path: Path) -> None:
    filters = (
        '{"id": "z", "filter": "true"}\n\n{"id": "a", "filter": {"op": "not", "args": [false]}}'
    )
    contexts = "".join(encode(Context(vid)).decode() + "\n \n" for vid in ("y", "b"))
    pairs = [("y", "z"), ("y", "a"), ("b", "z"), ("b", "a")]
    assert answer(tmp_path, filters, contexts) == [{"context": c, "filter": f} for c, f in pairs]
    assert answer(tmp_path, "", contexts) == []
    assert answer(tmp_path, filters, "\n\n") == []


# --- bad files


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> tuple[str, str, Any]:
    monkeypatch.setattr(sys, "argv", ["roamcast", "match", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    printed = capsys.readouterr()
    return printed.out, printed.err, left.value.code


def context_line(**properties: Any) -> str:
    return json.dumps(
        {
            "type": "Feature",
            "id": "v",
            "geometry": None,
            "properties": {"t_r": "2026-11-15T09:00:00Z", **properties},
        }
    )


BAD_FILTERS: list[tuple[str | bytes, int, int, str]] = [
    # the file, the line, the position, what is said
    (ONE_FILTER + "[1, nonsense]", 2, 9, "not JSON"),
    ('{"id": "f", "filter": "true"', 1, 29, "not JSON"),
    ('{"id": "f", "filter" "true"}', 1, 22, "not JSON"),
    ("[1]", 1, 1, 'an object with "id" and "filter"'),
    ('{"id": "f"}', 1, 1, 'an object with "id" and "filter"'),
    ('{"id": 5, "filter": "true"}', 1, 1, '"id" is not a text'),
    ('{"id": "", "filter": "true"}', 1, 1, '"id" is not a text, or empty'),
    ('{"id": "f", "filter": 5}', 1, 1, "a filter is CQL2 text"),
    (ONE_FILTER + "\n" + ONE_FILTER, 3, 1, "duplicate id"),
    ('{"id": "f", "filter": "age > "}', 1, 7, "not CQL2"),
    ('{"id": "f", "filter": "age > 1 AND foo(age)"}', 1, 13, "foo is not supported"),
    ('{"id": "f", "filter": {"op": "foo", "args": []}}', 1, 1, "foo is not supported"),
    (ONE_FILTER.encode() + b'{"id": "\xff", "filter": "true"}', 2, 9, "not UTF-8"),
    ('{"id": "f", "filter": "' + "x" * 70_000 + '"}', 1, 65_537, "at most 65536 characters"),
    ('{"id": "f", "filter": "' + "(" * 500 + '"}', 1, 129, "nested deeper than 128"),
    ('{"id": "f", "filter": ' + "[" * 100_000, 1, 1, "nested too deeply"),
    ('{"id": "f", "filter": ' + '{"op":"not","args":[' * 5_000, 1, 1, "nested too deeply"),
    ('{"id": "' + "x" * (ID_LENGTH_MAX + 1) + '", "filter": "true"}', 1, 1, "256 characters"),
    (b" " * (LINE_BYTES_MAX + 1), 1, LINE_BYTES_MAX + 1, "at most 1048576 bytes"),
    (b"\0", 1, 1, "not JSON"),
    (b"\xef\xbb\xbf{}", 1, 1, "not JSON"),
]
BAD_CONTEXTS: list[tuple[str | bytes, int, int, str]] = [
    (ONE_CONTEXT + "[1, nonsense]", 2, 9, "not JSON"),
    ("{}", 1, 1, '"type": "Feature"'),
    (ONE_CONTEXT + "\n" + context_line(t_r="soon"), 3, 1, "t_r: 'soon' is not an RFC 3339"),
    (context_line(tags=[1]), 1, 1, "attribute 'tags'"),
    (context_line(name="x" * 65_537), 1, 1, "longer than 65536 characters"),
    (context_line(**{f"n{n}": n for n in range(257)}), 1, 1, "at most 256 attributes"),
    (ONE_CONTEXT.encode() + b"\xc3(", 2, 1, "not UTF-8"),
    ('{"type": "Feature", "properties": ' + "[" * 100_000, 1, 1, "nested too deeply"),
    (b"{" + b" " * LINE_BYTES_MAX, 1, LINE_BYTES_MAX + 1, "at most 1048576 bytes"),
]


@pytest.mark.parametrize("reference", [True, False], ids=["reference", "index"])
@pytest.mark.parametrize(
    ("which", "content", "line", "position", "says"),
    [(0, *case) for case in BAD_FILTERS] + [(1, *case) for case in BAD_CONTEXTS],
    ids=range(len(BAD_FILTERS) + len(BAD_CONTEXTS)),
)
def test_a_bad_file_gets_one_line_and_exit_2(
    which: int,
    content: str | bytes,
    line: int,
    position: int,
    says: str,
    reference: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    files: list[str | bytes] = [ONE_FILTER, ONE_CONTEXT]
    files[which] = content
    paths = write(tmp_path, files[0], files[1])
    arguments = [str(path) for path in paths] + ["--reference"] * reference
    out, err, code = run(arguments, monkeypatch, capsys)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert err.startswith(f"roamcast: {paths[which]}, line {line}, position {position}: "), err
    assert says in err
    assert len(err) < 500 + len(str(tmp_path))


def test_a_missing_file_or_a_folder_gets_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    good, _ = write(tmp_path, ONE_FILTER, ONE_CONTEXT)
    for arguments in ([str(tmp_path / "none"), str(good)], [str(good), str(tmp_path)]):
        out, err, code = run(arguments, monkeypatch, capsys)
        assert (out, code, err.count("\n")) == ("", 2, 1)
        assert err.startswith("roamcast: ")


@pytest.mark.process
def test_a_real_process_prints_nothing_but_the_line(tmp_path: Path) -> None:
    paths = write(tmp_path, ONE_FILTER, ONE_CONTEXT + "{")
    done = subprocess.run([COMMAND, "match", *paths], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"roamcast: {paths[1]}, line 2, position 2: not JSON")
    assert done.stderr.count("\n") == 1


def test_lines_and_ids_at_their_limits(tmp_path: Path) -> None:
    name = "x" * ID_LENGTH_MAX
    line = json.dumps({"id": name, "filter": "true"}) + " " * LINE_BYTES_MAX
    filters = line[: LINE_BYTES_MAX - 1] + "\n"
    assert answer(tmp_path, filters, ONE_CONTEXT) == [{"context": "v", "filter": name}]


# --- fuzz

TOKENS = [
    *("(", ")", "((", "'", '"', "''", ",", "AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS NULL"),
    *("=", "<>", "<=", ">", "+", "-", "*", "/", "%", "^", "div", "null", "true", "1e400", "-0"),
    *("1e-400", "9007199254740993", "0.1", "geometry", "time", "place", "vid", "t_r", "casei("),
    *("accenti(", "DATE('2026-11-15')", "TIMESTAMP('2026-11-15T09:00:00Z')", "INTERVAL('..','..')"),
    *(
        "INTERVAL(",
        "BBOX(0,0,1,1)",
        "BBOX(",
        "POINT(0 0)",
        "POLYGON((",
        "POINT EMPTY",
        "Z",
        "EMPTY",
    ),
    *("S_INTERSECTS(geometry,", "within(place,", "near(geometry,", "during(time,", "t_metBy(time,"),
    *("a_equals(", "foo(", "\\", "\\u0000", "\\ud800", "\\udfff", "é", "日", "\u0301", "\n", "\t"),
    *("{", "}", "[", "]", ":", "null", '"op"', '"args"', '"id"', '"filter"', '"type"', "Feature"),
    *('"properties"', '"geometry"', '"t_r"', '"t_d"', '"place"', '"timestamp"', "1e999", "-1", "0"),
    *(
        '{"op":"not","args":[true]}',
        '{"property":"age"}',
        '{"interval":["..",".."]}',
        '{"bbox":[0]}',
    ),
    *("\x00", "\x1f", "\x7f", "\ufeff", "\u2028", "\U0010ffff", "\ue000", "\ue0000"),
]


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Change some bytes, or put, drop, copy or swap whole tokens."""
    data = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 3, 8])):
        at = draw.randrange(len(data) + 1)
        end = min(len(data), at + draw.choice([0, 1, 2, 5, 20]))
        kind = draw.randrange(6)
        if kind == 0:
            data[at:end] = draw.randbytes(draw.randint(0, 3))
        elif kind == 1:
            data[at:at] = draw.choice(TOKENS).encode()
        elif kind == 2:
            data[at:end] = draw.choice(TOKENS).encode()
        elif kind == 3:
            data[at:at] = data[at:end] * draw.choice([1, 2, 40])
        elif kind == 4:
            del data[at:end]
        elif data:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def json_forms() -> list[Any]:
    import cql2

    texts = ["age > 1 AND NOT name LIKE 'a%'", "T_DURING(time, INTERVAL('2026-11-15','..'))"]
    texts += ["S_INTERSECTS(geometry, POLYGON((0 0,1 0,1 1,0 0)))", "casei(name) IN ('a', 'b')"]
    return [cql2.parse_text(text).to_json() for text in texts]


@pytest.mark.parametrize(
    "mutations",
    [
        200,
        pytest.param(2_000, marks=pytest.mark.slow),
        pytest.param(10_000, marks=pytest.mark.soak),
    ],
)
def test_thousands_of_mutations_see_no_other_exception(mutations: int, tmp_path: Path) -> None:
    draw = random.Random("fuzz")
    trees = json_forms()
    refused = 0
    for number in range(mutations):
        texts: list[Any] = [pool.some_filter(draw, depth=draw.randint(0, 2)), draw.choice(trees)]
        filters = "\n".join(
            json.dumps({"id": f"f{n}", "filter": t}, ensure_ascii=draw.random() < 0.5)
            for n, t in enumerate(texts)
        ).encode()
        contexts = b"\n".join(encode(pool.some_context(draw, f"v{n}")) for n in range(1))
        if number % 2:
            filters = mutated(filters, draw)
        else:
            contexts = mutated(contexts, draw)
        error = refusal(tmp_path, filters, contexts, reference=number % 100 != 0)
        if error is not None:
            refused += 1
            assert "\n" not in str(error)
            assert None not in (error.source, error.line, error.position)
    assert mutations // 5 < refused < mutations * 99 // 100


def refusal(folder: Path, filters: bytes, contexts: bytes, reference: bool) -> InputError | None:
    try:
        answer(folder, filters, contexts, reference=reference)
    except InputError as error:
        return error
    return None
