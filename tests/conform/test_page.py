"""Reports in three forms: the page in a real browser, JUnit, and results of several runs side by side."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from nvconform import junit, page, report
from nvconform.casefile import known_profiles
from nvconform.cli import main
from nvconform.shapes import DocumentError

SEEN = {"mounts": {"/usr/bin/nvidia-smi": "ro nvidia-smi"}, "links": {"/usr/lib/a.so": "a.so.1"}, "rules": ["c 1:3 rw"]}
EXPECTED = {**SEEN, "mounts": {"/usr/bin/nvidia-debugdump": "ro nvidia-debugdump"}}
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--window-size=1500,1000", "--virtual-time-budget=4000"),
]
ARTEFACTS = Path(__file__).parents[2] / "conformance" / "report"


def result(identifier: str, status: str = "passed", lane: str = "root", **more: Any) -> dict[str, Any]:
    feature = identifier.split("/", maxsplit=1)[0]
    known = {"implementation": "mine", "runtime": "runc", "level": "MUST", "features": [feature], "seconds": 0.25}
    said = {"title": f"about {identifier}", "source": "a sentence", "seen": SEEN, "expected": SEEN}
    return {"id": identifier, "status": status, "lane": lane, "reason": "", "differences": [], **known, **said, **more}


RESULTS = [
    result("devices/all"),
    result("devices/all", lane="rootless", status="skipped", reason="no busybox"),
    result(
        "devices/one", "failed", differences=["mounts: x is missing"], expected=EXPECTED, message="it said <b>no\x1b"
    ),
    result("mig/all", "failed", level="SHOULD", differences=["message: y"]),
    result("imex/one", "deviates", reason="by design of </script>", cgroup="v2"),
]


def render(folder: Path) -> Path:
    path = folder / "index.html"
    path.write_text(page.render(RESULTS, [report.environment(RESULTS)], known_profiles()))
    return path


def test_a_failed_should_is_counted_apart() -> None:
    assert report.table(RESULTS) == [
        "lane        cases  passed  failed  failed SHOULD  by design  skipped",
        "root            4       1       1              1          1        0",
        "rootless        1       0       0              0          0        1",
        "skipped 1: no busybox",
        "by design 1: by design of </script>",
    ]


def test_columns_are_implementation_runtime_lane_and_cgroup() -> None:
    names = list(dict.fromkeys(junit.column(one) for one in RESULTS))
    assert names == ["mine / runc / root", "mine / runc / rootless", "mine / runc / root / cgroup v2"]


def test_junit_tells_failures_from_what_is_no_must() -> None:
    root = ET.fromstring(junit.render(RESULTS))
    suites = {suite.get("name"): suite for suite in root}
    assert suites["mine / runc / root"].get("failures") == "1"
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.get("message") == "mounts: x is missing"
    assert "it said <b>no?" in str(failure.text)
    assert len(root.findall(".//skipped")) == 3


def test_views_are_lines() -> None:
    assert page.view_lines(SEEN) == [
        "mounts: /usr/bin/nvidia-smi  ro nvidia-smi",
        "links: /usr/lib/a.so -> a.so.1",
        "rules: c 1:3 rw",
    ]


def test_families_stay_together() -> None:
    interleaved = [result("b/one"), result("a/one"), result("b/two"), result("a/one", lane="userns")]
    data = page.prepare(interleaved, [], known_profiles())
    assert [case["id"] for case in data["cases"]] == ["b/one", "b/two", "a/one"]
    assert list(data["cases"][2]["cells"]) == [0, 1]


def test_nothing_of_a_result_can_end_the_script(tmp_path: Path) -> None:
    text = render(tmp_path).read_text()
    data = text.split('type="application/json">')[1].split("</script>")[0]
    assert "<" not in data
    assert json.loads(data)["cases"][3]["cells"]["2"]["reason"] == "by design of </script>"
    assert not re.search(r'(src|href)="(?!data:)', text)


def test_results_of_several_runs_come_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.write_json(tmp_path / "one.json", "mine", RESULTS[:2])
    other = [{**one, "implementation": "other"} for one in RESULTS[:1]]
    report.write_json(tmp_path / "two.json", "other", other)
    out = tmp_path / "out"
    assert main(["report", str(tmp_path / "one.json"), str(tmp_path / "two.json"), "--out", str(out)]) == 0
    assert f"report: {out}/index.html" in capsys.readouterr().out
    document = json.loads((out / "report.json").read_text())
    assert document["implementation"] == "mine, other"
    assert len(document["results"]) == 3
    assert len(ET.parse(out / "junit.xml").getroot()) == 3
    assert "other / runc / root" in (out / "index.html").read_text()


@pytest.mark.parametrize("text", ["", "[]", '{"results": [1]}', '{"results": [{"id": "x"}]}'])
def test_a_file_that_is_no_result_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(DocumentError, match=r"some\.json: not a result of nvconform run --json"):
        report.read_json(path)


# -- in a browser


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
    )
    if not found:
        pytest.skip("no chromium is installed")
    return found


def start(browser: str, folder: Path, url: str, *more: str) -> str:
    command = [browser, *FLAGS, f"--user-data-dir={folder / 'profile'}", *more, url]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if finished.returncode != 0:
        pytest.skip(f"this chromium does not run here: {finished.stderr.strip()[-200:]}")
    return finished.stdout


# Fragment of the page's address, the cases that are shown, and what else is there.
VIEWS: list[tuple[str, list[str], list[str]]] = [
    ("", ["devices/all", "devices/one", "mig/all", "imex/one"], ["4 of 4 cases", "nvconform", "kernel"]),
    ("q=it%20said", ["devices/one"], ["1 of 4 cases"]),
    ("feature=devices&status=skipped", ["devices/all"], []),
    ("level=SHOULD", ["mig/all"], ['class="should"']),
]


@pytest.mark.parametrize(("fragment", "cases", "words"), VIEWS)
def test_search_and_filters(browser: str, tmp_path: Path, fragment: str, cases: list[str], words: list[str]) -> None:
    dom = start(browser, tmp_path, f"{render(tmp_path).as_uri()}#{fragment}", "--dump-dom")
    rows = dom.split('<tbody id="rows">')[1].split("</tbody>")[0]
    assert re.findall(r"<code>([^<]+)</code>", rows) == cases
    for word in words:
        assert word in dom


def test_a_cell_opens_both_views_and_their_difference(browser: str, tmp_path: Path) -> None:
    address = f"{render(tmp_path).as_uri()}#open=devices/one@0"
    panels = [
        start(browser, tmp_path, f"{address}&view={view}", "--dump-dom")
        .split('<aside id="panel"')[1]
        .split("</aside>")[0]
        for view in ("difference", "seen", "expected")
    ]
    assert '<div class="less">' in panels[0]
    assert "nvidia-debugdump" in panels[0]
    assert '<div class="more">' in panels[0]
    assert "c 1:3 rw" not in panels[0]
    assert "nvidia-smi" in panels[1]
    assert "nvidia-debugdump" not in panels[1].split('class="seen"')[1]
    assert "nvidia-debugdump" in panels[2].split('class="expected"')[1]
    assert "it said &lt;b&gt;no" in panels[0]


def test_a_screenshot_is_kept(browser: str, tmp_path: Path) -> None:
    ARTEFACTS.mkdir(exist_ok=True)
    picture = ARTEFACTS / "page.png"
    picture.unlink(missing_ok=True)
    start(browser, tmp_path, f"{render(tmp_path).as_uri()}#open=devices/one@0", f"--screenshot={picture}")
    assert picture.read_bytes().startswith(b"\x89PNG")
