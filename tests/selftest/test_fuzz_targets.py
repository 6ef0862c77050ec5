"""A long search for inputs that break a parser reaches every target."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TARGETS = sorted(path.stem for path in TESTS.glob("native/*/*_fuzz.cc"))


def chosen() -> str:
    """The tests below tests/unit that `-k fuzz` chooses."""
    texts = []
    for path in sorted(TESTS.glob("unit/**/test_*.py")):
        text = path.read_text()
        if "fuzz" in path.name:
            texts.append(text)
        else:
            texts += re.findall(r"^def test_\w*fuzz\w*\(.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return "\n".join(texts)


def test_the_search_reaches_every_target() -> None:
    """`-k fuzz tests/unit`, as CONTRIBUTING.md says."""
    text = chosen()
    assert len(TARGETS) > 5
    missed = [t for t in TARGETS if not re.search(rf'"(?:\w+_)?{t.removesuffix("_fuzz")}(?:_fuzz)?"', text)]
    assert missed == []
