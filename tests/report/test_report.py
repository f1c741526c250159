"""The page about a release: true, self-contained, safe to open whatever the columns are called, and readable."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.releases import assemble

from dpdist._util.text import exactly
from dpdist.errors import UsageError
from dpdist.ledger.ledger import Ledger
from dpdist.mechanisms.attack import KnownMoment
from dpdist.noise.entropy import SYSTEM
from dpdist.pca.scree import Scree
from dpdist.pipeline import budget
from dpdist.pipeline.release import release_rows
from dpdist.privacy.guarantee import Neighbours, PrivacyLoss
from dpdist.release.artefact import Release, open_release
from dpdist.release.request import ReleaseRequest
from dpdist.report.html import Shape, _accuracy, write
from dpdist.report.text import above_noise

pytest.importorskip("matplotlib")

HOSTILE = "<script>alert('$x$')</script>&\"'"
NAMES = (HOSTILE, "age", "height", "weight")


def released(
    mechanism: str = "gaussian", delta: str = "1e-6", epsilon: str = "2", clip: float = 1.0, **more: object
) -> Release:
    request = ReleaseRequest(
        mechanism, PrivacyLoss.parse(epsilon, delta), clip, for_reproduction=mechanism in {"sn", "none"}, options=more
    )
    bound, found = request.bound(4), request.calibrated(4)
    exact = np.diag([int(share * 5000 * clip**2 / bound.unit**2) for share in (0.6, 0.2, 0.1, 0.01)])
    return assemble(
        release_id="r-1", mechanism=mechanism, names=NAMES, neighbours=Neighbours.REPLACE_ONE, claim=found.claim,
        guarantee=found.guarantee, bound=bound, noise=found.noise, rows=5000,
        answer=found.answer(KnownMoment(exact), SYSTEM),
    )  # fmt: skip


def page(folder: Path, release: Release, **more: object) -> str:
    write(release, folder / "out.html", **more)  # type: ignore[arg-type]
    return (folder / "out.html").read_text()


def test_the_page_says_what_is_promised_and_what_stands_above_the_noise(tmp_path: Path) -> None:
    text = page(tmp_path, released(), count=4)
    assert "7.39 times" in text  # e²
    assert "Gaussian differential privacy" in text
    assert "dpdist.mechanisms.gaussian" in text
    assert re.search(r"[234] of 4 components stand above", text)
    assert text.count("data:image/png;base64,") == 2


@pytest.mark.parametrize("clip", [1e-4, 1.0, 2500.0, 65536.0, 1234567.0, 1e12])
def test_numbers_are_short_whatever_the_units_are(tmp_path: Path, clip: float) -> None:
    text = re.sub(r"base64,[^\"]*", "", page(tmp_path, released(clip=clip), count=4)).partition("<body>")[2]
    assert not re.findall(r"\d[eE][-+]?\d", text)  # 9.66245e+08
    assert not re.findall(r"\d{7}", text.partition("<h2>What stands")[2].partition("<p>All values")[0])
    cells = [html.unescape(cell) for cell in re.findall(r'<td class="n">([^<]*)</td>', text)]
    assert len(cells) == 4 * 6
    assert max(map(len, cells)) <= 2 * 8 + 3
    told = re.search(r"Euclidean norm ([^,]*),", text)
    assert told is not None
    assert told[1] == exactly(clip)


def test_components_that_are_drowned_are_not_drawn_as_if_they_were_seen(tmp_path: Path) -> None:
    text = page(tmp_path, released(epsilon="0.1"), count=4)
    assert re.search(r"Drowned, and perhaps nothing but noise: (\d, )*4\.", text)


def test_the_chance_of_telling_tables_apart_is_the_known_one() -> None:
    """Pure epsilon = log 3: 3/4. A Gaussian release of mu: Phi(mu/2), and mu is that of sigma = 4.2247 at (1, 1e-6)."""
    pure = released("two-sided-wishart", "0", "1.098612").guarantee
    gaussian = released("gaussian", "1e-6", "1").guarantee
    assert pure is not None
    assert gaussian is not None
    assert _accuracy(pure) == pytest.approx(0.75, abs=1e-6)
    assert _accuracy(gaussian) == pytest.approx(0.5471, abs=1e-4)  # Phi(1 / (2 * 4.2247))


def test_nothing_is_loaded_and_nothing_is_run_whatever_columns_are_called(tmp_path: Path) -> None:
    text = page(tmp_path, released())
    assert HOSTILE not in text
    assert "<script" not in text
    assert not re.findall(r'(?:src|href)\s*=\s*["\'](?!data:)', text)
    assert "default-src 'none'" in text


def test_what_a_release_says_of_itself_is_text_and_no_template(tmp_path: Path) -> None:
    hostile = f"{{{{ 10 ** 30 + 7 }}}}{{% raw %}}{HOSTILE}"
    release = replace(released(), release_id=hostile, ledger_head=hostile)
    text = page(tmp_path, release)
    assert html.unescape(text).count(f"<code>{hostile}</code>") == 3  # at the head, and twice in the citation
    assert "<script" not in text
    assert str(10**30 + 7) not in text  # which is no figure of a release


@pytest.mark.parametrize(("mechanism", "said"), [("sn", "claimed by its authors"), ("none", "Nothing is proved")])
def test_what_is_not_private_says_so_in_red(tmp_path: Path, mechanism: str, said: str) -> None:
    text = page(tmp_path, released(mechanism, "0"))
    assert said in text
    assert "class='status not'" in text
    assert "Do not publish it" in text
    assert "class='status private'" not in text


def test_a_subspace_shows_its_directions_only(tmp_path: Path) -> None:
    text = page(tmp_path, released("bingham", "0", components=2))
    assert "nothing about how strong they are" in text
    assert text.count("data:image/png;base64,") == 1


def test_components_may_be_images(tmp_path: Path) -> None:
    assert "as images" in page(tmp_path, released(), image=Shape.parse("2x2"))
    with pytest.raises(UsageError, match=r"\(image\)"):
        page(tmp_path, released(), image=Shape.parse("3x2"))
    for text in ("28", "ax4", "0x4", "2x2x1", "-2x-2"):
        with pytest.raises(UsageError, match=r"\(image\)"):
            Shape.parse(text)


def test_the_budget_is_that_of_the_ledger_that_was_charged(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.eye(4)[np.arange(300) % 4])
    rows, other = tmp_path / "a.zarr", tmp_path / "b.zarr"
    for table in (rows, other):
        budget.ingest_rows(tmp_path / "a.npy", table, budget=PrivacyLoss.parse("4", "1e-5"))
    request = ReleaseRequest("two-sided-wishart", PrivacyLoss.parse("1"), 1.0)
    release_rows(rows, tmp_path / "r.zarr", request)
    release = open_release(tmp_path / "r.zarr")
    ledger = Ledger(budget.default_ledger(rows))
    text = page(tmp_path, release, ledger=ledger)
    assert "So far: charged 1 release; left: one pure release of epsilon 3" in text
    assert ledger.head in text
    assert release.ledger_head is not None
    assert release.ledger_head in text
    with pytest.raises(UsageError, match="does not know"):
        page(tmp_path, release, ledger=Ledger(budget.default_ledger(other)))


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's package chromium")
def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    page(tmp_path, released(), count=4)
    shown = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--dump-dom", (tmp_path / "out.html").as_uri()],
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    text = html.unescape(re.sub(r"<[^>]+>", " ", shown.stdout))
    assert "What is promised" in text
    assert "squared cosine" in text
    assert "at least 95 of 100 releases" in text
    assert "script" not in re.sub(r"base64,[^\"]*", "", shown.stdout)


def test_a_table_of_which_all_is_noise_breaks_no_word_and_says_what_helps() -> None:
    values = np.array([5.4, 1.9])
    found = Scree(values, 7.1, 0.95, np.zeros(2), np.zeros(2), np.array([[0, 0.98]] * 2))
    words = " ".join(above_noise(found).split())
    assert "shortened" in words
    assert "0 components stand above it. A larger epsilon or more rows would lift some" in words
    assert "lift some" not in above_noise(replace(found, eigenvalues=values + 7, strengths=np.ones(2)))
