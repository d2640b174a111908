"""Links, commands and code of the documentation are right, and every page is in the index."""

import ast
import csv
import functools
import importlib
import importlib.util
import keyword
import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest

import lingvo_moe as lm
from lingvo_moe.config import registry
from lingvo_moe.config.params import override

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TABLES = ROOT / "experiments" / "results"
GENERATED = [DOCS / "reference" / f"{name}.md" for name in ("tools", "params", "extension_points")]
WRITTEN = [*sorted(ROOT.glob("*.md")), *sorted({*DOCS.rglob("*.md")} - {*GENERATED})]
PAGES = [*WRITTEN, *GENERATED, *sorted(ROOT.glob("*/results/*.md"))]
KINDS = {  # directory -> the first words of its pages
    "start": "**Tutorial.**",
    "howto": "**How-to.**",
    "reference": "**Reference.**",
    "explain": "**Explanation.**",
    "dev": "**For contributors.**",
}
_COMMAND = re.compile(r"lingvo-moe-\w+")
TOOLS = ROOT / "lingvo_moe" / "tools"
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_BEFORE = re.compile(r"^ *(\$ |srun |setsid |- exec )")  # a command
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {text.strip().replace(" ", "-") for text in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    for link in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {path}, which is not there"
        if anchor:
            assert anchor in _anchors(target), f"{page.name}: {path} has no heading #{anchor}"


def test_every_page_is_in_the_index():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md"}
    assert not pages - set(_LINK.findall(index))


def test_size():
    total = sum(page.stat().st_size for page in WRITTEN)
    assert total <= 165_000, f"{total} bytes are written by hand: drop paragraphs, not words"
    assert (ROOT / "README.md").stat().st_size <= 5_000
    assert (ROOT / "CHANGELOG.md").stat().st_size <= 2_000


@pytest.mark.parametrize("page", sorted(DOCS.glob("*/*.md")), ids=lambda page: page.name)
def test_first_lines(page):
    """A page is of one kind and says which; a tutorial or how-to soon has a command."""
    lines = page.read_text(encoding="utf-8").splitlines()
    room = page.parent.name
    assert next(filter(None, lines[1:])).startswith(KINDS[room]), f"{page.name}: {KINDS[room]}"
    if room in ("start", "howto"):
        assert any(line.startswith("```") for line in lines[:10])


def test_few_numbers():
    """At most four per hundred words of what is not code; many numbers belong to results."""
    for page in WRITTEN:
        if page.parent.name in ("reference", "dev") or page.name == "results.md":
            continue
        text = _LINK.sub("]", _CODE.sub("", page.read_text(encoding="utf-8")))
        words = text.split()
        numbers = [word for word in words if re.match(r"[+\-−(~]*\d", word)]
        assert 100 * len(numbers) <= 4 * max(len(words), 100), f"{page.name}: {numbers}"


def test_results_are_those_of_their_tables():
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    averages, demo = (
        {row[0]: row[1:] for row in csv.reader((TABLES / name).read_text("utf-8").splitlines())}
        for name in ("tldr_averages.csv", "demo.csv")
    )
    for name, label in {"all": "all", "high": "most text", "low": "least text"}.items():
        pairs, bleu, bilingual, delta, _, floor, *_ = averages[name]
        assert f"| {label} | {pairs} | {bleu} | {bilingual} | {delta} | {floor} |" in page
    assert f"BLEU {demo['all'][1]}, bilingual {demo['all'][2]}." in page


def test_generated_pages_are_those_of_the_code():
    generated = runpy.run_path(str(DOCS / "reference" / "generate.py"))["pages"]()
    assert {page.name for page in GENERATED} == set(generated)
    for page in GENERATED:
        cure = "run python docs/reference/generate.py"
        assert page.read_text(encoding="utf-8") == generated[page.name], cure


def _commands(page: Path) -> list[list[str]]:
    """The words of each command line of a tool in the page's blocks of code."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").replace(" | ", "\n").splitlines()
    lines = [line for line in lines if any(map(_COMMAND.fullmatch, line.split()))]
    return [shlex.split(_BEFORE.sub("", line), comments=True) for line in lines]


@functools.cache
def _flags(tool: str) -> set[str]:
    """The flags of a tool."""
    table = importlib.import_module(
        f"lingvo_moe.tools.{tool + '_' * keyword.iskeyword(tool)}"
    ).TABLE
    return {*(flag.name for flag in table), "import", "debug", "flagfile", "help", "helpshort"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_of_tools_with_these_flags(page):
    for words in _commands(page):
        names = [word for word in words if _COMMAND.fullmatch(word)]
        assert words[0] in names, f"{page.name}: {' '.join(words)!r} does not begin with a tool"
        assert len(names) == 1, f"{page.name}: several commands in one line: {' '.join(words)!r}"
        ours = words[: words.index("--")] if "--" in words else words  # then a pipeline's options
        flags = [word[2:].partition("=")[0] for word in ours if word.startswith("--")]
        unknown = set(flags) - _flags(names[0].removeprefix("lingvo-moe-"))
        assert not unknown, f"{page.name}: {names[0]} has no flags {unknown}"


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_models_exist(page):
    known = set(registry.all_names())
    families = "|".join({name.partition(".")[0] for name in known})
    named = re.findall(rf"\b(?:{families})\.[A-Z]\w*", page.read_text(encoding="utf-8"))
    assert not set(named) - known


def test_the_manifests_fit_together():
    yaml = pytest.importorskip("yaml")
    page = (DOCS / "howto" / "cluster.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    service, job = yaml.safe_load_all(text)
    name, count = job["metadata"]["name"], job["spec"]["completions"]
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    (command,) = pod["containers"][0]["args"]
    assert f"--coordinator={name}-0.{pod['subdomain']}:" in command
    assert f"--process_count={count} --process_index=$JOB_COMPLETION_INDEX" in command


def test_the_first_model_splits_its_text(tmp_path):
    page = (DOCS / "start" / "first_model.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```\n(mkdir -p corpus.*?)^```", page, re.M | re.S)
    for pair in ("de-en", "en-es", "en-fr", "en-it", "en-nl", "en-ru"):
        for language in pair.split("-"):
            lines = "".join(f"{language} {n}\n" for n in range(1600))
            (tmp_path / f"X.{pair}.{language}").write_text(lines)
    subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, check=True)
    for language in ("de", "es", "fr", "it", "nl", "ru"):
        seen = set()
        for split, count in (("dev", 200), ("test", 400), ("train", 1000)):
            text = (tmp_path / "corpus" / split / f"{language}-en.tsv").read_text().splitlines()
            assert len(text) == count
            seen |= {*text}
        assert seen == {f"{language} {n}\ten {n}" for n in range(1600)}


def test_settings_in_commands_of_the_page_on_data_are_read():
    """--set of lingvo-moe-train, by the params of the command's model."""
    page = DOCS / "howto" / "prepare_text.md"
    commands = [words for words in _commands(page) if "lingvo-moe-train" in words]
    checked = 0
    for words in commands:
        (model,) = [w.partition("=")[2] for w in words if w.startswith("--model=")]
        texts = [w.removeprefix("--set=") for w in words if w.startswith("--set=")]
        override(registry.get_params(model), texts)
        checked += len(texts)
    assert checked >= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_pages_can_be_read_and_imports_what_exists(page):
    """Also attributes of `lm`; `doc_example_test` runs the code of own_routing.md."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lingvo_moe"):
                module = importlib.import_module(node.module)
                missing = [
                    one.name
                    for one in node.names
                    if not hasattr(module, one.name)
                    and not importlib.util.find_spec(f"{node.module}.{one.name}")
                ]
                assert not missing, f"{page.name}: {node.module} has no {missing}"
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "lm":
                assert node.attr in lm.__all__, f"{page.name}: there is no lm.{node.attr}"
