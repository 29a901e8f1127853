"""Chat messages as clients send them -> messages as templates expect them, and the forms to try when one refuses.

Out: a list of {role, content, ...} with content a string; developer is a system message unless the template knows it;
the text parts of one message are joined by a line break; tool-call arguments are objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from freetoken.nesting import is_shallow

ROLES = ("system", "developer", "user", "assistant", "tool")
SYSTEM_MARK = "[System message]\n"
_KEPT = ("name", "tool_call_id", "reasoning_content")
_MEDIA = {
    "image_url": "images", "input_image": "images", "image": "images", "input_audio": "audio", "audio_url": "audio",
    "video_url": "video", "video": "video", "file": "files", "input_file": "files",
}  # fmt: skip

Message = dict[str, Any]


class MessageError(ValueError):
    """A message is wrong. `param` is where, as messages[1].content[0].type."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def normalise(messages: Any, keep_developer: bool) -> list[Message]:
    if not isinstance(messages, list) or not messages:
        raise MessageError("'messages' must be a list of at least one message", "messages")
    return [_normalise_one(message, f"messages[{i}]", keep_developer) for i, message in enumerate(messages)]


def _normalise_one(message: Any, where: str, keep_developer: bool) -> Message:
    if not isinstance(message, dict):
        raise MessageError(f"a message must be an object with 'role' and 'content', not {_kind(message)}", where)
    role = message.get("role")
    if role is None:
        raise MessageError("the message has no 'role'", f"{where}.role")
    if role not in ROLES:
        raise MessageError(f"unknown role {role!r:.80}; known: {', '.join(ROLES)}", f"{where}.role")
    for refused in ("audio", "function_call"):
        if message.get(refused) is not None:
            raise MessageError(f"'{refused}' of a message is not available in this version", f"{where}.{refused}")
    out: Message = {"role": "system" if role == "developer" and not keep_developer else role}
    calls = message.get("tool_calls")
    if calls:
        if role != "assistant":
            raise MessageError("'tool_calls' belongs to assistant messages", f"{where}.tool_calls")
        out["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls")
    content = message.get("content")
    if content is None and role == "assistant" and isinstance(message.get("refusal"), str):
        content = message["refusal"]
    out["content"] = _content(content, f"{where}.content", optional=bool(calls))
    for key in _KEPT:
        if (value := message.get(key)) is not None:
            if not isinstance(value, str):
                raise MessageError(f"'{key}' must be a string, not {_kind(value)}", f"{where}.{key}")
            out[key] = value
    return out


def _content(content: Any, where: str, optional: bool) -> str:
    if content is None and optional:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise MessageError(f"'content' must be a string or a list of text parts, not {_kind(content)}", where)
    if not content:
        raise MessageError("'content' is an empty list; send a string or at least one text part", where)
    return "\n".join(_part_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise MessageError(f"a content part must be an object with 'type', not {_kind(part)}", where)
    kind = part.get("type")
    if kind in ("text", "refusal"):
        text = part.get(kind)
        if not isinstance(text, str):
            raise MessageError(f"a {kind} part needs a string '{kind}', not {_kind(text)}", f"{where}.{kind}")
        return text
    if isinstance(kind, str) and kind in _MEDIA:
        raise MessageError(f"{_MEDIA[kind]} are not supported: this server takes text only", f"{where}.type")
    raise MessageError(f"unknown content part type {kind!r:.80}; known: text", f"{where}.type")


def _tool_calls(calls: Any, where: str) -> list[Message]:
    if not isinstance(calls, list):
        raise MessageError(f"'tool_calls' must be a list, not {_kind(calls)}", where)
    out = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise MessageError("a tool call needs 'function' with a 'name'", f"{where}[{i}].function")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            arguments = _parsed(arguments)
        out.append(
            {
                "id": str(call.get("id") or ""),
                "type": "function",
                "function": {"name": function["name"], "arguments": {} if arguments is None else arguments},
            }
        )
    return out


def _parsed(arguments: str) -> Any:
    """The JSON in a call's arguments. What a model wrote that is not, or too deep, is shown to it again as it was."""
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
        json.dumps(value, ensure_ascii=False).encode()  # an escaped lone surrogate is no text that can be a prompt
    except (ValueError, RecursionError):
        return arguments
    return value if is_shallow(value) else arguments


def variants(messages: list[Message]) -> Iterator[list[Message]]:
    """`messages` as given, then the forms to try, mildest first, when the template refuses or drops a system message.

    Late system messages become marked user turns *in place* (moving them to the front would change the prefix that
    the next turn wants to find in the cache); then neighbours of one role become one; last, all system messages do so.
    """
    yield messages
    tried = [messages]
    late_to_user = _system_to_user(_merge_leading_system(messages), keep_first=True)
    for candidate in (late_to_user, _merge_neighbours(late_to_user), _merge_neighbours(_system_to_user(messages))):
        if candidate not in tried:
            tried.append(candidate)
            yield candidate


def system_texts_in_place(messages: list[Message], prompt: str) -> bool:
    """Whether every system message shows in `prompt`, after the text of the message before it."""
    position = 0
    for i, message in enumerate(messages):
        text = message["content"].strip()
        if not text:
            continue
        if message["role"] in ("system", "developer"):
            found = prompt.find(text, position)
            if found < 0:
                return False
            position = found + len(text)
        elif i + 1 < len(messages) and messages[i + 1]["role"] in ("system", "developer"):
            found = prompt.find(text, position)
            position = found + len(text) if found >= 0 else position
    return True


def _merge_leading_system(messages: list[Message]) -> list[Message]:
    count = 0
    while count < len(messages) and messages[count]["role"] in ("system", "developer"):
        count += 1
    if count < 2:
        return messages
    head = {**messages[0], "content": "\n\n".join(m["content"] for m in messages[:count])}
    return [head, *messages[count:]]


def _system_to_user(messages: list[Message], keep_first: bool = False) -> list[Message]:
    return [
        {**m, "role": "user", "content": SYSTEM_MARK + m["content"]}
        if m["role"] in ("system", "developer") and not (keep_first and i == 0)
        else m
        for i, m in enumerate(messages)
    ]


def _merge_neighbours(messages: list[Message]) -> list[Message]:
    out: list[Message] = []
    for message in messages:
        joinable = message["role"] in ("user", "assistant") and "tool_calls" not in message
        if out and joinable and out[-1]["role"] == message["role"] and "tool_calls" not in out[-1]:
            out[-1] = {**out[-1], "content": out[-1]["content"] + "\n\n" + message["content"]}
        else:
            out.append(message)
    return out


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object")
