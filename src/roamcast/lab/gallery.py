"""The gallery: a page of all figures that were run, with claims beside the papers'."""

from collections import Counter
from html import escape
from pathlib import Path
from typing import Final

import msgspec

from roamcast.errors import MissingError, RoamcastError
from roamcast.lab import registry
from roamcast.lab.report import Claim, Report, shown

PAGE: Final = "index.html"

STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
img { max-width: 100%; height: auto; background: #fff; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 3rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; }
tr { border-bottom: 1px solid #8886; }
.verdict { white-space: nowrap; font-weight: 600; }
.not { text-decoration: underline dotted; }
"""


def write_gallery(folder: Path) -> Path:
    """Write the page of all reports in a folder; give its path."""
    reports = [_read(path) for path in sorted(folder.glob("*.json"))]
    if not reports:
        raise MissingError(
            f"no figure was run into {folder}: roamcast figure run NAME --out {folder}"
        )
    verdicts = Counter(claim.verdict for report in reports for claim in report.claims)
    counted = ", ".join(f"{count} {word}" for word, count in sorted(verdicts.items()))
    links = " · ".join(f'<a href="#{report.name}">{report.name}</a>' for report in reports)
    body = "".join(_section(report, folder) for report in reports)
    page = folder / PAGE
    page.write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Figures of Roamcast</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<h1>Figures beside the papers</h1><p>{len(reports)} figures; claims: {counted}.</p>"
        f"<nav>{links}</nav>{body}</html>\n",
        encoding="utf-8",
    )
    return page


def _read(path: Path) -> Report:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except msgspec.DecodeError as error:
        raise RoamcastError(f"{path} is no report of a figure: {error}") from None


def _section(report: Report, folder: Path) -> str:
    known = report.name in registry.figure_names()
    title = registry.figure(report.name).TITLE if known else report.name
    picture = ""
    if (folder / f"{report.name}.png").exists():
        picture = f'<img src="{report.name}.png" alt="{escape(title, quote=True)}" loading="lazy">'
    set_to = ", ".join(f"{name} = {shown(value)}" for name, value in report.parameters.items())
    rows = "".join(map(_row, report.claims))
    return (
        f'<section id="{report.name}"><h2>{escape(title)}</h2>{picture}'
        f"<p>{escape(set_to)}</p><table><thead><tr><th>verdict<th>claim<th>ours<th>theirs<th>note"
        f"</thead><tbody>{rows}</tbody></table></section>"
    )


def _row(claim: Claim) -> str:
    theirs = f"bar {shown(claim.bar)}" if claim.paper is None else shown(claim.paper)
    theirs += f" ± {shown(claim.tolerance)}" if claim.tolerance else ""
    mark = "verdict" if claim.held else "verdict not"
    cells = (claim.claim, shown(claim.ours), theirs, claim.note)
    return f'<tr><td class="{mark}">{claim.verdict}' + "".join(f"<td>{escape(c)}" for c in cells)
