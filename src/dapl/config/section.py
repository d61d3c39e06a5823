"""What every section of a config is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A group of fields: unknown ones are refused, values do not change after they were checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)
