"""What a run leaves is its user's alone, unless the folder was made for others, too."""

import stat
from pathlib import Path

from tasks.store.home import folder_within, private_folder, write_json
from tests.flows.conftest import Evaluate

RUN = ("--limit", "3", "--json", "--set", "filter_list=[{name: none, metric_list: [rouge1]}]")


def open_to_others(folder: Path) -> dict[str, str]:
    """Files and folders that anybody else may read, enter or write."""
    found = [folder, *folder.rglob("*")]
    return {
        str(path): oct(stat.S_IMODE(path.stat().st_mode))
        for path in found
        if not path.is_symlink() and path.stat().st_mode & 0o077
    }


def test_store_journal_and_results_are_the_users_alone(
    evaluate: Evaluate, home: Path, tmp_path: Path
) -> None:
    ran = evaluate(*RUN)
    assert ran.code == 0, ran.err
    for folder in (tmp_path / "store", tmp_path / "out", home / "journal", home / "server"):
        assert folder.is_dir()
        assert open_to_others(folder) == {}


def test_a_folder_that_was_made_for_a_group_stays_the_groups(evaluate: Evaluate, tmp_path: Path) -> None:
    for name in ("store", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o2770)
    ran = evaluate(*RUN)
    assert ran.code == 0, ran.err
    for name in ("store", "out"):
        files = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        folders = [path for path in (tmp_path / name).rglob("*") if path.is_dir()]
        assert files
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o660}
        assert {stat.S_IMODE(path.stat().st_mode) for path in folders} <= {0o2770}


def test_folders_that_are_there_keep_their_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    shared.chmod(0o755)
    made = private_folder(shared / "a" / "b")
    assert [oct(stat.S_IMODE(path.stat().st_mode)) for path in (shared, made.parent, made)] == [
        "0o755",
        "0o700",
        "0o700",
    ]
    assert stat.S_IMODE(folder_within(shared, shared / "c").stat().st_mode) == 0o755
    write_json(shared / "c" / "document.json", {})
    write_json(made / "document.json", {})
    assert stat.S_IMODE((shared / "c" / "document.json").stat().st_mode) == 0o644
    assert stat.S_IMODE((made / "document.json").stat().st_mode) == 0o600
