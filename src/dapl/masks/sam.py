"""Segment Anything (Kirillov et al., 2023) through transformers: box, points and mask in, the best proposal out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dapl.errors import DaplError
from dapl.masks.polygons import bounding_box
from dapl.masks.refine import Prompt

DEFAULT_MODEL = "facebook/sam-vit-base"
CONFIDENCE = 8.0
"""A mask prompt is a map of log-odds; a pixel inside is given this, one outside its negative."""


class SamRefiner:
    """``model`` is a folder with a saved SamModel and SamProcessor, or a name on the hub."""

    name = "sam"

    def __init__(self, model: str | None = None) -> None:
        try:
            import dapl._torchvision  # noqa: F401, I001  (before transformers, which imports torchvision)
            import torch
            from transformers import SamModel, SamProcessor
            from transformers.utils import logging
        except ImportError as error:
            raise DaplError(f"SAM needs transformers ({error}); pip install 'dapl[masks]'.") from error
        from dapl.models.weights import hub_or_cache

        self._torch = torch
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        model = model or DEFAULT_MODEL
        logging.disable_progress_bar()
        try:
            with hub_or_cache():
                self._processor: Any = SamProcessor.from_pretrained(model)
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
            found = self._model(**inputs, multimask_output=True)
        # 1×1×3×h×w → 1×3×H×W: one picture, one prompt, three proposals
        masks = self._processor.post_process_masks(found.pred_masks.cpu(), sizes, reshaped)[0]
        return masks[0, int(found.iou_scores[0, 0].argmax())].numpy().astype(bool)

    def _moved(self, value: Any) -> Any:
        return value.to(self._device, self._torch.float32) if value.is_floating_point() else value.to(self._device)

    def _mask_prompt(self, mask: np.ndarray) -> Any:
        """float 1×1×S×S, log-odds: placed as the picture is, its longer side made S, the rest below or right of it."""
        torch = self._torch
        side = 4 * self._model.config.prompt_encoder_config.image_embedding_size
        scale = side / max(mask.shape)
        height, width = (max(1, round(length * scale)) for length in mask.shape)
        soft = torch.from_numpy(mask.astype(np.float32))[None, None]
        soft = torch.nn.functional.interpolate(soft, (height, width), mode="bilinear", antialias=True)
        prompt = torch.full((1, 1, side, side), -CONFIDENCE)
        prompt[..., :height, :width] = (2 * soft - 1) * CONFIDENCE
        return prompt


def _where(image: np.ndarray, prompt: Prompt) -> tuple[tuple[float, float, float, float] | None, np.ndarray | None]:
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
    reason = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0].split(". ")[0][:160]
    if Path(model).is_dir():
        return DaplError(
            f"{model}: holds no SAM that transformers can read ({reason}); it takes config.json, processor_config.json "
            "(or preprocessor_config.json) and model.safetensors."
        )
    return DaplError(
        f"{model}: neither a folder nor a model that the hub gives ({reason}); download SAM's weights and give their "
        "folder, or refine by grabcut, which needs none."
    )
