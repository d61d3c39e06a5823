"""Data described by COCO JSON files: boxes, segmentations, keypoints; one image is one sample.

The largest object of an image decides: its class is the label, its box, keypoints and (unless the class's are asked
for) segmentation are the sample's. Annotations of a crowd are never the object.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from dapl.common.errors import DaplError
from dapl.data.coco_masks import Segmentations, coco_mask_module
from dapl.data.listing import (
    Fault,
    ImageRecord,
    Listing,
    MaskFile,
    MaskSource,
    drop_unlearned_classes,
    name_missing_masks,
)
from dapl.data.sample import choose_classes
from dapl.masks.polygons import Box

MaskOf = Literal["object", "class"]
ATTRIBUTE = "attribute:"
VISIBLE = 2
"""A keypoint's flag: 0 not annotated, 1 annotated but hidden, 2 visible."""


@dataclass
class _File:
    """One JSON file, its lists looked through once."""

    path: Path
    images: dict[Any, dict[str, Any]]
    annotations: dict[Any, list[tuple[int, dict[str, Any]]]]
    """By image id: (place in the list, annotation)."""
    categories: dict[Any, dict[str, Any]]
    faults: list[Fault] = field(default_factory=list)

    def leave_out(self, name: str, what: str) -> None:
        self.faults.append(Fault("left out", name, f"{self.path}: {what}"))


def read_coco(
    files: dict[str, Path],
    images: dict[str, Path | None],
    class_from: str = "category",
    mask_of: MaskOf = "object",
    classes: Sequence[str] | None = None,
    masks: Path | None = None,
) -> Listing:
    """The images of one JSON file per split ("train", and maybe "validation" and "test").

    ``images``: the folder of each split's images; None looks for it near the JSON file. ``class_from``: "category",
    or "attribute:NAME" of the annotation or the image. ``classes``: only these. ``masks``: folder of masks for objects
    without a segmentation (default: masks/ beside the JSON file), in it one folder per JSON file, named like it.
    """
    attribute = _attribute(class_from)
    read = {split: _read(path) for split, path in files.items()}
    parts = _part_names(list(read.values()))
    found = {split: _objects(file, attribute) for split, file in read.items()}
    names = _class_names(read, found, attribute)
    listing = Listing(
        source=str(files["train"]),
        classes=[names[index] for index in choose_classes(names, classes)],
        parts=parts,
        records={},
        faults=[fault for file in read.values() for fault in file.faults],
        masks=masks or files["train"].parent / "masks",
        mend="put them there, or name their folder with data.images",
    )
    for split, file in read.items():
        builder = _Builder(file, listing, images[split] or _find_images(file), masks or file.path.parent / "masks")
        listing.records[split] = builder.records(found[split], mask_of)
    drop_unlearned_classes(listing)
    name_missing_masks(listing)
    return listing


def _attribute(class_from: str) -> str | None:
    if class_from == "category":
        return None
    if not class_from.startswith(ATTRIBUTE) or class_from == ATTRIBUTE:
        raise DaplError(f"data.class_from: {class_from!r} is neither category nor {ATTRIBUTE}NAME.")
    return class_from.removeprefix(ATTRIBUTE)


# --- one file -------------------------------------------------------------------------------------------------------


def _read(path: Path) -> _File:
    """Images, annotations and categories by id; what refers to nothing is left out and named."""
    content = _load(path)
    file = _File(path, {}, {}, {})
    for place, image in enumerate(content["images"]):
        wrong = _wrong_image(image, file.images)
        if wrong:
            file.leave_out(str(image.get("file_name", place)), f"images, item {place}: left out, {wrong}.")
        else:
            file.images[image["id"]] = image
    file.categories = {category["id"]: category for category in content.get("categories", []) if "id" in category}
    for place, annotation in enumerate(content["annotations"]):
        image_id = annotation.get("image_id")
        if not isinstance(image_id, int | str) or image_id not in file.images:
            file.leave_out(
                f"annotation {annotation.get('id', place)}",
                f"annotations, item {place} (id {annotation.get('id')}): left out, there is no image {image_id!r}.",
            )
        elif not annotation.get("iscrowd"):
            file.annotations.setdefault(image_id, []).append((place, annotation))
    return file


