"""The field table: complete, consistent with the models, and the same as the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams

from freetoken.server import fields
from freetoken.server.errors import ApiError
from freetoken.server.fields_doc import document
from freetoken.server.schema import ChatFields, CompletionFields

ENDPOINTS = [(fields.CHAT, ChatParams, ChatFields), (fields.COMPLETIONS, CompletionParams, CompletionFields)]


@pytest.mark.parametrize(("endpoint", "params", "schema"), ENDPOINTS, ids=["chat", "completions"])
def test_every_field_of_openai_is_in_the_table(endpoint, params, schema):
    assert set(params.__annotations__) | {"stream"} <= set(fields.for_endpoint(endpoint))


@pytest.mark.parametrize(("endpoint", "params", "schema"), ENDPOINTS, ids=["chat", "completions"])
def test_honoured_is_what_the_model_has(endpoint, params, schema):
    honoured = {name for name, field in fields.for_endpoint(endpoint).items() if field.treatment == "honoured"}
    assert honoured == set(schema.model_fields)


@pytest.mark.parametrize("endpoint", fields.BOTH)
def test_no_field_is_there_twice(endpoint):
    names = [field.name for field in fields.FIELDS if endpoint in field.endpoints]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("endpoint", fields.BOTH)
def test_refused_fields_take_their_neutral_values_and_nothing_else(endpoint):
    for field in fields.for_endpoint(endpoint).values():
        if field.treatment != "refused":
            continue
        for value in (None, *field.neutral):
            assert fields.screen(endpoint, {field.name: value}) == {}
        with pytest.raises(ApiError, match=field.name) as caught:
            fields.screen(endpoint, {field.name: "something else"})
        assert caught.value.status == 400 and caught.value.param == field.name


def test_documentation_is_up_to_date():
    path = Path(__file__).resolve().parents[3] / "docs" / "http-fields.md"
    assert path.read_text() == document(), "run: python -m freetoken.server.fields_doc > docs/http-fields.md"
