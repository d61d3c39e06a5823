"""From a rough idea of where the object is (`Prompt`) to a mask of its pixels, by one of several refiners.

- ``sam``: Segment Anything (Kirillov et al., 2023), from a local folder or the hub, through transformers;
- ``rembg``: the object that stands out, without any idea of where it is, by U²-Net (Qin et al., 2020) by default;
- ``grabcut``: GrabCut (Rother et al., 2004), from OpenCV: colours inside against colours outside, no weights;
- ``none``: the rough idea itself.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from dapl.common.errors import DaplError, nearest, needing, reason_of
from dapl.masks.polygons import Box, bounding_box, filled_box

METHODS = ("sam", "rembg", "grabcut", "none")


@dataclass(frozen=True)
class Prompt:
    """What is known of where the object is; any of them may be None.

    >>> Prompt(box=(20, 10, 90, 70)).points is None
    True
    """

    box: Box | None = None
    points: np.ndarray | None = None
    """n×2, (x, y) in pixels, all on the object."""
    mask: np.ndarray | None = None
    """bool H×W, a rough first guess."""
    likely: np.ndarray | None = None
    """float H×W in [0, 1], how likely a pixel lies on the object; read by GrabCut alone."""


class Refiner(Protocol):
    """An image and a prompt in, a mask out; the same in, the same out."""

    name: str
    """One of `METHODS`."""

    def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
        """``image`` uint8 H×W×3 RGB → bool H×W. The mask may be empty where nothing was found."""
        ...


class Unrefined:
    """The mask of the prompt, else its box filled, else the whole image."""

    name = "none"

    def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
        if prompt.mask is not None:
            return prompt.mask.astype(bool)
        return filled_box(prompt.box, image.shape[:2])


def create_refiner(method: str, model: str | None = None) -> Refiner:
    """The refiner called ``method``; ``model`` says which weights SAM or rembg uses, and is for nothing else."""
    if method == "features":
        raise DaplError("masks by features are told by all images together; give no model, and use make_masks.")
    if method not in METHODS:
        raise DaplError(f"there is no refinement '{method}'{nearest(method, METHODS)}")
    if method == "sam":
        return SamRefiner(model)
    if method == "rembg":
        return RembgRefiner(model)
    if model is not None:
        raise DaplError(
            f"a model was given ({model}), but '{method}' has none; refine by sam or rembg, or give no model."
        )
    return GrabCutRefiner() if method == "grabcut" else Unrefined()


ITERATIONS = 4
BAND = 0.08
"""Half width of the band around the edge of a given mask in which GrabCut decides, as a share of √(its area)."""
CENTRE = 0.7
"""Without any prompt, the object is looked for in the middle of the image, in this share of each side."""
LONGEST_SIDE = 256
"""Larger images are brought to this size for GrabCut, whose time grows with the pixels, and the mask back to theirs."""
LEAST_LIKELY, MOST_LIKELY = 0.02, 0.9
"""A pixel that is less likely on the object is surely not, and one that is more likely surely is."""
POINT = 0.02
"""Radius around a given point that is surely on the object, as a share of the image's shorter side."""


class GrabCutRefiner:
    """From how likely pixels are, else the prompt's mask, else its box, else the middle of the image.

    Points are surely on the object.
    """

    name = "grabcut"

    def __init__(self) -> None:
        with needing("GrabCut needs OpenCV", "masks"):
            import cv2
        self._cv2: Any = cv2

    def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
        height, width = image.shape[:2]
        scale = LONGEST_SIDE / max(height, width)
        if scale >= 1:
            return self._cut(image, prompt)
        cv2, size = self._cv2, (max(1, round(width * scale)), max(1, round(height * scale)))
        box = None if prompt.box is None else tuple(scale * side for side in prompt.box)
        points = None if prompt.points is None else prompt.points * scale
        mask = None if prompt.mask is None else cv2.resize(prompt.mask.astype(np.uint8), size) > 0
        likely = None if prompt.likely is None else cv2.resize(prompt.likely.astype(np.float32), size)
        smaller = Prompt(box, points, mask, likely)  # type: ignore[arg-type]
        found = self._cut(cv2.resize(image, size, interpolation=cv2.INTER_AREA), smaller)
        return cv2.resize(found.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR) >= 0.5

    def _cut(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
        cv2 = self._cv2
        if prompt.likely is not None:
            trimap = self._from_likely(prompt.likely)
        elif prompt.mask is not None:
            trimap = self._from_mask(prompt.mask)
        else:
            trimap = self._from_box(image.shape[:2], prompt)
        for x, y in [] if prompt.points is None else prompt.points:
            radius = max(1, round(POINT * min(image.shape[:2])))
            cv2.circle(trimap, (int(x), int(y)), radius, cv2.GC_FGD, thickness=-1)
        inside = np.isin(trimap, (cv2.GC_FGD, cv2.GC_PR_FGD))
        if inside.all() or not inside.any():  # GrabCut needs pixels of both kinds to learn colours from
            return inside
        cv2.setRNGSeed(0)  # its clusters start at random
        bgr, models = np.ascontiguousarray(image[..., ::-1]), (np.zeros((1, 65)), np.zeros((1, 65)))
        cv2.grabCut(bgr, trimap, None, *models, ITERATIONS, cv2.GC_INIT_WITH_MASK)
        return np.isin(trimap, (cv2.GC_FGD, cv2.GC_PR_FGD))

    def _from_likely(self, likely: np.ndarray) -> np.ndarray:
        """Sure where it is all but certain, undecided between."""
        cv2 = self._cv2
        trimap = np.where(likely > 0.5, cv2.GC_PR_FGD, cv2.GC_PR_BGD).astype(np.uint8)
        trimap[likely > MOST_LIKELY] = cv2.GC_FGD
        trimap[likely < LEAST_LIKELY] = cv2.GC_BGD
        return trimap

    def _from_mask(self, mask: np.ndarray) -> np.ndarray:
        """Sure beyond the band around the mask's edge, inside and outside; undecided within."""
        cv2 = self._cv2
        reach = max(1, round(BAND * float(mask.sum()) ** 0.5))
        kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * reach + 1, 2 * reach + 1))
        solid = mask.astype(np.uint8)
        trimap = np.where(solid, cv2.GC_PR_FGD, cv2.GC_PR_BGD).astype(np.uint8)
        trimap[cv2.erode(solid, kernel, borderType=cv2.BORDER_REPLICATE) > 0] = cv2.GC_FGD
        trimap[cv2.dilate(solid, kernel) == 0] = cv2.GC_BGD
        return trimap

    def _from_box(self, size: tuple[int, int], prompt: Prompt) -> np.ndarray:
        """Surely background outside the box, undecided inside."""
        height, width = size
        margin = (1 - CENTRE) / 2
        box = prompt.box or (width * margin, height * margin, width * (1 - margin), height * (1 - margin))
        return np.where(filled_box(box, size), self._cv2.GC_PR_FGD, self._cv2.GC_BGD).astype(np.uint8)


