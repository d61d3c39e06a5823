"""Data described by COCO JSON files: boxes, segmentations, keypoints; one image is one sample.

The largest object of an image decides: its class is the label, its box, keypoints and (unless the class's are asked
for) segmentation are the sample's. Annotations of a crowd are never the object.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from dapl.common.errors import DaplError
from dapl.common.reading import LARGEST_DATA, read_json
from dapl.data.coco_masks import Segmentations, coco_mask_module
from dapl.data.listing import Fault, ImageRecord, Listing, MaskFile, drop_unlearned_classes, name_missing_masks
from dapl.data.sample import choose_classes
from dapl.masks.polygons import Box

MaskOf = Literal["object", "class"]
Json = dict[str, Any]
ATTRIBUTE = "attribute:"
_LONGEST = 250
"""Bytes of the name of a file or folder, so that the name of a mask can still be longer."""
_LARGEST = 1e7
"""Pixels by which a coordinate or an area's side may be away from 0; beyond it is no image that can be opened."""
VISIBLE = 2
"""A keypoint's flag: 0 not annotated, 1 annotated but hidden, 2 visible."""


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
    attribute = None if class_from == "category" else class_from.removeprefix(ATTRIBUTE)
    if attribute is not None and (not attribute or attribute == class_from):
        raise DaplError(f"data.class_from: {class_from!r} is neither category nor {ATTRIBUTE}NAME.")
    listing = Listing(
        source=str(files["train"]),
        classes=[],
        parts=[],
        records={},
        masks=masks or files["train"].parent / "masks",
        mend="put them there, or name their folder with data.images",
    )
    read = {split: _CocoFile(path, listing.faults, attribute) for split, path in files.items()}
    names = _class_names(read, attribute)
    listing.classes = [names[index] for index in choose_classes(names, classes)]
    listing.parts = list(dict.fromkeys(part for file in read.values() for part in file.part_names()))
    for split, file in read.items():
        folder, mask_folder = images[split] or file.find_images(), masks or file.path.parent / "masks"
        listing.records[split] = _records(file, listing, folder, mask_folder / file.path.stem, mask_of)
    drop_unlearned_classes(listing)
    name_missing_masks(listing)
    return listing


@dataclass(frozen=True)
class _Object:
    """An annotation and the class that it says the image is of."""

    place: int
    """In the list of annotations."""
    annotation: Json
    class_name: str
    area: float


class _CocoFile:
    """One JSON file by id; what refers to nothing is left out and named."""

    def __init__(self, path: Path, faults: list[Fault], attribute: str | None) -> None:
        self.path, self.faults, self.attribute = path, faults, attribute
        content = _load(path)
        self.images: dict[Any, Json] = {}
        for place, image in enumerate(content["images"]):
            if wrong := _wrong_image(image, self.images):
                self._leave_out(image.get("file_name", place), f"images, item {place}: left out, {wrong}.")
            else:
                self.images[image["id"]] = image
        self.categories = {
            category["id"]: category
            for category in content.get("categories", [])
            if isinstance(category.get("id"), int | str)
        }
        self.objects: dict[Any, list[_Object]] = {image_id: [] for image_id in self.images}
        """By image id, those whose class is known, the largest first."""
        for place, annotation in enumerate(content["annotations"]):
            self._add(place, annotation)
        for image_id, objects in self.objects.items():
            name = self._value(self.images[image_id])
            if not objects and name is not None:  # the image has a class, and nothing is annotated on it
                objects.append(_Object(-1, {}, name, 0.0))
            objects.sort(key=lambda one: (-one.area, one.place))

    def _add(self, place: int, annotation: Json) -> None:
        image_id, name = annotation.get("image_id"), f"annotation {annotation.get('id', place)}"
        if not isinstance(image_id, int | str) or image_id not in self.images:
            why = f"there is no image {image_id!r}"
        elif annotation.get("iscrowd"):
            return
        else:
            image = self.images[image_id]
            name = image["file_name"]
            category = annotation.get("category_id")
            if self.attribute is not None:
                class_name = self._value(annotation) or self._value(image)
                why = f"neither it nor its image has an attribute {self.attribute}"
            else:
                known = isinstance(category, int | str) and category in self.categories
                class_name = str(self.categories[category].get("name", category)) if known else None
                why = f"there is no category {category!r}"
            if class_name is not None:
                self.objects[image_id].append(_Object(place, annotation, class_name, _area(annotation)))
                return
        self._leave_out(name, f"annotations, item {place} (id {annotation.get('id')}): left out, {why}.")

    def _leave_out(self, name: Any, what: str) -> None:
        self.faults.append(Fault("left out", str(name), f"{self.path}: {what}"))

    def _value(self, item: Json) -> str | None:
        """The attribute that is the class: of the item itself, or of the dictionary ``attributes`` in it."""
        if self.attribute is None:
            return None
        inner = item.get("attributes")
        value = item.get(self.attribute, inner.get(self.attribute) if isinstance(inner, dict) else None)
        return str(value) if isinstance(value, str | int | float) and value != "" else None

    def part_names(self) -> list[str]:
        """Keypoint names of all categories, in the order in which they stand there."""
        return [name for category in self.categories.values() for name in _part_names(category)]

    def find_images(self) -> Path:
        """The folder near the JSON file that holds its first image; beside the file where none does."""
        here = self.path.parent
        above = here.resolve().parent
        tail = self.path.stem.rpartition("_")[2]  # annotations/instances_train2017.json belongs to train2017/
        first = next((image["file_name"] for image in self.images.values()), "")
        for folder in (here, here / "images", above, above / "images", above / tail, above / "images" / tail):
            if first and os.path.isfile(folder / first):
                return folder
        return here


