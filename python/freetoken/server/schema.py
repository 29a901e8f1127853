"""Types and ranges of the honoured request fields, as pydantic models, and their errors in the API's words."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from freetoken.server.errors import ApiError, bad_request

MAX_STOPS = 16
MAX_STOP_CHARS = 1000
MAX_PROMPTS = 128
MAX_N = 128
MAX_CHOICES = 1024  # of one HTTP request: prompts times n
MAX_LOGPROBS = 20
MAX_TIMEOUT_S = 1e9
DEFAULT_MAX_TOKENS = 16  # of completions
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
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    logit_bias: Any = Field(default_factory=dict)
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] = 1
    best_of: int | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None
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

    @field_validator("logit_bias")
    @classmethod
    def _logit_bias(cls, value: Any) -> dict[int, float]:
        if not isinstance(value, dict):
            raise PydanticCustomError("logit_bias", "must be an object of token ids and biases")
        biases = {}
        for token, bias in value.items():
            if not (token.isascii() and token.isdigit() and str(int(token[:20])) == token):
                raise PydanticCustomError("logit_bias", "{token} is no token id", {"token": f"{token!r:.80}"})
            if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not -100 <= bias <= 100:
                message = "the bias of token id {token} must be a number in -100 .. 100"
                raise PydanticCustomError("logit_bias", message, {"token": token})
            biases[int(token)] = float(bias)
        return biases

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wanted_tokens(self) -> int | None:
        """None: all there is room for."""
        return self.max_tokens

    def check(self) -> None:
        """What concerns more than one field. ApiError 400."""
        if self.best_of not in (None, 0, self.n):
            message = f"'best_of' must be n, which is {self.n}, not {self.best_of}: no answer is left out"
            raise bad_request(message, "best_of", "unsupported_parameter")
        both = (self.repetition_penalty, self.repeat_penalty)
        if None not in both and both[0] != both[1]:
            message = "'repeat_penalty' is another name of repetition_penalty, which has another value"
            raise bad_request(message, "repeat_penalty", "invalid_value")
        if self.wanted_tokens is not None and self.min_tokens > self.wanted_tokens:
            message = f"'min_tokens' must be at most max_tokens, which is {self.wanted_tokens}, not {self.min_tokens}"
            raise bad_request(message, "min_tokens", "invalid_value")


class ChatFields(GenerationFields):
    messages: Any
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0
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

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def check(self) -> None:
        if self.wanted_tokens is not None and self.wanted_tokens < 1:
            name = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
            raise bad_request(f"'{name}' must be at least 1, not {self.wanted_tokens}", name, "invalid_value")
        if self.top_logprobs and not self.logprobs:
            raise bad_request("'top_logprobs' needs logprobs to be true", "top_logprobs", "invalid_value")
        super().check()


class CompletionFields(GenerationFields):
    prompt: Any
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

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

    @property
    def wanted_tokens(self) -> int:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    def check(self) -> None:
        wanted = self.wanted_tokens
        if wanted < 0 or (wanted == 0 and not self.echo):
            message = f"'max_tokens' must be at least 1 (or 0 with echo), not {wanted}"
            raise bad_request(message, "max_tokens", "invalid_value")
        if wanted == 0 and self.n > 1:
            raise bad_request(f"'n' must be 1 with max_tokens 0, not {self.n}", "n", "invalid_value")
        if len(self.prompt) * self.n > MAX_CHOICES:
            message = f"'n': {len(self.prompt)} prompts with n = {self.n} are more than {MAX_CHOICES} answers"
            raise bad_request(message, "n", "invalid_value")
        super().check()


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_id_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_id(item) for item in value)


Fields = TypeVar("Fields", bound=GenerationFields)


def validate(model: type[Fields], values: dict[str, Any]) -> Fields:
    """`values` as `model`, or ApiError 400 naming the first field that is wrong."""
    try:
        checked = model.model_validate(values)
    except ValidationError as error:
        raise _api_error(error) from None
    checked.check()
    return checked


def _api_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    param = ""
    for part in first["loc"]:
        param += f"[{part}]" if isinstance(part, int) else f".{part}" if param else part
    if first["type"] == "missing":
        return bad_request(f"'{param}' is required", param, "missing_required_parameter")
    message = first["msg"][0].lower() + first["msg"][1:]
    code = "invalid_type" if first["type"].endswith("_type") else "invalid_value"
    return bad_request(f"'{param}': {message}", param, code)
