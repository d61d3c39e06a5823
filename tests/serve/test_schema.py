"""The API against its own OpenAPI schema, by schemathesis: whatever is sent, the answers are those declared."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from dapl.serve.app import bare_app

from .conftest import Server, encoded, image

schemathesis = pytest.importorskip("schemathesis")

IMAGES = st.sampled_from([encoded(image(seed), kind) for seed in range(2) for kind in ("PNG", "JPEG", "WEBP")])
for kind in ("application/octet-stream", "image/jpeg", "image/png", "image/webp"):
    schemathesis.openapi.media_type(kind, IMAGES)


schema = schemathesis.openapi.from_dict(bare_app().openapi())


def test_the_schema_is_the_one_that_is_served(client: httpx.Client) -> None:
    assert client.get("/openapi.json").json() == schema.raw_schema


@schema.parametrize()
@settings(
    max_examples=6,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_declared(case, server: Server) -> None:
    case.call_and_validate(base_url=server.url, timeout=60)
