"""Types and ranges of the honoured request fields, as pydantic models, and their errors in the API's words."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from freetoken.server.errors import ApiError, bad_request

MAX_STOPS = 16
MAX_STOP_CHARS = 1000
MAX_PROMPTS = 128
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    include_usage: bool | None = None


class GenerationFields(BaseModel):
    """What both endpoints share. Strict: "1" is not a number, 1 is not a boolean."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str
    max_tokens: int | None = None
    temperature: Annotated[float, Field(ge=0, le=1e9)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Any = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=256)] = Field(default_factory=list)
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False

    @field_validator("stop")
    @classmethod
    def _stop(cls, value: Any) -> list[str]:
        stops = [value] if isinstance(value, str) else value
        if not isinstance(stops, list) or not all(isinstance(s, str) for s in stops):
            raise PydanticCustomError("stop", "must be a string or a list of strings")
        if len(stops) > MAX_STOPS or any(len(s) > MAX_STOP_CHARS for s in stops):
            raise PydanticCustomError("stop", f"at most {MAX_STOPS} strings of at most {MAX_STOP_CHARS} characters")
        return [s for s in stops if s]

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatFields(GenerationFields):
    messages: Any
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True

    @field_validator("chat_template_kwargs")
    @classmethod
    def _variables(cls, value: dict[str, Any]) -> dict[str, Any]:
        if reserved := sorted({"messages", "tools", "add_generation_prompt"} & set(value)):
            raise PydanticCustomError(
                "kwargs", "must not set {name}: use the request's own field", {"name": reserved[0]}
            )
        return value

    @field_validator("reasoning_effort")
    @classmethod
    def _effort(cls, value: str) -> str:
        known = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
        if value not in known:
            raise PydanticCustomError("effort", f"must be one of {', '.join(known)}")
        return value


class CompletionFields(GenerationFields):
    prompt: Any
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @field_validator("prompt")
    @classmethod
    def _prompt(cls, value: Any) -> list[str | list[int]]:
        """A list of prompts, each text or token ids."""
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list):
            raise PydanticCustomError("prompt", "must be a string, a list of strings, token ids or lists of token ids")
        if not value:
            raise PydanticCustomError("prompt", "must not be an empty list")
        if all(_is_id(item) for item in value):
            return [value]
        if len(value) > MAX_PROMPTS:
            raise PydanticCustomError("prompt", f"has {len(value)} prompts, at most {MAX_PROMPTS} are taken")
        if not all(isinstance(item, str) for item in value) and not all(_is_id_list(item) for item in value):
            raise PydanticCustomError(
                "prompt",
                "must be all strings, all token ids (integers of 0 and more) or all non-empty lists of token ids",
            )
        return value


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_id_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_id(item) for item in value)


Fields = TypeVar("Fields", bound=GenerationFields)


def validate(model: type[Fields], values: dict[str, Any]) -> Fields:
    """`values` as `model`, or ApiError 400 naming the first field that is wrong."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _api_error(error) from None


def _api_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    param = ""
    for part in first["loc"]:
        param += f"[{part}]" if isinstance(part, int) else f".{part}" if param else part
    if first["type"] == "missing":
        return bad_request(f"'{param}' is required", param, "missing_required_parameter")
    message = first["msg"][0].lower() + first["msg"][1:]
    return bad_request(f"'{param}': {message}", param, "invalid_value" if "than" in message else "invalid_type")
