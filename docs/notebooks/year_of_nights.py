# %% [markdown]
# # Many nights, one budget
#
# Rows arrive every night, and each row belongs to one night. Every night publishes the total of all rows so far. The
# budget is spent once per row, not once per night. How much noise does the total contain? This notebook compares three
# methods over 24 nights.

# %%
import subprocess
from datetime import date, timedelta
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np

import dpdist

NIGHTS, COLUMNS = 24, 8
folder = Path(mkdtemp())
days = [date(2026, 1, 1) + timedelta(days=i) for i in range(NIGHTS)]
random = np.random.default_rng(0)
tables = [random.normal(size=(200, COLUMNS)) * np.linspace(3, 1, COLUMNS) for _ in days]


def arrive(name: str, night: int) -> None:
    """Let the rows of a night arrive: a file that appears whole, by a rename."""
    incoming = folder / name
    incoming.mkdir(exist_ok=True)
    header = ",".join(f"c{i}" for i in range(COLUMNS))
    np.savetxt(incoming / ".new", tables[night], delimiter=",", header=header, comments="", fmt="%.3f")
    (incoming / ".new").rename(incoming / f"{days[night]}.csv")


# %% [markdown]
# A job file describes the whole job. A scheduler starts `dpdist run` every night, any number of times. Finished periods
# are not released again, and missed ones are processed later.

# %%
FORMS = {
    "single nights": "",
    "tree": "continual = 24",
    "square root": 'continual = 24\nfactorisation = "square-root"',
}
for form, lines in FORMS.items():
    name = form.replace(" ", "-")
    (folder / f"{name}.toml").write_text(f"""
[rows]
path = "{name}-rows"
source = "{name}-incoming"
periods = true
header = "yes"
budget_epsilon = 1
budget_delta = 1e-6

[release]
path = "{name}"
epsilon = 1
delta = 1e-6
clip = 10
{lines}
""")
    for night in range(NIGHTS):
        arrive(f"{name}-incoming", night)
        done = subprocess.run(["dpdist", "run", f"{name}.toml"], cwd=folder, capture_output=True, text=True, check=True)
    print(f"{form}: {done.stderr.strip().splitlines()[-1]}")

# %% [markdown]
# **The noise of the total**, night by night: the root mean square error over all entries. The rows are synthetic, so
# the exact total is known here; each release states the standard deviation of its noise without it. The sums of single
# nights are computed here.

# %% mystnb={"image": {"alt": "Error of the total by night: it grows with single nights, hardly with a square root."}}
norms = [np.linalg.norm(table, axis=1, keepdims=True) for table in tables]
clipped = [table * np.minimum(1, 10 / norm) for table, norm in zip(tables, norms, strict=True)]
exact = np.cumsum([table.T @ table for table in clipped], axis=0)


def released(form: str) -> np.ndarray:
    """Return the private total after each night from the second one on, (nights - 1, d, d)."""
    place = folder / form.replace(" ", "-")
    if form == "single nights":
        nights = [dpdist.open_release(place / f"{day}.zarr").second_moment for day in days]
        return np.cumsum(nights, axis=0)[1:]
    return np.array([dpdist.open_release(place / "total" / f"{day}.zarr").second_moment for day in days[1:]])


figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
for form, style in zip(FORMS, ("-", "--", ":"), strict=True):
    error = released(form) - exact[1:]
    axes.plot(range(2, NIGHTS + 1), np.sqrt((error**2).mean(axis=(1, 2))), style, lw=2, label=form)
axes.set(xlabel="night", ylabel="root mean square error of the total", ylim=(0, None))
_ = axes.legend(frameon=False)

# %% [markdown]
# The noise of single nights grows with the square root of their number. With a tree it grows logarithmically, and with
# a square root it is smaller still, at the cost of reading more rows each night.
