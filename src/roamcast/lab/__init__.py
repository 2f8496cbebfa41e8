"""The papers' figures, one module each: `cbm_3.py` is the figure `cbm-3`.

A figure module has `TITLE`, `run(quick, progress) -> Report` and `draw(report, path) -> None`;
`roamcast.lab.registry` finds it by its file name.
"""
