"""The page of `census report`: self-contained, escaped; in a real browser it draws, sorts and searches.

The browser is Debian's chromium under Playwright; without both, those tests are skipped and say so. Screenshots are
kept in build/screens.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from advice_data import ROOT, TRACES, UNFUSED
from census_data import change, trace

from analysis import cli

NODE = str(TRACES / "7b-d0-default-node.sqlite.gz")
EVIL = '<script>document.title="taken"</script>'
SCREENS = ROOT / "build" / "screens"


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """A trace with a kernel that is named like a script."""
    path = tmp_path_factory.mktemp("evil") / "evil.sqlite"
    shutil.copy(trace("llamacpp-qwen2-14b-h200"), path)
    return str(change(path, f"UPDATE StringIds SET value = '{EVIL}' WHERE value LIKE '%k_set_rows%'"))


@pytest.fixture(scope="module")
def page(evil, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "report.html"
    assert cli.run(["report", NODE, evil, "--tried", str(TRACES), "-o", str(out)]) == 0
    return out


def test_the_page_answers_first_and_needs_nothing_else(page):
    text = page.read_text()
    first = text[: text.index("<input")]
    for words in ("Where the time goes", "What to fuse next, and what it should save", "mmvq_q4_k", "launches"):
        assert words in first
    assert "What was tried" in text and "7b-d0-no-fuse-qkv" in text
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    assert text.count("<svg") == 5  # two runs of two figures, and the predictions


def test_names_are_text(page):
    text = page.read_text()
    assert EVIL not in text and "&lt;script&gt;document.title" in text
    assert text.count("<script>") == 1


def test_a_folder_and_mistakes(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(NODE, run / "trace.sqlite.gz")
    assert cli.run(["report", str(run), "-o", str(tmp_path / "r.html")]) == 0
    (tmp_path / "empty").mkdir()
    for args, says in ((["report", str(tmp_path / "empty")], "holds no trace"),
                       (["report", "nowhere.sqlite"], "nowhere"),
                       (["report", UNFUSED, "-o", str(tmp_path / "no" / "r.html")], "cannot be written"),
                       (["lab", str(tmp_path / "none")], "no such folder")):
        capsys.readouterr()
        assert cli.run(args) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and says in said


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pages are not opened in a browser")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium on this machine: pages are not opened in a browser")
    SCREENS.mkdir(parents=True, exist_ok=True)
    with playwright.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


def drawn(tab):
    """Boxes of the figures on the page that have a size and many marks."""
    return tab.evaluate("[...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width > 200 &&"
                        " s.querySelectorAll('path').length > 10).length")


def test_in_a_browser_it_draws_sorts_and_searches(browser, page):
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    errors = []
    tab.on("pageerror", lambda e: errors.append(str(e)))
    tab.goto(page.as_uri())
    tab.screenshot(path=SCREENS / "report.png")
    assert tab.title() == "Census report" and drawn(tab) == 5
    assert tab.locator("section.first").first.bounding_box()["y"] < 900
    assert tab.locator("td", has_text="<script>").count() >= 1
    head = tab.locator("table").first.locator("th").nth(1)  # launches per step
    numbers = "[...document.querySelector('table').tBodies[0].rows].map(r => Number(r.cells[1].dataset.v))"
    for reverse in (True, False):
        head.click()
        got = tab.evaluate(numbers)
        assert got == sorted(got, reverse=reverse) and len(set(got)) > 3
    tab.fill("#search", "mmvq_q6")
    seen = tab.locator("tbody tr:visible")
    assert 0 < seen.count() < 10 and all("mmvq_q6" in t for t in seen.all_inner_texts())
    tab.screenshot(path=SCREENS / "report-search.png")
    assert not errors


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_jupyterlab_opens_the_first_notebook(browser, tmp_path):
    pytest.importorskip("jupyterlab", reason="no JupyterLab: the notebook is not opened in a browser")
    port, folder, log = free_port(), tmp_path / "work" / "notebooks", tmp_path / "lab.log"
    shutil.copytree(ROOT / "notebooks", folder)
    (tmp_path / "work" / "traces").symlink_to(TRACES)
    command = [sys.executable, "-c", "from analysis.cli import main; main()", "lab", str(folder), "--port", str(port),
               "--no-browser"]
    with log.open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        url = wait_for(log, rf"http://127\.0\.0\.1:{port}/lab\?token=\w+")
        tab = browser.new_page(viewport={"width": 1400, "height": 3200})  # cells out of sight are not drawn
        assert tab.request.get(f"http://127.0.0.1:{port}/api/contents").status == 403  # no token, no entry
        tab.goto(url.replace("/lab?", "/lab/tree/1_read_a_ledger.ipynb?"))
        tab.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=30_000)
        tab.get_by_text(re.compile(r"\| Idle")).first.wait_for(timeout=30_000)  # cells run before that are lost
        tab.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Run$")).click()
        tab.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click(timeout=10_000)
        # JupyterLab shows an SVG output as an image: drawn when it has a width of its own
        wide = "[...document.querySelectorAll('.jp-RenderedSVG img')].filter(i => i.naturalWidth > 200).length"
        try:
            tab.wait_for_function(f"{wide} >= 2", timeout=30_000)
        finally:
            tab.screenshot(path=SCREENS / "lab.png")
        assert tab.locator(".jp-OutputArea-output table").count() >= 1
    finally:
        stop(server)


def wait_for(log: Path, pattern: str) -> str:
    for _ in range(150):
        found = re.search(pattern, log.read_text())
        if found:
            return found.group()
        time.sleep(0.2)
    raise AssertionError(log.read_text())


def stop(server):
    """End the server and what it started: they share a session of their own."""
    os.killpg(server.pid, signal.SIGTERM)
    server.wait(20)
