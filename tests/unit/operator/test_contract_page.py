"""docs/conditions.md is the contract as the code has it."""

from pathlib import Path

from drumroll_operator import conditions, contract_page, reasons

PAGE = Path(__file__).parents[3] / "docs" / "conditions.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == contract_page.page(), "run python -m drumroll_operator.contract_page docs/conditions.md"


def test_every_condition_and_every_reason_is_on_it() -> None:
    text = PAGE.read_text()
    for name in (*conditions.CONDITIONS, *reasons.documented()):
        assert f"| `{name}` |" in text


def test_every_constant_of_the_reasons_is_documented() -> None:
    constants = {value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)}
    assert constants == set(reasons.documented())


def test_it_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    assert contract_page.main([str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text() == contract_page.page()
    assert contract_page.main([]) == 2