def _load(path: Path) -> dict[str, list[dict[str, Any]]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DaplError(f"{path}: cannot be read ({error.strerror}); give a COCO JSON file.") from error
    except (ValueError, RecursionError) as error:
        raise DaplError(f"{path}: not JSON ({error}); export it again.") from error
    for name in ("images", "annotations", "categories"):
        items = content.get(name, [] if name == "categories" else None) if isinstance(content, dict) else None
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise DaplError(f"{path}: not a COCO file, which holds a list of {name}; see docs/own-data.md.")
    return content


def _wrong_image(image: dict[str, Any], before: dict[Any, dict[str, Any]]) -> str | None:
    name, number = image.get("file_name"), image.get("id")
    if not isinstance(name, str) or not name or not isinstance(number, int | str):
        return "it has no file_name or no id"
    if number in before:
        return f"the id {number!r} was used before"
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
        return f"its file_name {name!r} leads out of the folder of the images"
    return None


def _find_images(file: _File) -> Path:
    """The folder near the JSON file that holds its first image; beside the file where none does."""
    here = file.path.parent
    above = here.resolve().parent
    tail = file.path.stem.rpartition("_")[2]  # annotations/instances_train2017.json belongs to train2017/
    first = next((image["file_name"] for image in file.images.values()), "")
    for folder in (here, here / "images", above, above / "images", above / tail, above / "images" / tail):
        if first and (folder / first).is_file():
            return folder
    return here


def _part_names(files: Sequence[_File]) -> list[str]:
    """Keypoint names of all categories, in the order in which they first stand there."""
    names: dict[str, None] = {}
    for file in files:
        for category in file.categories.values():
            for name in category.get("keypoints") or ():
                names.setdefault(str(name))
    return list(names)


# --- which object, which class --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Object:
    """An annotation and the class that it says the image is of."""

    place: int
    annotation: dict[str, Any]
    class_name: str
    area: float


def _objects(file: _File, attribute: str | None) -> dict[Any, list[_Object]]:
    """By image id, the objects whose class is known, the largest first."""
    found: dict[Any, list[_Object]] = {}
    for image_id, image in file.images.items():
        objects = []
        for place, annotation in file.annotations.get(image_id, []):
            name = _class_of(file, place, annotation, image, attribute)
            if name is not None:
                objects.append(_Object(place, annotation, name, _area(annotation)))
        name = None if attribute is None else _value(image, attribute)
        if not objects and name is not None:
            objects.append(_Object(-1, {}, name, 0.0))  # the image has a class, and nothing is annotated on it
        found[image_id] = sorted(objects, key=lambda one: (-one.area, one.place))
    return found


def _class_of(
    file: _File, place: int, annotation: dict[str, Any], image: dict[str, Any], attribute: str | None
) -> str | None:
    where = f"annotations, item {place} (id {annotation.get('id')})"
    if attribute is None:
        category = annotation.get("category_id")
        if isinstance(category, int | str) and category in file.categories:
            return str(file.categories[category].get("name", category))
        file.leave_out(image["file_name"], f"{where}: left out, there is no category {category!r}.")
        return None
    name = _value(annotation, attribute) or _value(image, attribute)
    if name is None:
        file.leave_out(image["file_name"], f"{where}: left out, neither it nor its image has an attribute {attribute}.")
    return name


def _value(item: dict[str, Any], attribute: str) -> str | None:
    """Of the item itself or of the dictionary ``attributes`` in it."""
    inner = item.get("attributes")
    value = item.get(attribute, inner.get(attribute) if isinstance(inner, dict) else None)
    return str(value) if isinstance(value, str | int | float) and value != "" else None


def _area(annotation: dict[str, Any]) -> float:
    area = annotation.get("area")
    if isinstance(area, int | float) and area > 0:
        return float(area)
    box = _box(annotation)
    return 0.0 if box is None else (box[2] - box[0]) * (box[3] - box[1])


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(n, int | float) and math.isfinite(n) for n in value)


def _box(annotation: dict[str, Any]) -> Box | None:
    """XYXY from COCO's x, y, width, height; None where it has none or an empty one."""
    box: Any = annotation.get("bbox")
    if not _are_numbers(box) or len(box) != 4:
        return None
    x, y, width, height = (float(n) for n in box)
    return (x, y, x + width, y + height) if width > 0 and height > 0 else None