SAM_MODEL = "facebook/sam-vit-base"
MOBILE_THRESHOLD = -1.0
"""MobileSAM's log-odds above which a pixel belongs to the object: at 0 it leaves out fringes that people count in.
Chosen on CUB images that are not those of the table in docs/own-data.md."""
CONFIDENCE = 8.0
"""A mask prompt is a map of log-odds; a pixel inside is given this, one outside its negative."""


class SamRefiner:
    """``model`` is a folder with a saved SamModel and SamProcessor, MobileSAM's checkpoint, or a name on the hub."""

    _processor: Any

    name = "sam"

    def __init__(self, model: str | None = None) -> None:
        with needing("SAM needs transformers", "masks"):
            import dapl.common.operators  # noqa: F401, I001  (before transformers, which imports torchvision)
            import torch
            from transformers import SamModel, SamProcessor
            from transformers.utils import logging
        from dapl.models.weights import hub_or_cache

        self._torch = torch
        self._threshold = 0.0
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        model = model or SAM_MODEL
        logging.disable_progress_bar()
        if Path(model).is_file():
            from dapl.masks.mobile_sam import load_mobile_sam

            small, self._processor = load_mobile_sam(Path(model))
            self._model: Any = small.to(self._device).eval()
            self._threshold = MOBILE_THRESHOLD
            return
        try:
            with hub_or_cache():
                self._processor = SamProcessor.from_pretrained(model)
                loaded: Any = SamModel.from_pretrained(model)
        except Exception as error:  # transformers, the hub and safetensors each have their own
            raise _unreadable(model, error) from error
        self._model = loaded.to(self._device).eval()

    def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
        torch = self._torch
        box, points = _where(image, prompt)
        inputs = self._processor(
            images=image,
            input_boxes=None if box is None else [[list(box)]],
            input_points=None if points is None else [[points.tolist()]],
            return_tensors="pt",
        )
        sizes, reshaped = inputs.pop("original_sizes"), inputs.pop("reshaped_input_sizes")
        inputs = {name: self._moved(value) for name, value in inputs.items()}
        if prompt.mask is not None:
            inputs["input_masks"] = self._moved(self._mask_prompt(prompt.mask))
        with torch.inference_mode():
            # A box says which object is meant; of a point there are three readings, the surest of which is taken.
            found = self._model(**inputs, multimask_output=box is None)
        # 1×1×n×h×w → 1×n×H×W: one image, one prompt, n proposals
        masks = self._processor.post_process_masks(found.pred_masks.cpu(), sizes, reshaped, self._threshold)[0]
        return masks[0, int(found.iou_scores[0, 0].argmax())].numpy().astype(bool)

    def _moved(self, value: Any) -> Any:
        return value.to(self._device, self._torch.float32) if value.is_floating_point() else value.to(self._device)

    def _mask_prompt(self, mask: np.ndarray) -> Any:
        """float 1×1×S×S, log-odds: placed as the image is, its longer side made S, the rest below or right of it."""
        torch = self._torch
        side = 4 * self._model.config.prompt_encoder_config.image_embedding_size
        scale = side / max(mask.shape)
        height, width = (max(1, round(length * scale)) for length in mask.shape)
        soft = torch.from_numpy(mask.astype(np.float32))[None, None]
        soft = torch.nn.functional.interpolate(soft, (height, width), mode="bilinear", antialias=True)
        prompt = torch.full((1, 1, side, side), -CONFIDENCE)
        prompt[..., :height, :width] = (2 * soft - 1) * CONFIDENCE
        return prompt


