"""What `loom doctor` says of the sizes of the stores, and of their growth."""

from pathlib import Path

from loom.store_sizes import DAY, folder_size, size_and_growth

URL = "postgresql://127.0.0.1/loom"
BEGAN = 1_800_000_000.0


def test_the_first_reading_has_no_growth(tmp_path: Path) -> None:
    assert size_and_growth(tmp_path, "postgres", URL, 84_000_000, now=BEGAN) == {"bytes": 84_000_000, "note": "84.0 MB"}


def test_later_readings_are_compared_with_it(tmp_path: Path) -> None:
    size_and_growth(tmp_path, "postgres", URL, 84_000_000, now=BEGAN)
    size_and_growth(tmp_path, "redis", URL, 500, now=BEGAN)
    assert size_and_growth(tmp_path, "postgres", URL, 85_200_000, now=BEGAN + 3 * 3600) == {
        "bytes": 85_200_000,
        "growth": {"bytes": 1_200_000, "seconds": 10_800},
        "note": "85.2 MB, +1.2 MB in 3 h",
    }
    assert size_and_growth(tmp_path, "redis", URL, 300, now=BEGAN + 90)["note"] == "300 bytes, -200 bytes in 90 s"


def test_after_a_day_a_new_reading_takes_its_place(tmp_path: Path) -> None:
    for hours, size in ((0, 1000), (25, 3000), (26, 4000)):
        entry = size_and_growth(tmp_path, "postgres", URL, size, now=BEGAN + hours * 3600)
    assert entry["growth"] == {"bytes": 1000, "seconds": 3600}


def test_another_server_is_not_compared(tmp_path: Path) -> None:
    size_and_growth(tmp_path, "postgres", URL, 1000, now=BEGAN)
    assert "growth" not in size_and_growth(tmp_path, "postgres", f"{URL}2", 5000, now=BEGAN + DAY)


def test_without_a_home_directory_or_with_a_broken_file_only_the_size_is_known(tmp_path: Path) -> None:
    (tmp_path / "sizes.json").write_text("{")
    for home in (tmp_path / "missing", tmp_path):
        assert size_and_growth(home, "redis", URL, 1000, now=BEGAN) == {"bytes": 1000, "note": "1.0 KB"}


def test_the_note_names_what_takes_the_most_space(tmp_path: Path) -> None:
    kinds = {"effects": 16_000, "memory": 60_000_000, "audit log": 4_000_000, "artifacts": 900_000}
    entry = size_and_growth(tmp_path, "postgres", URL, 84_000_000, kinds=kinds, now=BEGAN)
    assert entry["note"] == "84.0 MB (memory 60.0 MB, audit log 4.0 MB, artifacts 900.0 KB)"
    assert entry["kinds"] == kinds


def test_the_size_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "pack").write_bytes(b"x" * 700)
    (tmp_path / "HEAD").write_bytes(b"x" * 30)
    assert folder_size(tmp_path) == 730
    assert folder_size(tmp_path / "missing") == 0
