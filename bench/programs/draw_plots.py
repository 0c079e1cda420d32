"""The curves of the result files as SVG. Run by the interpreter of an environment with matplotlib.

Arguments: the folder for the pictures, then result files. Prints the names of the pictures.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt

COLOURS = {"npc-runtime": "#1b6ca8", "llama-server": "#d1495b", "direct loop": "#8d99ae"}
LABELS = {"direct loop": "bare loop (prefill only)"}
STYLES = ("-", "--")
CURVES = {
    "characters": ("bench-characters.svg", "characters in turn, room for {room}", "log"),
    "history": ("bench-history.svg", "tokens of the prompt", "linear"),
}


def draw(runs: list[Any], key: str, folder: Path) -> str | None:
    name, label, scale = CURVES[key]
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    room = 0
    for run, style in zip(runs, STYLES, strict=False):
        figures = run["workloads"].get(key, {}).get("figures", {})
        room = figures.get("room", room)
        for system, points in figures.get("curves", {}).items():
            x, p50, *_ = zip(*points, strict=True)
            said = f"{LABELS.get(system, system)}, {run['model']['type']}"
            axes.plot(x, p50, style, marker="o", markersize=4, color=COLOURS.get(system), label=said)
    if not axes.lines:
        plt.close(figure)
        return None
    axes.set(xlabel=label.format(room=room), ylabel="time to first text, p50, ms", yscale=scale)
    axes.set_ylim(bottom=0 if scale == "linear" else None)
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    figure.savefig(folder / name, metadata={"Date": None})
    plt.close(figure)
    return name


def main() -> None:
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "npc-runtime"
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    runs = [json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[2:]]
    for key in CURVES:
        if name := draw(runs, key, folder):
            print(name)


if __name__ == "__main__":
    main()
