"""Requests shared out to the processes of torchrun: the same rows, whoever answers."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from eval import k2vv
from eval.records import ResultRow, ResultsFile, RowsFile, RunMismatch, part_of
from eval.sharding import Place
from tests.endpoints import ENVIRONMENT, ROOT, lines_of, wait_until

LIMIT = 4
OPTIONS = ("--mode", "constrained", "--limit", str(LIMIT))
RUN = {"model": "m"}


def torchrun(size, *arguments):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.Popen(
        [*launcher, "--nproc-per-node", str(size), "-m", "eval.k2vv", *map(str, arguments)],
        cwd=ROOT,
        env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of a run by one process."""
    folder = tmp_path_factory.mktemp("alone")
    assert k2vv.main([*OPTIONS, "--output", str(folder)]) == 0
    return folder


def test_rows_are_those_of_one_process(alone, tmp_path):
    shared = tmp_path / "shared"
    process = torchrun(2, *OPTIONS, "--output", shared)
    said, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert said.count("written to") == 1
    one, two = (by_index(folder / "constrained" / "results.jsonl") for folder in (alone, shared))
    assert sorted(two) == list(range(1, LIMIT + 1))
    for index, row in one.items():
        here, there = row["masked_sampling"], two[index]["masked_sampling"]
        assert here["token_ids"] == there["token_ids"] or here["near_ties"]
    assert not list((shared / "constrained").glob("*.rank*"))
    summary = json.loads((shared / "constrained" / "summary.json").read_text())
    assert summary["masked_sampling"]["adds_up"]


def by_index(path):
    rows = lines_of(path)
    found = {row["data_index"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def test_killed_with_two_processes_it_resumes_with_one(tmp_path):
    arguments = ("--mode", "free", "--limit", "12", "--batch-size", "1", "--output", tmp_path)
    process = torchrun(2, *arguments)
    parts = [part_of(tmp_path / "free" / "results.jsonl", rank) for rank in range(2)]

    def some():
        return sum(p.read_bytes().count(b"\n") for p in parts if p.exists()) >= 3

    wait_until(some, process, seconds=240)
    # torchrun's workers lead process groups of their own.
    everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in everyone:
        one.kill()
    process.communicate()
    psutil.wait_procs(everyone, timeout=30)
    kept = [row for part in parts if part.exists() for row in whole_lines(part)]
    assert len(kept) >= 3
    assert k2vv.main([str(argument) for argument in arguments]) == 0
    rows = lines_of(tmp_path / "free" / "results.jsonl")
    assert sorted(row["data_index"] for row in rows) == list(range(1, 13))
    assert all(row in rows for row in kept)
    assert not list((tmp_path / "free").glob("*.rank*"))


def whole_lines(path):
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def test_a_refusal_ends_every_process(alone):
    results = alone / "constrained" / "results.jsonl"
    before = results.read_bytes()
    process = torchrun(2, *OPTIONS, "--output", alone, "--temperature", "0.5")
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 1  # torchrun's own
    assert "temperature was absent, is 0.5" in errors
    assert results.read_bytes() == before


class TestPlace:
    def test_without_torchrun_it_is_the_only_process(self):
        place = Place.of_environment({})
        assert (place.rank, place.size) == (0, 1)
        assert place.share([1, 2, 3]) == [1, 2, 3]
        assert place.device("cuda") == "cuda"

    @pytest.mark.parametrize("size", [1, 2, 3, 7])
    def test_shares_are_every_nth_and_cover_all(self, size):
        items = list(range(20))
        shares = [Place(rank, size).share(items) for rank in range(size)]
        assert sorted(item for share in shares for item in share) == items
        for rank, share in enumerate(shares):
            assert all(item % size == rank for item in share)

    def test_each_has_its_own_gpu(self):
        place = Place.of_environment({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"})
        assert (place.rank, place.first) == (9, False)
        assert place.device("cuda") == "cuda:1"
        assert place.device("cpu") == "cpu"
        assert place.device("cuda:0") == "cuda:0"

    @pytest.mark.parametrize("environment", [("x", "2"), ("2", "2"), ("-1", "2"), ("0", "0")])
    def test_nonsense_is_refused(self, environment):
        rank, size = environment
        with pytest.raises(ValueError, match="RANK"):
            Place.of_environment({"RANK": rank, "WORLD_SIZE": size})


class TestParts:
    def rows(self, *indices, **fields):
        known = {"status": "success", "hash": "h", **fields}
        return [ResultRow(data_index=i, **known) for i in indices]

    def write(self, path, rows):
        with RowsFile(path) as file:
            file.extend(rows)

    def test_opening_takes_in_what_the_parts_hold(self, tmp_path):
        path = tmp_path / "results.jsonl"
        with ResultsFile(path, run_key=RUN) as file:
            file.extend(self.rows(1))
        self.write(part_of(path, 0), self.rows(2, 4))
        self.write(part_of(path, 11), self.rows(3))
        with part_of(path, 11).open("ab") as torn:
            torn.write(b'{"data_index": 5, "st')
        with ResultsFile(path, run_key=RUN) as file:
            assert [row.data_index for row in file.rows()] == [1, 2, 3, 4]
            assert "torn" in file.notes[0]
        assert sorted(p.name for p in tmp_path.iterdir()) == ["results.jsonl", "run.json"]

    def test_a_kill_between_moving_and_removing_doubles_nothing(self, tmp_path, monkeypatch):
        path = tmp_path / "results.jsonl"
        ResultsFile(path, run_key=RUN).close()
        self.write(part_of(path, 0), self.rows(1, 2))

        def killed(self):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", killed)
            with pytest.raises(KeyboardInterrupt):
                ResultsFile(path, run_key=RUN)
        assert part_of(path, 0).exists()
        with ResultsFile(path, run_key=RUN) as file:
            assert [row.data_index for row in file.rows()] == [1, 2]
        assert len(path.read_bytes().splitlines()) == 2

    def test_a_row_of_a_part_is_newer_than_one_that_failed(self, tmp_path):
        path = tmp_path / "results.jsonl"
        with ResultsFile(path, run_key=RUN) as file:
            file.extend(self.rows(1, status="failed"))
        self.write(part_of(path, 0), self.rows(1))
        with ResultsFile(path, run_key=RUN) as file:
            assert [row.status for row in file.rows()] == ["success"]

    def test_parts_of_another_run_are_refused_and_overwritten_when_told(self, tmp_path):
        path = tmp_path / "results.jsonl"
        ResultsFile(path, run_key=RUN).close()
        self.write(part_of(path, 0), self.rows(1))
        with pytest.raises(RunMismatch, match='model was "m", is "other"'):
            ResultsFile(path, run_key={"model": "other"})
        assert part_of(path, 0).exists()
        with ResultsFile(path, run_key={"model": "other"}, overwrite=True) as file:
            assert file.rows() == []
        assert not part_of(path, 0).exists()

    def test_a_part_that_is_being_written_is_left_alone(self, tmp_path):
        path = tmp_path / "results.jsonl"
        ResultsFile(path, run_key=RUN).close()
        with RowsFile(part_of(path, 0)), pytest.raises(RunMismatch, match="another process"):
            ResultsFile(path, run_key=RUN)
