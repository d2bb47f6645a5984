"""The chart of speed.py: what compiling costs, how fast a step is and what memory it takes, model by model."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.measuring import Row

# Colours that stay apart in print and for people who see fewer of them.
COLOURS = {"kiln": "#d1495b", "peer": "#30638e", "jax": "#8d96a3", "eager": "#edae49"}
LABELS = {"kiln": "Kiln", "peer": "torch.compile", "jax": "JAX jit", "eager": "eager"}
# The beginning of rows' names, the panel's title, contestants, and what numbers are relative to.
PANELS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("cold compile, ", "Cold compile of a training step, seconds (log)", ("kiln", "peer", "jax"), ""),
    ("warm start, ", "Warm start, seconds (log)", ("kiln", "peer", "jax"), ""),
    ("training step, ", "Speed of a training step, eager = 1", ("kiln", "peer", "jax"), "eager"),
    ("peak memory, ", "Peak memory of a training step, eager = 1", ("kiln", "peer"), "eager"),
)


def draw(rows: list[Row], folder: str) -> None:
    """Write speed.png and speed.svg."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "kiln"
    from matplotlib import pyplot

    figure, places = pyplot.subplots(2, 2, figsize=(13, 10), layout="constrained")
    for axes, panel in zip(places.flat, PANELS, strict=True):
        draw_panel(axes, rows, *panel)
    handles = {
        label: handle for axes in places.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle("Training on two CPU threads: Kiln beside torch.compile, eager and JAX")
    os.makedirs(folder, exist_ok=True)
    figure.savefig(os.path.join(folder, "speed.png"), dpi=110)
    figure.savefig(os.path.join(folder, "speed.svg"), metadata={"Date": None})
    pyplot.close(figure)


def draw_panel(axes: Any, rows: list[Row], start: str, title: str, contestants: tuple[str, ...], base: str) -> None:
    chosen = [row for row in rows if row.name.startswith(start)]
    height = 0.8 / len(contestants)
    for number, contestant in enumerate(contestants):
        values = [shown_value(row, contestant, base) for row in chosen]
        where = [place + number * height for place, value in enumerate(values) if value is not None]
        lengths = [value for value in values if value is not None]
        if lengths:
            axes.barh(where, lengths, height, color=COLOURS[contestant], label=LABELS[contestant])
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(chosen))])
    axes.set_yticklabels([row.name.removeprefix(start) for row in chosen])
    axes.invert_yaxis()
    if base:
        axes.axvline(1, color=COLOURS[base], label=LABELS[base])
    else:
        axes.set_xscale("log")
        axes.set_xlim(left=0.05)
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_title(title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)


def shown_value(row: Row, contestant: str, base: str) -> float | None:
    """Seconds as they are; times as speed, and bytes as size, relative to the base."""
    value, unit = getattr(row, contestant), getattr(row, base) if base else None
    if value is None or not base:
        return value
    if not unit:
        return None
    return unit / value if row.unit == "s" else value / unit
