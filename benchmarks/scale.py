"""Images against time and memory: drawn images in tar shards, a tiny backbone, each size in a process of its own.

    python -m benchmarks.scale 3000 30000 300000 --write docs/scale.md

Memory is what the system cannot take back (anonymous pages); pages of cached files that are mapped are not counted.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dapl.common.liveness import meanwhile

CLASSES, SIDE, PER_SHARD = 10, 32, 10_000
LIMIT_GB = 0.25
"""Of the caches: the pixels of 30,000 images fit, those of 300,000 do not."""
KEPT = Path("build/scale.json")
"""What was measured; a size that stands there is not measured again, so that a long curve can be made in pieces."""
MARKS = "<!-- made by benchmarks/scale.py: start -->\n", "<!-- made by benchmarks/scale.py: end -->\n"


def draw_shards(folder: Path, images: int, seed: int = 0) -> None:
    """Discs whose colour and height tell the class, on noise: shards for train, and one for test with a tenth."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for split, count in (("train", images), ("test", max(CLASSES, images // 10))):
        for first in range(0, count, PER_SHARD):
            with tarfile.open(folder / f"{split}-{first // PER_SHARD:04d}.tar", "w") as shard:
                for number in range(first, min(first + PER_SHARD, count)):
                    label = number % CLASSES
                    pixels = generator.integers(90, 140, (SIDE, SIDE, 3), dtype=np.uint8)
                    x, y = generator.integers(8, 24), 8 + label // 5 * 12
                    inside = (columns - x) ** 2 + (rows - y) ** 2 < 36
                    pixels[inside] = np.array([50 * (label % 5), 255 - 50 * (label % 5), 40], np.uint8)
                    stream = io.BytesIO()
                    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
                    for ending, content in (("jpg", stream.getvalue()), ("cls", b"%d" % label)):
                        member = tarfile.TarInfo(f"{number:07d}.{ending}")
                        member.size = len(content)
                        shard.addfile(member, io.BytesIO(content))


@contextmanager
def peak_memory(found: dict[str, Any]) -> Iterator[None]:
    """Looks at the memory of this process again and again; ``found["memory_gb"]`` is the most that was seen."""
    most = [0]

    def look() -> None:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                most[0] = max(most[0], int(line.split()[1]))

    try:
        with meanwhile(look, 0.02):
            yield
    finally:
        found["memory_gb"] = most[0] / 2**20


def measure(images: int, folder: Path) -> dict[str, Any]:
    """Train, project and evaluate; seconds of this process's processor, so that others on the machine do not count."""
    from dapl.batches.cache import GB, entries
    from dapl.config import load_config
    from dapl.evaluation import evaluate
    from dapl.training.trainer import train

    backbone = {"name": "test_efficientnet", "stages": [-2], "weights": "random"}
    schedule = [
        {"stage": "warm_up", "epochs": 1},
        {"stage": "project"},
        {"stage": "last_layer", "epochs": 2},
    ]
    config = load_config(
        None,
        {
            "data": {"name": "webdataset", "root": str(folder / "shards"), "image_size": SIDE},
            "model": {"backbone": backbone, "heads": 4, "head_dim": 8},
            "cache": {"folder": str(folder / "cache"), "total_gb": LIMIT_GB, "scores_gb": 0.01},
            "runtime": {"accelerator": "cpu", "workers": 0},
            "schedule": schedule,
        },
    )
    found: dict[str, Any] = {"images": images}
    with peak_memory(found):
        for what, call in (
            ("train_seconds", lambda: train(config, folder / "run", quiet=True)),
            ("evaluate_seconds", lambda: evaluate(folder / "run", metrics="accuracy", chance=False, quiet=True)),
        ):
            started = time.process_time()
            result = call()
            found[what] = time.process_time() - started
    found["accuracy"] = result.numbers["accuracy"].value  # type: ignore[union-attr]
    found["cache_gb"] = sum(entry.size for entry in entries(folder / "cache")) / GB
    found["kept"] = ", ".join(sorted({entry.kind for entry in entries(folder / "cache")}))
    return found


