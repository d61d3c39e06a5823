"""Many videos, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from dapl.errors import DaplError
from dapl.prepare.faceforensics.layout import Video
from dapl.prepare.faceforensics.unit import Settings, Tools, prepare_video
from dapl.progress import Advance

_tools: Tools | None = None
"""Of a worker process, made with its first video, so that what is wrong with them reaches the user as a sentence."""


def prepare_all(
    videos: Sequence[Video], root: Path, out: Path, settings: Settings, workers: int, advance: Advance
) -> None:
    if workers == 1:
        tools = Tools(settings)
        try:
            for video in videos:
                prepare_video(video, root, out, settings, tools)
                advance(1)
        finally:
            tools.close()
        return
    # spawned, not forked: MediaPipe and torch have threads of their own, which a fork would leave behind
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(videos)), mp_context=context, initializer=_start)
    try:
        futures = [pool.submit(_prepare, video, root, out, settings) for video in videos]
        for future in as_completed(futures):
            future.result()
            advance(1)
    except BrokenProcessPool as error:
        raise DaplError(
            "a worker process died, probably for want of memory; the same command with fewer --workers goes on where "
            "this one stopped."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare(video: Video, root: Path, out: Path, settings: Settings) -> None:
    global _tools
    if _tools is None:
        _tools = Tools(settings)
    prepare_video(video, root, out, settings, _tools)


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and tells us by cancelling what is left
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _one_thread()


def _end_with_parent() -> None:
    """A parent that was killed cannot say so, and the queue that a worker waits at stays open."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _one_thread() -> None:
    """The processes share the cores between them already."""
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        import cv2

        cv2.setNumThreads(1)
    except ImportError:
        pass
