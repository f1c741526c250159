"""Draw what benchmark.py measured: time over the floor per case, what other libraries take, and start-up times.

    python -m benchmarks.benchmark_picture benchmarks/results/benchmark

reads NAME.json and writes NAME.png and NAME.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

KINDS = {"float32": "float32", "uint8": "8-bit integers"}
COLUMNS = (
    "case", "grid bits", "floor, s", "all cores (min)", "16-bit floor", "aim", "one core", "its 16-bit floor",
    "reading", "by float64", "and NumPy", "multiplied, bounded by", "load",
)  # fmt: skip
START_UP_AIMS = {"--version": 0.15, "--help": 0.3, "release": 1.0, "demo": 5.0}
"""Seconds, the first three beside Python's own start."""
OURS, CORE, FLOAT, INTEGER, OTHER = "#1f5fa8", "#9cc3e6", "#555555", "#d9822b", "#b5b5b5"


def best_floor(case: dict[str, Any]) -> float:
    """Return the median seconds of the faster way to reach the floor."""
    return float(min(case["floor_threads"]["median"], case["floor_blas"]["median"]))


def title_of(case: dict[str, Any]) -> str:
    """Return what a case is, in words."""
    rows = case["rows"]
    many = f"{rows / 1e6:g} million" if rows >= 1_000_000 else f"{rows:,}".replace(",", " ")
    packed = ", compressed" if case["compressed"] else ""
    return f"{many} x {case['columns']}, grid bits {case['grid_bits']}\n{KINDS[case['dtype']]}{packed}"


def written(found: float | None) -> str:
    """Return a ratio, or nothing."""
    return "" if found is None else f"{found:.2f}"


def lines_of(results: dict[str, Any]) -> list[str]:
    """Return Markdown tables."""
    cases = results["cases"]
    lines = [
        "Times over the float64 floor, medians; in brackets the least over the least floor, which other processes move",
        "less; load is how many were ready to run. One core: processor seconds of a partition, in turns with the",
        "floor of its rows.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    for name, case in cases.items():
        core = case["processor"]
        ratios = (
            "moment_ratio",
            "floor_int16_ratio",
            "read_ratio",
            "moment_float64_ratio",
            "moment_without_kernel_ratio",
        )
        lines.append(
            f"| {name} | {case['grid_bits']} | {best_floor(case):.3f} "
            f"| {case['ratio_median']:.2f} ({case['ratio_min']:.2f}) "
            f"| {written(case['ratio_int16'])} | {written(case['target'])} "
            f"| {' | '.join(written(core.get(each)) for each in ratios)} "
            f"| {case['multiplied_by']}, {case['bounded_by']} "
            f"| {case['machine']['load_before']:.1f} |"
        )
    for name, case in cases.items():
        if case["command"] is not None:
            lines.append(f"\n{name}, the whole command dpdist release: {case['command']['median']:.2f} s")
        for rival, found in case["rivals"].items():
            text = f"{found['median']:.2f} s" if "median" in found else next(iter(found.values()))
            lines.append(f"\n{name}, {rival}: {text}")
    if "start_up" in results:
        lines += ["", "| command | seconds beside Python's start | processor seconds | aim |", "|---|---|---|---|"]
        lines += [
            f"| {each['command']} | {each['seconds']:.2f} | {each['cpu_seconds']:.2f} "
            f"| {written(START_UP_AIMS.get(each['command']))} |"
            for each in results["start_up"]["commands"]
        ]
    first = next(iter(cases.values()))
    machine = first["machine"]
    blas, python, numpy = ", ".join(machine["blas"]), machine["python"], machine["numpy"]
    lines.append(f"\n{machine['cores']} cores, {machine['processor']}; {blas}; Python {python}, NumPy {numpy}.")
    return lines


def draw_cases(axes: Axes, cases: dict[str, Any]) -> None:
    """Draw two bars for each case, and what they are to be compared with."""
    aimed = False
    for i, case in enumerate(cases.values()):
        core = case["processor"]
        for place, found, colour in ((i - 0.19, case["ratio_median"], OURS), (i + 0.19, core["moment_ratio"], CORE)):
            axes.barh(place, found, height=0.36, color=colour)
            ink = "white" if colour == OURS else "black"
            axes.text(0.015, place, f"{found:.2f}", va="center", fontsize=9, weight="bold", color=ink)
        for place, found in ((i - 0.19, case["ratio_int16"]), (i + 0.19, core.get("floor_int16_ratio"))):
            if found is not None:
                axes.plot([found] * 2, [place - 0.18, place + 0.18], color=INTEGER, linewidth=3)
        if case["target"] is not None:
            aimed = True
            axes.plot(case["target"], i, marker="D", color="black", markersize=5)
    cores = next(iter(cases.values()))["machine"]["cores"]
    axes.axvline(1, color=FLOAT, linestyle="--", linewidth=1.2)
    axes.barh(0, 0, color=OURS, label=f"dpdist, {cores} cores: read, check, bound, round, verify, sum")
    axes.barh(0, 0, color=CORE, label="dpdist, one core (processor time)")
    axes.plot([], [], color=FLOAT, linestyle="--", label="float64 BLAS: the products alone, rows in memory")
    axes.plot([], [], color=INTEGER, linewidth=3, label="16-bit integers: the products alone, rows in the cache")
    if aimed:
        axes.plot([], [], color="black", marker="D", linestyle="", markersize=5, label="aim, all cores")
    axes.set_yticks(range(len(cases)), [title_of(case) for case in cases.values()], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(1.1, *(max(c["ratio_median"], c["processor"]["moment_ratio"]) for c in cases.values())))
    axes.set_xlabel("time of the exact sum, divided by that of float64 BLAS: shorter is faster")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.11), ncols=1, frameon=False, fontsize=8)
    axes.set_title("The exact sum of private rows, beside the fastest inexact one", fontsize=10, loc="left")


