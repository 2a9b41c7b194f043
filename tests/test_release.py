"""What a release writes. tests/test_wheel.py tries its wheel."""

import datetime

import pytest
import release

DAY = datetime.date(2026, 12, 1)


def test_the_version_is_the_same_wherever_it_is_written():
    assert len(set(release.versions(release.ROOT).values())) == 1


def test_a_release_sets_the_version_and_dates_the_heading(tmp_path):
    for name in (*release.PLACES, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((release.ROOT / name).read_text())
    before = (tmp_path / "CHANGELOG.md").read_text()
    release.edit(tmp_path, "7.8.9", DAY)
    assert set(release.versions(tmp_path).values()) == {"7.8.9"}
    after = (tmp_path / "CHANGELOG.md").read_text()
    assert after.replace("\n## 7.8.9 - 2026-12-01\n", "", 1) == before
    with pytest.raises(ValueError, match="nothing under"):
        release.edit(tmp_path, "8.0.0", DAY)


def test_a_version_is_released_once():
    with pytest.raises(ValueError, match="has a section"):
        release.dated("## Unreleased\n\n- a\n\n## 0.1.0 - 2026-11-01\n\n- b\n", "0.1.0", DAY)
    assert release.dated("# C\n\n## Unreleased\n\n- a\n", "0.1", DAY) == (
        "# C\n\n## Unreleased\n\n## 0.1 - 2026-12-01\n\n- a\n"
    )