def _where(image: np.ndarray, prompt: Prompt) -> tuple[Box | None, np.ndarray | None]:
    """Box and points of the prompt; SAM wants one of them, so else the mask's box or the centre."""
    if prompt.box is not None or prompt.points is not None:
        return prompt.box, prompt.points
    if prompt.mask is not None and prompt.mask.any():
        rows, columns = np.nonzero(prompt.mask)
        x1, y1, x2, y2 = bounding_box(np.stack([columns, rows], axis=1))
        return (x1, y1, x2 + 1, y2 + 1), None
    height, width = image.shape[:2]
    return None, np.array([[width / 2, height / 2]])


def _unreadable(model: str, error: Exception) -> DaplError:
    reason = reason_of(error).split(". ")[0]
    if Path(model).is_dir():
        return DaplError(
            f"{model}: holds no SAM that transformers can read ({reason}); it takes config.json, processor_config.json "
            "(or preprocessor_config.json) and model.safetensors."
        )
    return DaplError(
        f"{model}: neither a folder nor a model that the hub gives ({reason}); download SAM's weights and give their "
        "folder, or refine by grabcut, which needs none."
    )


REMBG_VARIABLE = "DAPL_REMBG_MODEL"
"""Environment variable that names the model file, or one of rembg's models."""
REMBG_MODEL = "u2net"
"""Apache-2.0, 176 MB. The default of rembg itself is larger and not free for commercial use."""
REMBG_FOREGROUND = 128
"""A pixel belongs to the object from this value on, of 255."""


def find_rembg_model(model: str | None = None) -> str | None:
    """The model file to use, where it is at hand: ``model``, else $DAPL_REMBG_MODEL, $DAPL_MODELS, or rembg's folders.

    None where rembg would have to download it.

    >>> find_rembg_model("no/such/file.onnx") is None
    True
    """
    wanted = model or os.environ.get(REMBG_VARIABLE) or REMBG_MODEL
    name = f"{wanted}.onnx"
    old, new = (os.environ.get(variable) for variable in ("U2NET_HOME", "REMBG_HOME"))
    places = [Path(wanted).expanduser()]
    places += [Path(folder) / name for folder in (os.environ.get("DAPL_MODELS"), old, old or "~/.u2net") if folder]
    places += [Path(new or "~/.rembg") / "models" / wanted / name]
    return next((str(place.expanduser()) for place in places if place.expanduser().is_file()), None)


def rembg_is_at_hand(model: str | None = None) -> bool:
    """Whether rembg is installed and its model file is here, so that nothing has to be downloaded.

    >>> rembg_is_at_hand("no/such/file.onnx")
    False
    """
    installed = all(importlib.util.find_spec(name) is not None for name in ("rembg", "onnxruntime"))
    return installed and find_rembg_model(model) is not None


class RembgRefiner:
    """``model``: an ONNX file, or the name of one of rembg's models, which it downloads where it is not at hand.

    A file is read as the model that its name says (u2net.onnx, isnet-general-use.onnx, …), any other as U²-Net. A
    prompt is not needed; where a box is known, what lies outside of it is left out.
    """

    name = "rembg"

    def __init__(self, model: str | None = None) -> None:
        if importlib.util.find_spec("onnxruntime") is None:  # without it the import of rembg ends the process
            raise DaplError("rembg needs onnxruntime; pip install 'dapl[rembg]'.")
        with needing("rembg is not installed", "rembg"):
            import onnxruntime
            from rembg.sessions import sessions
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS") or 0)
        options.log_severity_level = 3
        file, wanted = find_rembg_model(model), model or os.environ.get(REMBG_VARIABLE) or REMBG_MODEL
        kind = Path(wanted).stem if file is not None else wanted
        if file is None and wanted not in sessions:
            raise DaplError(
                f"--rembg-model: {wanted} is neither a file nor a model of rembg{nearest(wanted, sorted(sessions))}"
            )
        session: Any = sessions.get(kind, sessions[REMBG_MODEL])
        if file is not None:
            session = type("FromFile", (session,), {"download_models": classmethod(lambda cls, *args, **more: file)})
        try:
            self._session = session(kind, options)
        except Exception as error:  # pooch, requests and onnxruntime each have their own
            raise DaplError(
                f"{file or wanted}: rembg cannot load this model ({reason_of(error)}); give an ONNX file by "
                f"--rembg-model or {REMBG_VARIABLE}, or make masks by grabcut, which needs none."
            ) from error

    def __call__(self, image: np.ndarray, prompt: Prompt) -> np.ndarray:
        found = np.asarray(self._session.predict(Image.fromarray(image))[0]) >= REMBG_FOREGROUND
        inside = found & filled_box(prompt.box, image.shape[:2])
        return inside if inside.any() else found