def _class_names(
    files: dict[str, _File], found: dict[str, dict[Any, list[_Object]]], attribute: str | None
) -> list[str]:
    """Those that occur: categories in the order of their ids in train, values of an attribute in alphabetical order."""
    seen = {one.class_name for objects in found.values() for group in objects.values() for one in group}
    if attribute is not None:
        return sorted(seen)
    names = [str(c.get("name", number)) for number, c in sorted(files["train"].categories.items(), key=_by_id)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DaplError(f"{files['train'].path}: two categories are called {twice!r}; a name is one class.")
    return [name for name in names if name in seen] + sorted(seen - set(names))


def _by_id(item: tuple[Any, Any]) -> tuple[bool, int, str]:
    """Numbers by their size, before names."""
    number = item[0]
    return not isinstance(number, int), number if isinstance(number, int) else 0, str(number)


# --- records --------------------------------------------------------------------------------------------------------


class _Builder:
    """Makes the records of one file."""

    def __init__(self, file: _File, listing: Listing, folder: Path, masks: Path) -> None:
        self.file, self.listing, self.folder, self.masks = file, listing, folder, masks
        self.label = {name: index for index, name in enumerate(listing.classes)}

    def records(self, found: dict[Any, list[_Object]], mask_of: MaskOf) -> list[ImageRecord]:
        records: list[ImageRecord] = []
        names: set[str] = set()
        several = 0
        for image_id, image in self.file.images.items():
            objects = [one for one in found[image_id] if one.class_name in self.label]
            name = image["file_name"]
            if not objects or name in names:
                why = "named twice" if name in names else "no object of a known class is annotated on it"
                self._fault("left out", name, f"{self.file.path}: {name} is left out, {why}.")
                continue
            names.add(name)
            several += len({one.class_name for one in objects}) > 1
            records.append(self._record(image, objects, mask_of))
        if several:
            self.listing.notes.append(
                f"{self.file.path}: on {several} images there are objects of several classes; the largest one decides"
            )
        return records

    def _record(self, image: dict[str, Any], objects: list[_Object], mask_of: MaskOf) -> ImageRecord:
        chosen = objects[0]
        origin = f"{self.file.path}, annotation {chosen.annotation.get('id', chosen.place)}"
        points, visible = self._keypoints(chosen, image["file_name"], origin)
        height, width = image.get("height"), image.get("width")
        return ImageRecord(
            name=image["file_name"],
            path=self.folder / image["file_name"],
            label=self.label[chosen.class_name],
            mask=self._mask(image["file_name"], objects, mask_of, origin),
            mask_path=self._mask_path(image["file_name"]),
            points=points,
            visible=visible,
            box=_box(chosen.annotation),
            origin=origin,
            size=(height, width) if isinstance(height, int) and isinstance(width, int) else None,
        )

    def _mask(self, name: str, objects: list[_Object], mask_of: MaskOf, origin: str) -> MaskSource | None:
        group = (
            [one for one in objects if one.class_name == objects[0].class_name] if mask_of == "class" else objects[:1]
        )
        values = tuple(value for one in group if (value := one.annotation.get("segmentation")))
        if values:
            coco_mask_module()  # say that it is missing before anything is trained
            return Segmentations(values, origin)
        file = self._mask_path(name)
        return MaskFile(file) if file.is_file() else None

    def _mask_path(self, name: str) -> Path:
        return self.masks / self.file.path.stem / f"{name}.png"

    def _keypoints(self, one: _Object, name: str, origin: str) -> tuple[np.ndarray | None, np.ndarray | None]:
        """float32 K×2 and bool K in the order of the listing's parts."""
        written = one.annotation.get("keypoints")
        parts = self.listing.parts
        if not written or not parts:
            return None, None
        category = self.file.categories.get(one.annotation.get("category_id"), {})
        names = [str(part) for part in category.get("keypoints") or ()]
        if not _are_numbers(written) or len(written) != 3 * len(names):
            text = (
                f"{origin}: its keypoints are left out, they are not {len(names)} × (x, y, flag), one for each keypoint"
                f" of its category."
            )
            self._fault("left out", name, text)
            return None, None
        points, visible = np.zeros((len(parts), 2), np.float32), np.zeros(len(parts), bool)
        for part, (x, y, flag) in zip(names, np.array(written, np.float64).reshape(-1, 3), strict=True):
            if flag == VISIBLE:
                points[parts.index(part)], visible[parts.index(part)] = (x, y), True
        return points, visible

    def _fault(self, kind: str, name: str, text: str) -> None:
        self.listing.faults.append(Fault(kind, name, text))
