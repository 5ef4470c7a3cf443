"""Where a run keeps things."""

from pathlib import Path

from flows.config.schema import RunOptions
from flows.eval.start import workspace


def test_answers_on_their_way_to_one_store_are_not_moved_to_another(tmp_path: Path) -> None:
    stores = [str(tmp_path / "a"), str(tmp_path / "b"), "memory://a"]
    assert len({workspace(RunOptions(store=store)).journal_dir for store in stores}) == 3


def test_a_store_is_the_same_by_whatever_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    spelled = [str(tmp_path / "a"), f"{tmp_path}/./a/", str(tmp_path / "link")]
    assert len({workspace(RunOptions(store=store)).journal_dir for store in spelled}) == 1
