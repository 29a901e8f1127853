"""What happens to every request field: honoured, refused or ignored. The one table behind requests and documentation.

Refused: it would change the answer and this version cannot do it. Its neutral values (those that ask for nothing) are
accepted. Ignored: the answer is as good without it. A name in no list is refused too: a typo must not pass in silence.
`null` means absent everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from freetoken.server.errors import bad_request

CHAT = "chat"
COMPLETIONS = "completions"
BOTH = (CHAT, COMPLETIONS)


@dataclass(frozen=True)
class Field:
    name: str
    treatment: str  # honoured | refused | ignored
    note: str
    endpoints: tuple[str, ...] = BOTH
    neutral: tuple[Any, ...] = ()  # with refused: values that are accepted


def _honoured(name: str, note: str, *endpoints: str) -> Field:
    return Field(name, "honoured", note, endpoints or BOTH)


def _refused(name: str, note: str, neutral: tuple[Any, ...] = (), *endpoints: str) -> Field:
    return Field(name, "refused", note, endpoints or BOTH, neutral)


def _ignored(note: str, *names: str) -> list[Field]:
    return [Field(name, "ignored", note) for name in names]


FIELDS: tuple[Field, ...] = (
    _honoured("model", "required; any other than the served name is 404"),
    _honoured("messages", "roles system, developer, user, assistant, tool; content a string or text parts", CHAT),
    _honoured(
        "prompt",
        "text (control tokens in it are meant), token ids, or a list of at most 128 of either",
        COMPLETIONS,
    ),
    _honoured("max_tokens", "absent: the rest of the context (chat), 16 (completions); cut to the room left"),
    _honoured("max_completion_tokens", "the same, and wins over max_tokens", CHAT),
    _honoured("temperature", "0 or more, 0 = greedy; absent: the model's default, else 1"),
    _honoured("top_p", "0 to 1, 0 = greedy; absent: the model's default, else 1"),
    _honoured("top_k", "0 or -1 = off; absent: the model's default, else off"),
    _honoured(
        "min_p",
        "0 to 1: what is less likely than this times the likeliest is not drawn; absent: the model's default, else 0",
    ),
    _honoured("presence_penalty", "-2 to 2, for tokens that are in the answer"),
    _honoured("frequency_penalty", "-2 to 2, for each time a token is in the answer"),
    _honoured(
        "repetition_penalty",
        "above 0, at most 100, 1 = off, for tokens of prompt and answer; absent: the model's default, else 1",
    ),
    _honoured("repeat_penalty", "another name of repetition_penalty"),
    _honoured("logit_bias", "token id to -100 .. 100, added to its logit; -100 bans the token"),
    _honoured("seed", "64-bit; absent: a fresh one per request"),
    _honoured("n", "1 to 128 answers to each prompt; at most 1024 over all prompts"),
    _honoured("best_of", "must be n: all answers are returned, none is selected; 0 = absent"),
    _honoured("min_tokens", "so many tokens before the answer may end by itself; at most max_tokens"),
    _honoured("stop", "up to 16 strings; empty ones are dropped; the match is not in the answer"),
    _honoured("stop_token_ids", "up to 256 ids that end the answer as the end-of-text token does"),
    _honoured("ignore_eos", "go on until max_tokens or a stop string"),
    _honoured("priority", "a whole number; lower ones run earlier, equal ones as they came; absent: 0"),
    _honoured(
        "timeout", "seconds from acceptance to the last token; then 408, or an error in the stream, code timeout"
    ),
    _honoured("stream", "server-sent events"),
    _honoured("stream_options", "include_usage; its other fields are ignored"),
    _honoured("return_token_ids", "adds prompt_token_ids and token_ids"),
    _honoured("chat_template_kwargs", "variables for the chat template", CHAT),
    _honoured("reasoning_effort", "given to the chat template; templates that do not know it are unaffected", CHAT),
    _honoured("add_generation_prompt", "absent: true", CHAT),
    _honoured("echo", "the prompt before the answer; with logprobs, the prompt's too", COMPLETIONS),
    Field("logprobs", "honoured", "0 to 20: of the chosen tokens and this many of the likeliest", (COMPLETIONS,)),
    Field("logprobs", "honoured", "true: of the chosen tokens", (CHAT,)),
    _honoured("top_logprobs", "0 to 20, with logprobs: of this many of the likeliest tokens too", CHAT),
    _refused("length_penalty", "no beam search", (1,)),
    _refused("typical_p", "not available in this version", (1,)),
    _refused("typ_p", "not available in this version", (1,)),
    _refused("tfs_z", "not available in this version", (1,)),
    _refused("mirostat", "not available in this version", (0,)),
    _refused("top_a", "not available in this version", (0,)),
    _refused("dry_multiplier", "not available in this version", (0,)),
    _refused("xtc_probability", "not available in this version", (0,)),
    _refused("dynatemp_range", "not available in this version", (0,)),
    _refused("allowed_token_ids", "not available in this version", ([],)),
    _refused("bad_words", "not available in this version", ([],)),
    _refused("use_beam_search", "no beam search", (False,)),
    _refused("suffix", "no fill-in-the-middle", ("",), COMPLETIONS),
    _refused("tools", "tool calls are not available in this version", ([],), CHAT),
    _refused("tool_choice", "tool calls are not available in this version", ("none", "auto"), CHAT),
    _refused("functions", "tool calls are not available in this version", ([],), CHAT),
    _refused("function_call", "tool calls are not available in this version", ("none", "auto"), CHAT),
    _refused("response_format", "constrained output is not available in this version", ({"type": "text"},)),
    _refused("structured_outputs", "constrained output is not available in this version"),
    _refused("guided_json", "constrained output is not available in this version"),
    _refused("guided_regex", "constrained output is not available in this version"),
    _refused("guided_choice", "constrained output is not available in this version", ([],)),
    _refused("guided_grammar", "constrained output is not available in this version", ("",)),
    _refused("grammar", "constrained output is not available in this version", ("",)),
    _refused("json_schema", "constrained output is not available in this version", ({},)),
    _refused("modalities", "text only", (["text"],), CHAT),
    _refused("audio", "text only", (), CHAT),
    _refused("verbosity", "no served model has it", ("medium",), CHAT),
    _refused("web_search_options", "the server does not search", (), CHAT),
    _refused("thinking", "switch thinking by chat_template_kwargs, as the model's template names it", (), CHAT),
    _refused("reasoning", "use reasoning_effort or chat_template_kwargs", (), CHAT),
    _refused("chat_template", "the server's template is used; see ft serve --chat-template", (), CHAT),
    _refused("documents", "not available in this version", ([],), CHAT),
    _refused("continue_final_message", "not available in this version", (False,), CHAT),
    _refused("truncate_prompt_tokens", "prompts are never cut"),
    _refused("include_stop_str_in_output", "the stop string is never in the answer", (False,)),
    _refused("skip_special_tokens", "control tokens never appear in the answer", (True,)),
    _refused("add_special_tokens", "BOS is added once where the model wants it", (True,)),
    _refused("prompt_logprobs", "use echo with logprobs on /v1/completions", (0, False)),
    _refused("prompt_embeds", "text and token ids only"),
    _refused("lora", "no adapters", ([],)),
    _refused("models", "one model is served", ([],)),
    *_ignored("for hosted services", "user", "metadata", "store", "service_tier", "safety_identifier", "moderation"),
    *_ignored("caching needs no request", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    *_ignored(
        "caching needs no request", "cache_prompt", "cache_salt", "cache_control", "id_slot", "keep_alive", "ttl"
    ),
    *_ignored("there are no tool calls to order", "parallel_tool_calls"),
    *_ignored("a hint for speed", "prediction", "draft_model"),
    *_ignored("not part of the answer", "request_id", "session_id", "chat_id", "client_metadata", "timings_per_token"),
    *_ignored(
        "not part of the answer", "return_progress", "include_reasoning", "usage", "spaces_between_special_tokens"
    ),
    *_ignored("routing between hosted services", "provider", "transforms", "route", "plugins"),
)


def for_endpoint(endpoint: str) -> dict[str, Field]:
    return {field.name: field for field in FIELDS if endpoint in field.endpoints}


_BY_ENDPOINT = {endpoint: for_endpoint(endpoint) for endpoint in BOTH}


def _is_neutral(value: Any, neutral: Any) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def screen(endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    """The honoured fields of `body` that are not null. ApiError 400 for a refused or unknown one."""
    known = _BY_ENDPOINT[endpoint]
    kept: dict[str, Any] = {}
    for name, value in body.items():
        field = known.get(name)
        if field is None:
            raise bad_request(f"unknown field {name!r:.80} on this endpoint", name[:80], "unknown_parameter")
        if value is None or field.treatment == "ignored":
            continue
        if field.treatment == "honoured":
            kept[name] = value
        elif not any(_is_neutral(value, neutral) for neutral in field.neutral):
            raise bad_request(f"'{name}' is not supported: {field.note}", name, "unsupported_parameter")
    return kept
