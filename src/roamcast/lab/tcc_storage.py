"""TCC III-E: what an access node stores a day, and how many casts a router caches.

Really written, in our formats: contexts into the log of the past (SQLite, as a service does) and
into an archive (Delta), casts into the same store, each payload under a key of its own. A quick
run writes a sample and scales it; a full run writes a whole day of the paper's contexts.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from roamcast.channels.past.part import Step, encode_step, key_of
from roamcast.lab.report import Claim, Report, Steps
from roamcast.live.store.store import SqliteStore
from roamcast.model.casts import LIFETIME_MAX, Cast
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context, body_of
from roamcast.model.filters import Filter
from roamcast.model.time import MICROSECONDS, parse_instant
from roamcast.pipeline.archive.append import append

TITLE = "TCC III-E: bytes of a day's contexts and of cached casts, as really written"

DAY_CONTEXTS = 50_000
PAPER_CONTEXT_BYTES = 2_000
PAPER_DAY_MB = 100.0
PAYLOAD_BYTES = 100_000
ROUTER_BYTES = 100e9
PAPER_CASTS = 1_000_000
CONTEXTS_QUICK = 5_000
CASTS_WRITTEN, CASTS_QUICK = 500, 100
WRITES_MAX = 1_000
MIDNIGHT = parse_instant("2026-11-10T00:00:00Z")
DAY_S = 86_400
NOTE_BYTES = 500


def run(quick: bool, progress: Steps) -> Report:
    """Write contexts of two sizes, and casts; weigh the files."""
    count = CONTEXTS_QUICK if quick else DAY_CONTEXTS
    casts = CASTS_QUICK if quick else CASTS_WRITTEN
    rows = []
    with progress("kinds written", 5) as step, TemporaryDirectory() as folder:
        for name, size in (("figure 2", 0), ("2 KB", PAPER_CONTEXT_BYTES)):
            contexts = draw_contexts(count, size)
            body = float(np.mean([len(body_of(context)) for context in contexts]))
            for form, write in (("log", write_log), ("archive", write_archive)):
                target = Path(folder) / f"{form}-{size}"
                each = write(contexts, target) / count
                rows.append(
                    {
                        "what": f"context of {name}",
                        "form": form,
                        "written": count,
                        "encoded_bytes": body,
                        "bytes": each,
                        "day_mb": each * DAY_CONTEXTS / 1e6,
                    }
                )
                step(1)
        each = write_casts(casts, Path(folder) / "casts") / casts
        rows.append(
            {
                "what": "cast of 100 KB",
                "form": "store",
                "written": casts,
                "encoded_bytes": PAYLOAD_BYTES,
                "bytes": each,
                "in_100_gb": ROUTER_BYTES / each,
                "new_a_day": ROUTER_BYTES / each / (LIFETIME_MAX / MICROSECONDS / DAY_S),
            }
        )
        step(1)
    parameters = {
        "contexts a day": DAY_CONTEXTS,
        "scaled (ours)": "from a sample" if quick else "contexts: no; casts: from a sample",
        "log": "one step each for begin and end; SQLite, checkpointed",
        "archive": "one append a day, Parquet with Delta's log",
    }
    return Report("tcc-storage", parameters, rows, _claims(rows))


def draw_contexts(count: int, size: int) -> list[Context]:
    """Draw a day's contexts as in TCC figure 2, filled up to `size` bytes with a note."""
    generator = np.random.default_rng([35, count])
    words = np.array(["the", "meeting", "room", "notes", "of", "agenda", "visitor", "lobby", "at"])
    begins = np.sort(generator.integers(0, DAY_S * MICROSECONDS, count))
    made = []
    for number in range(count):
        vid = generator.bytes(18).hex()[:24] + "@trust.example.org"
        attributes: dict[str, Any] = {
            "class": str(generator.choice(["pedestrian", "cyclist", "driver"])),
            "gender": str(generator.choice(["female", "male", "other"])),
            "age": int(generator.integers(15, 90)),
            "activity": str(generator.choice(["work", "walk", "shop", "meet"])),
        }
        point = (9.1 + float(generator.random()) / 10, 48.1 + float(generator.random()) / 10)
        begin = MIDNIGHT + int(begins[number])
        end = begin + int(generator.integers(1, 7_200)) * MICROSECONDS
        context = Context(vid, f"campus/b{number % 40}/{number % 7}", point, attributes, begin, end)
        short = size - len(body_of(context))
        draws = generator.integers(0, 10**6, max(0, short) // 8).tolist()
        text = " ".join(f"{words[draw % 9]}{draw // 9}" for draw in draws)
        # An attribute's text is bounded, so a long note is several; each has a name of its own.
        for at in range(0, short, NOTE_BYTES):
            attributes[f"note{at // NOTE_BYTES}"] = text[at : min(at + NOTE_BYTES - 10, short)]
        made.append(context)
    return made


def write_log(contexts: list[Context], folder: Path) -> int:
    """Write each context's begin and end as steps of the past; return the file's bytes."""
    rows: list[tuple[str, bytes | None]] = []
    for context in contexts:
        assert context.t_d is not None
        begin = Step(context.t_r, body_of(context))
        rows.append((key_of(context.t_r, context.vid), encode_step(begin)))
        rows.append((key_of(context.t_d, context.vid), encode_step(Step(context.t_d))))
    return asyncio.run(_write_rows(sorted(rows), folder))


def write_archive(contexts: list[Context], folder: Path) -> int:
    """Append a day's contexts to a new archive; return the bytes of all its files."""
    append(to_arrow(contexts), folder)
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def write_casts(count: int, folder: Path) -> int:
    """Write casts with their filters in normal form, payloads apart; return the file's bytes."""
    generator = np.random.default_rng(100)
    rows: list[tuple[str, bytes | None]] = []
    for number in range(count):
        west, south = generator.random(2) / 10
        wanted = Filter.parse(
            f"S_INTERSECTS(geometry, BBOX({9 + west:.4f}, {48 + south:.4f}, {9.01 + west:.4f}, "
            f"{48.01 + south:.4f})) AND age > {15 + number % 20} AND start_by(time, "
            "INTERVAL('2026-12-01T00:00:00Z', '2026-12-24T00:00:00Z'))"
        )
        cast = Cast(f"cast-{number:09}", wanted.text, b"", MIDNIGHT)
        stored = (cast, wanted.normal)
        rows.append((f"casts/{cast.id}", msgspec.msgpack.encode(stored)))
        rows.append((f"payloads/{cast.id}", generator.bytes(PAYLOAD_BYTES)))
    return asyncio.run(_write_rows(rows, folder))


async def _write_rows(rows: list[tuple[str, bytes | None]], folder: Path) -> int:
    folder.mkdir()
    path = folder / "store.db"
    store = SqliteStore.open(path)
    for at in range(0, len(rows), WRITES_MAX):
        await store.write(tuple(rows[at : at + WRITES_MAX]))
    store.checkpoint()
    await store.close()
    return sum(file.stat().st_size for file in folder.iterdir())


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    contexts = {(row["what"], row["form"]): row for row in rows if "day_mb" in row}
    claims = [
        Claim(f"MB a day for {what}, {form}", row["day_mb"], row["day_mb"] < PAPER_DAY_MB,
              bar=PAPER_DAY_MB, note=f"{row['bytes']:.0f} bytes each")
        for (what, form), row in contexts.items()
    ]  # fmt: skip
    cast = rows[-1]
    held = abs(cast["in_100_gb"] - PAPER_CASTS) <= PAPER_CASTS * 0.05
    claims.append(
        Claim("casts of 100 KB in 100 GB", cast["in_100_gb"], held, paper=PAPER_CASTS,
              tolerance=PAPER_CASTS * 0.05)
    )  # fmt: skip
    claims.append(
        Claim("new casts a day, each stored for 60 days", cast["new_a_day"],
              cast["new_a_day"] > 5_500, paper="more than 5,500",
              note="a million over 60 days are 16,667; 5,500 a day would last 180")
    )  # fmt: skip
    return claims


def draw(report: Report, path: Path) -> None:
    """Draw the MB of a day beside the paper's."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = [row for row in report.rows if "day_mb" in row]
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    axes.barh([f"{row['what']}, {row['form']}" for row in rows], [row["day_mb"] for row in rows],
              color="#2f6db3")  # fmt: skip
    axes.axvline(PAPER_DAY_MB, color="#c0504d", lw=1.2, label="TCC: 100 MB")
    axes.set_xlabel("MB a day, 50,000 contexts")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
