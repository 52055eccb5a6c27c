"""The pages on the adapters: their code runs, and no tutorial is long."""

import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "adapters").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS = {
    "sb3": ["stable_baselines3"], "torch": ["torch", "gymnasium"], "torchrl": ["torchrl"],
    "flashbax": ["flashbax", "rejax"],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    for module in NEEDS.get(page.stem, []):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    text, names = page.read_text(), {"__name__": page.stem}
    found = list(BLOCK.finditer(text))
    assert found or page.stem == "upstream"
    for block in found:
        code = "\n" * text.count("\n", 0, block.start(1)) + block.group(1)
        exec(compile(code, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_has_at_most_400_words(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert page.stem in ("README", "upstream") or len(prose.split()) <= 400


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_of_a_page_leads_somewhere(page):
    for link, place in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
        there = (page.parent / link).resolve() if link else page
        assert there.exists(), link
        if place:
            headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
            names = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert place in names, f"{link}#{place}"
