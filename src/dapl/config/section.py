"""What every section of a config is, and how sections of other packages join those of dapl."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, WrapValidator, field_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from dapl.common.errors import DaplError
from dapl.common.plugins import load_plugin


class Section(BaseModel):
    """A group of fields: unknown ones are refused, values do not change after they were checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _is_a_name(cls, value: Any) -> Any:
        if isinstance(value, str) and ("\0" in value or len(value) > _LONGEST_TEXT):
            raise ValueError(f"a text of {len(value):,} characters, or with one that no name has. Shorten or mend it.")
        return value


_LONGEST_TEXT = 10_000
LARGEST_SEED = 2**63 - 1
"""What generators of random numbers take."""
MOST_CLASSES = 100_000
MOST_PROTOTYPES = 1024
"""Prototypes per class, at most."""
MOST_WIDTH = 16_384
"""Channels of an embedding: its attention has matrices of the square of that."""
MOST_EPOCHS = 1_000_000
MOST_ROWS = 1_000_000
"""Rows of one batch, at most."""
LARGEST_WEIGHT = 1e9
"""The largest weight of a term of the loss; float32, in which all is computed, ends at 3e38."""
LARGEST_RATE = 1e30
"""The largest learning rate. Steps that long ruin a model, which training says; single precision ends soon after."""


def or_plugin(group: str, tag: str) -> WrapValidator:
    """For a union of sections told apart by ``tag``: where dapl has no such section, an installed package may.

    ``group`` is the group of entry points that is looked through, see `dapl.common.plugins`. Use it as
    ``Annotated[OneSection | OtherSection, Field(discriminator=tag), or_plugin(group, tag), SerializeAsAny()]``.
    """

    def read(value: Any, of_dapl: ModelWrapValidatorHandler[Any]) -> Any:
        try:
            return of_dapl(value)
        except ValidationError as error:
            name = value.get(tag) if isinstance(value, dict) else getattr(value, tag, None)
            if error.errors()[0]["type"] != "union_tag_invalid" or not isinstance(name, str):
                raise
            section = plugin_section(group, name)
            if section is None:
                raise
        try:
            return section.model_validate(value)
        except ValidationError as error:  # with the tag in its place, as an error within a union has it
            tagged: list[Any] = [{**one, "loc": (name, *one["loc"])} for one in error.errors()]
            raise ValidationError.from_exception_data(error.title, tagged) from None

    return WrapValidator(read)


def plugin_section(group: str, name: str) -> type[Section] | None:
    """The section of a plug-in; None where no installed package offers it."""
    plugin = load_plugin(group, name)
    if plugin is not None and not issubclass(plugin.section, Section):
        raise DaplError(f"{name}: its section {plugin.section.__name__} is no dapl.config.Section (group {group}).")
    return None if plugin is None else plugin.section
