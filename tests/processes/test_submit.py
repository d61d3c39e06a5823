"""A training handed to a cluster, by submitit's local executor; and one that torchrun starts again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dapl.cli import main
from dapl.config import Config, dump_config
from dapl.processes.submit import SubmittedTraining
from dapl.runs.run import Run


def test_a_job_that_is_queued_again_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    words = ["train", "a.yaml", "--devices", "2", "--runtime.workers=0", "--model.heads", "3", "--out", str(tmp_path)]
    training = SubmittedTraining(words, tmp_path)
    assert training.command() == words
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.safetensors").touch()
    assert training.command() == ["train", "--resume", str(tmp_path), "--devices", "2", "--runtime.workers=0"]


@pytest.mark.slow
def test_submitted_and_restarted(
    configured: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit", reason="pip install 'dapl[cluster]'")
    path, run = tmp_path / "tiny.yaml", Run(tmp_path / "runs" / "tiny")
    path.write_text(dump_config(configured({"schedule": [{"stage": "warm_up", "epochs": 1}]})))
    command = ["train", str(path), "--out", str(run.folder)]
    assert main([*command, "--submit", "local", "--job", "timeout_min"]) == 2
    assert "--job: 'timeout_min' is not of the form field=value." in capsys.readouterr().err
    assert main([*command, "--submit", "nowhere"]) == 2
    assert main([*command, "--submit", "local", "--job", "timeout_min=20"]) == 0
    said = capsys.readouterr().out
    jobs = run.folder.with_name("tiny-jobs")
    assert f"what it says {jobs}" in said
    until = time.monotonic() + 500
    while not list(jobs.glob("*_result.pkl")):
        assert time.monotonic() < until
        time.sleep(0.2)
    logs = "".join(file.read_text() for file in [*jobs.glob("*.out"), *jobs.glob("*.err")])
    assert run.evaluation_file.exists(), logs

    assert main(command) == 2, "a run that is there is not overwritten"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert main(command) == 0, "torchrun has started the command again"
    assert "resuming at stage 2" in capsys.readouterr().err
