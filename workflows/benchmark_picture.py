"""Draw what benchmark.py measured: time over the floor per case, and what other libraries take for the same rows.

    python -m workflows.benchmark_picture workflows/results/benchmark

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


def best_floor(case: dict[str, Any]) -> float:
    """Return the median seconds of the faster way to reach the floor."""
    return float(min(case["floor_threads"]["median"], case["floor_blas"]["median"]))


def lines_of(results: dict[str, Any]) -> list[str]:
    """Return a Markdown table."""
    lines = [
        "Times over the floor; memory of a worker: measured peak / computed in advance, MiB.",
        "",
        "| case | floor, s | wall, median (min) | one core, median (min) | no kernel | aim | memory | tasks | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, case in results.items():
        core = case["processor"]
        lines.append(
            f"| {name} | {best_floor(case):.3f} | {case['ratio_median']:.2f} ({case['ratio_min']:.2f}) "
            f"| {core['moment_ratio_median']:.2f} ({core['moment_ratio_min']:.2f}) "
            f"| {core['moment_without_kernel_ratio_median']:.2f} ({core['moment_without_kernel_ratio_min']:.2f}) "
            f"| {case['target']:g} | {case['worker_mib_added']:.0f} / {case['worker_mib_computed']:.0f} "
            f"| {case['tasks']} | {case['machine']['load_before']:.1f} |"
        )
    for name, case in results.items():
        for rival, found in case["rivals"].items():
            text = f"{found['median'] / best_floor(case):.1f}" if "median" in found else next(iter(found.values()))
            lines.append(f"\n{name}, {rival}, times over the floor: {text}")
    machine = next(iter(results.values()))["machine"]
    blas, python, numpy = ", ".join(machine["blas"]), machine["python"], machine["numpy"]
    lines.append(f"\n{machine['cores']} cores, {machine['processor']}; {blas}; Python {python}, NumPy {numpy}.")
    return lines


def draw(results: dict[str, Any], place: Path) -> None:
    """Draw a bar per case and a mark per other library, on a logarithmic axis of times over the floor."""
    figure, axes = plt.subplots(figsize=(9, 0.6 * len(results) + 1.8), layout="constrained")
    names = list(results)
    for i, name in enumerate(names):
        case = results[name]
        axes.barh(i, case["ratio_median"] - 1, left=1, height=0.5, color="tab:blue")
        axes.plot([case["target"]] * 2, [i - 0.35, i + 0.35], color="black", linewidth=2)
        axes.text(
            max(case["ratio_median"], case["target"]) * 1.03, i, f"{case['ratio_median']:.2f}", va="center", fontsize=8
        )
    rivals = sorted({rival for case in results.values() for rival in case["rivals"]})
    for number, rival in enumerate(rivals):
        points = [(i, results[name]["rivals"].get(rival, {}).get("median")) for i, name in enumerate(names)]
        known = [(seconds / best_floor(results[names[i]]), i) for i, seconds in points if seconds is not None]
        if known:
            across, down = zip(*known, strict=True)
            axes.scatter(across, down, s=28, marker="osD^vP"[number % 6], label=rival, zorder=3)
    axes.plot([], [], color="black", linewidth=2, label="aim")
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.axvline(1, color="grey", linewidth=1)
    axes.set_xlabel("wall time over the floor (all cores, float64, rows in memory)")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
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