def in_new_process(images: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dapl-scale-") as folder:
        draw_shards(Path(folder) / "shards", images)
        command = [sys.executable, "-m", "benchmarks.scale", str(images), "--in", folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
        return json.loads(done.stdout.splitlines()[-1])


def curve(rows: list[dict[str, Any]]) -> str:
    """The table for docs/scale.md, each row beside the one before."""
    lines = [
        "| training images | processor time, training | evaluation | × the row before | memory | caches | accuracy |",
        "|---|---|---|---|---|---|---|",
    ]
    before = None
    for row in rows:
        seconds = row["train_seconds"] + row["evaluate_seconds"]
        ratio = "" if before is None else f"{seconds / before:.1f}"
        lines.append(
            f"| {row['images']:,} | {row['train_seconds']:.0f} s | {row['evaluate_seconds']:.1f} s | {ratio} | "
            f"{row['memory_gb']:.2f} GB | {row['cache_gb']:.3f} of {LIMIT_GB}: {row['kept']} | {row['accuracy']:.1%} |"
        )
        before = seconds
    return "\n".join(lines) + "\n"


SETTINGS = {
    "ImageNet": {"images": 1_281_167, "classes": 1000, "heads": 10},
    "FaceForensics++ (frames)": {"images": 354_000, "classes": 2, "heads": 10},
}
MACHINES = {"1 GPU": (1, 16), "8 GPUs": (8, 128)}
"""GPUs and cores: assumed."""
GPU_FORWARD, GPU_STEP = 1500, 400
"""Images per second through a DenseNet-161 at 224 px on one current GPU, forward and in training: assumed."""
FEATURES = 2208 * 7 * 7
"""Numbers per image in the features of DenseNet-161 at 224 px."""


def decoding(side: int = 224, images: int = 200) -> dict[str, float]:
    """Measured on one core of this machine: JPEG files of photographs' size decoded and brought to ``side``, per
    second of its processor, and the bytes of one that is kept compact.
    """
    from dapl.batches.pixels import encode
    from dapl.data.images import Encoded, read_image
    from dapl.data.sample import Sample
    from dapl.data.transforms import fit

    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)  # smooth, as photographs are, with some noise
    smooth = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC), np.int16)
    pixels = np.clip(smooth + generator.integers(-12, 13, smooth.shape), 0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    started = time.process_time()
    for _ in range(images):
        sample = fit(Sample(read_image(Encoded("drawn", stream.getvalue())), 0, "drawn"), side)
    seconds = time.process_time() - started
    return {"decoded_per_second": images / seconds, "compact_bytes": len(encode(sample.image))}


def on_paper(measured: dict[str, float]) -> str:
    """What the caches would take and how long the passes would last: products of sizes, with assumed speeds."""
    from dapl.config import CacheConfig

    limits = CacheConfig()
    rate, compact = measured["decoded_per_second"], measured["compact_bytes"]
    rows: dict[str, list[str]] = {}
    for setting in SETTINGS.values():
        images, prototypes = setting["images"], setting["classes"] * setting["heads"]
        scores = images * prototypes * 4 / 2**30
        texts = {
            "prototypes": f"{prototypes:,}",
            "pixels at 224²": _gigabytes(images * 3 * 224**2),
            "the same images, compact": _gigabytes(images * compact),
            "features of DenseNet-161, float16": _gigabytes(images * FEATURES * 2),
            "scores of all images": _gigabytes(images * prototypes * 4)
            + (", streamed" if scores > limits.scores_gb else ", kept"),
        }
        for name, (gpus, cores) in MACHINES.items():
            texts[f"one epoch, all learning, {name}"] = _minutes(images, gpus * GPU_STEP, cores * rate)
            frozen = f"one epoch on a frozen backbone, a projection, an evaluation, {name}"
            texts[frozen] = _minutes(images, gpus * GPU_FORWARD, cores * rate)
        for name, text in texts.items():
            rows.setdefault(name, []).append(text)
    lines = ["| | " + " | ".join(SETTINGS) + " |", "|---|" + "---|" * len(SETTINGS)]
    lines += [f"| {name} | " + " | ".join(texts) + " |" for name, texts in rows.items()]
    machines = "; ".join(f"{name}: {cores} cores" for name, (_, cores) in MACHINES.items())
    return (
        f"On paper. Measured here: {rate:,.0f} photographs decoded per second and core, {compact / 1024:.0f} kB for a "
        f"compact one. Assumed: on one GPU a DenseNet-161 at 224 px passes {GPU_FORWARD:,} images per second "
        f"forward and {GPU_STEP:,} in training; {machines}; several GPUs are as many times as fast. Where decoding "
        "is slower than the GPUs, its time stands there.\n\n" + "\n".join(lines) + "\n"
    )


def _gigabytes(size: float) -> str:
    return f"{size / 2**30:,.1f} GB"


def _minutes(images: int, by_gpu: float, by_decoding: float) -> str:
    slower = " (decoding)" if by_decoding < by_gpu else ""
    return f"{images / min(by_gpu, by_decoding) / 60:,.1f} min{slower}"


def write_between_marks(path: Path, text: str) -> None:
    before, _, rest = path.read_text(encoding="utf-8").partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    path.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}", encoding="utf-8")


def main() -> None:
    from dapl.common.files import write_json
    from dapl.runs.provenance import provenance

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=int, nargs="+")
    parser.add_argument("--write", type=Path, help="page whose table is replaced")
    parser.add_argument("--in", type=Path, dest="folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        print(json.dumps(measure(arguments.images[0], arguments.folder)))
        return
    kept = json.loads(KEPT.read_text())["rows"] if KEPT.exists() else []
    found = {row["images"]: row for row in kept}
    for images in arguments.images:
        if images not in found:
            found[images] = in_new_process(images)
        print(json.dumps(found[images]), flush=True)
        rows = [found[number] for number in sorted(found)]
        facts = {**provenance([]), "command": f"python -m benchmarks.scale {' '.join(map(str, sorted(found)))}"}
        write_json(KEPT, {**facts, "rows": rows})
    if arguments.write is not None:
        machine = f"Measured by `{facts['command']}` on {facts['machine']['processor']}, one thread."
        write_between_marks(arguments.write, f"{machine}\n\n{curve(rows)}\n{on_paper(decoding())}")


if __name__ == "__main__":
    main()