def draw_rivals(axes: Axes, case: dict[str, Any]) -> None:
    """Draw a bar of seconds for dpdist and each other library that was there."""
    known = {name: found["median"] for name, found in case["rivals"].items() if "median" in found}
    ours = {"dpdist, the sum": case["moment"]["median"], "dpdist release, all of it": case["command"]["median"]}
    seconds = {**ours, "float64 BLAS alone": best_floor(case), **known}
    for i, (name, found) in enumerate(sorted(seconds.items(), key=lambda each: each[1])):
        axes.barh(i, found, color=OURS if name in ours else OTHER)
        axes.text(found, i, f" {found:.3g} s", va="center", fontsize=8)
    axes.set_yticks(
        range(len(seconds)), [name for name, _ in sorted(seconds.items(), key=lambda each: each[1])], fontsize=8
    )
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(seconds.values()))
    axes.set_xlabel("seconds")
    axes.set_title(f"The same rows by others:\n{title_of(case).replace(chr(10), ' ')}", fontsize=10, loc="left")


def draw_start_up(axes: Axes, commands: list[dict[str, Any]]) -> None:
    """Draw a bar for each command."""
    for i, each in enumerate(commands):
        axes.barh(i, each["seconds"], color=OURS)
        aim = START_UP_AIMS.get(each["command"])
        if aim is not None:
            axes.plot(aim, i, marker="D", color="black", markersize=5)
        axes.text(max(each["seconds"], aim or 0) + 0.1, i, f"{each['seconds']:.2f} s", va="center", fontsize=8)
    axes.set_yticks(range(len(commands)), [each["command"] for each in commands], fontsize=8)
    axes.set_xlim(0, 1.15 * max(max(each["seconds"], START_UP_AIMS.get(each["command"], 0)) for each in commands))
    axes.invert_yaxis()
    axes.set_xlabel("seconds beside Python's own start (diamond: aim)")
    axes.set_title("Commands on 2000 x 50", fontsize=10, loc="left")


def draw(results: dict[str, Any], place: Path) -> None:
    """Draw the cases on the left, and what there is of the rest on the right."""
    cases = results["cases"]
    others = next((case for case in cases.values() if any("median" in each for each in case["rivals"].values())), None)
    commands = results.get("start_up", {}).get("commands", [])
    right = (others is not None) + bool(commands)
    figure = plt.figure(figsize=(7.5 + 5 * bool(right), max(4.5, 0.8 * len(cases) + 2.6)), layout="constrained")
    grid = figure.add_gridspec(max(1, right), 2 if right else 1, width_ratios=[3, 2] if right else None)
    draw_cases(figure.add_subplot(grid[:, 0]), cases)
    if others is not None:
        draw_rivals(figure.add_subplot(grid[0, 1]), others)
    if commands:
        draw_start_up(figure.add_subplot(grid[-1, 1]), commands)
    figure.savefig(place, dpi=110)


def main() -> None:
    """Write picture and table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="NAME.json is read, NAME.png and NAME.md are written.")
    name = parser.parse_args().name
    results = json.loads(Path(f"{name}.json").read_text(encoding="utf-8"))
    draw(results, Path(f"{name}.png"))
    text = "\n".join(lines_of(results)) + "\n"
    Path(f"{name}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
