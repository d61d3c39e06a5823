"""A training handed to a cluster: submitit writes the batch script, sends it off and keeps what the job says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dapl.common.errors import DaplError, needing, reason_of
from dapl.config import Config


class SubmittedTraining:
    """What a job does: the command, or, once there is a checkpoint, to go on from it.

    SLURM warns a job before it is preempted or its time is over; submitit then calls `checkpoint` and queues it again.

    >>> SubmittedTraining(["train", "cub20.yaml"], Path("runs/cub20")).command()
    ['train', 'cub20.yaml']
    """

    def __init__(self, words: Sequence[str], out: Path) -> None:
        """``words`` of a command ``dapl …`` that makes the run ``out``."""
        self.words, self.out = list(words), out

    def command(self) -> list[str]:
        if not (self.out / "checkpoints" / "last.safetensors").exists():
            return self.words
        return ["train", "--resume", str(self.out), *self._runtime()]

    def _runtime(self) -> list[str]:
        """Flags that say where and how fast, which a resumed run takes too."""
        names = ("--runtime.", "--cache.", "--devices", "--nodes", "--accelerator", "--precision")
        pairs = zip(self.words, [*self.words[1:], ""], strict=True)
        return [
            part
            for word, after in pairs
            if word.startswith(names)
            for part in ([word] if "=" in word or after.startswith("--") else [word, after])
        ]

    def __call__(self) -> None:
        done = subprocess.run([sys.executable, "-m", "dapl", *self.command()], check=False)
        if done.returncode:
            raise SystemExit(done.returncode)

    def checkpoint(self) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def submit(training: SubmittedTraining, config: Config, cluster: str, options: Mapping[str, Any]) -> tuple[str, Path]:
    """Send a training off; returns the number of the job and the folder of what it says.

    As many nodes and tasks per node as the config has nodes and devices. ``options`` are submitit's own, such as
    ``timeout_min`` and ``slurm_partition``.
    """
    with needing("--submit needs submitit", "cluster"):
        import submitit
    folder = training.out.parent / f"{training.out.name}-jobs"
    runtime = config.runtime
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=None if cluster == "auto" else cluster)
        executor.update_parameters(name=f"dapl-{training.out.name}", **{"timeout_min": 24 * 60, **options})
        executor.update_parameters(nodes=runtime.nodes, tasks_per_node=runtime.devices)
        return str(executor.submit(training).job_id), folder
    except (ValueError, TypeError, RuntimeError, NameError, OSError) as error:
        raise DaplError(f"--submit {cluster}: submitit could not send it off ({reason_of(error)}).") from error
