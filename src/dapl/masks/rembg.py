"""The object that stands out of an image, found without a prompt: rembg, with U²-Net (Qin et al., 2020) by default."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dapl.common.errors import DaplError, nearest
from dapl.masks.polygons import filled_box
from dapl.masks.prompt import Prompt

MODEL_VARIABLE = "DAPL_REMBG_MODEL"
"""Environment variable that names the model file, or one of rembg's models."""
DEFAULT_MODEL = "u2net"
"""Apache-2.0, 176 MB. The default of rembg itself is larger and not free for commercial use."""
FOREGROUND = 128
"""A pixel belongs to the object from this value on, of 255."""


def find_model(model: str | None = None) -> str | None:
    """The model file to use, where it is at hand: ``model``, else $DAPL_REMBG_MODEL, $DAPL_MODELS, or rembg's folders.

    None where rembg would have to download it.

    >>> find_model("no/such/file.onnx") is None
    True
    """
    wanted = model or os.environ.get(MODEL_VARIABLE) or DEFAULT_MODEL
    name = f"{wanted}.onnx"
    old, new = (os.environ.get(variable) for variable in ("U2NET_HOME", "REMBG_HOME"))
    places = [Path(wanted).expanduser()]
    places += [Path(folder) / name for folder in (os.environ.get("DAPL_MODELS"), old, old or "~/.u2net") if folder]
    places += [Path(new or "~/.rembg") / "models" / wanted / name]
    return next((str(place.expanduser()) for place in places if place.expanduser().is_file()), None)


def is_at_hand(model: str | None = None) -> bool:
    """Whether rembg is installed and its model file is here, so that nothing has to be downloaded.

    >>> is_at_hand("no/such/file.onnx")
    False
    """
    installed = all(importlib.util.find_spec(name) is not None for name in ("rembg", "onnxruntime"))
    return installed and find_model(model) is not None


class RembgRefiner:
    """``model``: an ONNX file, or the name of one of rembg's models, which it downloads where it is not at hand.

    A file is read as the model that its name says (u2net.onnx, isnet-general-use.onnx, …), any other as U²-Net. A
    prompt is not needed; where a box is known, what lies outside of it is left out.
    """

    name = "rembg"

    def __init__(self, model: str | None = None) -> None:
        if importlib.util.find_spec("onnxruntime") is None:  # without it the import of rembg ends the process
            raise DaplError("rembg needs onnxruntime; pip install 'dapl[rembg]'.")
        try:
            import onnxruntime
            from rembg.sessions import sessions
        except ImportError as error:
            raise DaplError(f"rembg is not installed ({error}); pip install 'dapl[rembg]'.") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS") or 0)
        options.log_severity_level = 3
        file, wanted = find_model(model), model or os.environ.get(MODEL_VARIABLE) or DEFAULT_MODEL
        kind = Path(wanted).stem if file is not None else wanted
        if file is None and wanted not in sessions:
            raise DaplError(
                f"--rembg-model: {wanted} is neither a file nor a model of rembg{nearest(wanted, sorted(sessions))}"
            )
        session: Any = sessions.get(kind, sessions[DEFAULT_MODEL])
        if file is not None:
            session = type("FromFile", (session,), {"download_models": classmethod(lambda cls, *args, **more: file)})
        try:
            self._session = session(kind, options)
        except Exception as error:  # pooch, requests and onnxruntime each have their own
            reason = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:160]
            raise DaplError(
                f"{file or wanted}: rembg cannot load this model ({reason}); give an ONNX file by --rembg-model or "
                f"{MODEL_VARIABLE}, or make masks by grabcut, which needs none."
            ) from error

    def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
        found = np.asarray(self._session.predict(Image.fromarray(image))[0]) >= FOREGROUND
        inside = found & filled_box(prompt.box, image.shape[:2])
        return inside if inside.any() else found