def _part_names(category: Json) -> list[str]:
    """Keypoint names of a category; none where it has a number or something else in their place."""
    names = category.get("keypoints")
    return [str(name) for name in names] if isinstance(names, list) else []


def _load(path: Path) -> dict[str, list[Json]]:
    content = read_json(path, "give a COCO JSON file, or export it again", LARGEST_DATA)
    for name in ("images", "annotations", "categories"):
        items = content.get(name, [] if name == "categories" else None) if isinstance(content, dict) else None
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise DaplError(f"{path}: not a COCO file, which holds a list of {name}; see docs/own-data.md.")
    return content


def _wrong_image(image: Json, before: dict[Any, Json]) -> str | None:
    name, number = image.get("file_name"), image.get("id")
    if not isinstance(name, str) or not name or not isinstance(number, int | str):
        return "it has no file_name or no id"
    if number in before:
        return f"the id {number!r} was used before"
    if "\0" in name or any(len(part.encode("utf-8", "replace")) > _LONGEST for part in name.split("/")):
        return "its file_name is no name of a file"
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
        return f"its file_name {name!r} leads out of the folder of the images"
    return None


def _area(annotation: Json) -> float:
    area = annotation.get("area")
    if isinstance(area, int | float) and not isinstance(area, bool) and 0 < area <= _LARGEST**2:  # false for nan too
        return float(area)
    box = _box(annotation)
    return 0.0 if box is None else (box[2] - box[0]) * (box[3] - box[1])


def _are_numbers(value: Any, count: int) -> bool:
    """Whether it is a list of numbers as an image can have them: NaN, infinity and 10⁹ pixels are none."""
    numbers = isinstance(value, list) and len(value) == count
    return numbers and all(type(n) in (int, float) and abs(n) <= _LARGEST for n in value)  # false for nan as well


def _box(annotation: Json) -> Box | None:
    """XYXY from COCO's x, y, width, height; None where it has none or an empty one."""
    box: Any = annotation.get("bbox")
    if not _are_numbers(box, 4):
        return None
    x, y, width, height = (float(n) for n in box)
    return (x, y, x + width, y + height) if width > 0 and height > 0 else None


def _class_names(files: dict[str, _CocoFile], attribute: str | None) -> list[str]:
    """The classes that occur: categories in the order of their ids in train, attributes in alphabetical order."""
    seen = {one.class_name for file in files.values() for group in file.objects.values() for one in group}
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


def _records(file: _CocoFile, listing: Listing, folder: Path, masks: Path, mask_of: MaskOf) -> list[ImageRecord]:
    records: dict[str, ImageRecord] = {}
    label = {name: index for index, name in enumerate(listing.classes)}
    several = 0
    for image_id, image in file.images.items():
        objects = [one for one in file.objects[image_id] if one.class_name in label]
        name = image["file_name"]
        if not objects or name in records:
            why = "named twice" if name in records else "no object of a known class is annotated on it"
            listing.faults.append(Fault("left out", name, f"{file.path}: {name} is left out, {why}."))
            continue
        chosen = objects[0]
        origin = f"{file.path}, annotation {chosen.annotation.get('id', chosen.place)}"
        of_class = [one for one in objects if one.class_name == chosen.class_name]
        several += len(of_class) < len(objects)
        segmentations = _segmentations(of_class if mask_of == "class" else [chosen], origin)
        mask = masks / f"{name}.png"
        points, visible = _keypoints(chosen, file, listing, name, origin)
        box = _box(chosen.annotation)
        if box is None and chosen.annotation.get("bbox"):
            text = f"{origin}: its box is left out, it is not (x, y, width, height) of an object in an image."
            listing.faults.append(Fault("left out", name, text))
        height, width = image.get("height"), image.get("width")
        records[name] = ImageRecord(
            name=name,
            path=folder / name,
            label=label[chosen.class_name],
            mask=segmentations or (MaskFile(mask) if os.path.isfile(mask) else None),
            mask_path=mask,
            points=points,
            visible=visible,
            box=box,
            origin=origin,
            size=(height, width) if isinstance(height, int) and isinstance(width, int) else None,
        )
    if several:
        listing.notes.append(
            f"{file.path}: on {several} images there are objects of several classes; the largest one decides"
        )
    return list(records.values())


def _segmentations(objects: Sequence[_Object], origin: str) -> Segmentations | None:
    values = tuple(value for one in objects if (value := one.annotation.get("segmentation")))
    if not values:
        return None
    coco_mask_module()  # say that it is missing before anything is trained
    return Segmentations(values, origin)


def _keypoints(
    one: _Object, file: _CocoFile, listing: Listing, name: str, origin: str
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """float32 K×2 and bool K in the order of the listing's parts."""
    written, parts = one.annotation.get("keypoints"), listing.parts
    if not written or not parts:
        return None, None
    number = one.annotation.get("category_id")
    category = file.categories.get(number, {}) if isinstance(number, int | str) else {}
    names = _part_names(category)
    if not _are_numbers(written, 3 * len(names)):
        text = (
            f"{origin}: its keypoints are left out, they are not {len(names)} × (x, y, flag), one for each keypoint of"
            f" its category."
        )
        listing.faults.append(Fault("left out", name, text))
        return None, None
    points, visible = np.zeros((len(parts), 2), np.float32), np.zeros(len(parts), bool)
    for part, (x, y, flag) in zip(names, np.array(written, np.float64).reshape(-1, 3), strict=True):
        if flag == VISIBLE:
            points[parts.index(part)], visible[parts.index(part)] = (x, y), True
    return points, visible
