"""Chat messages -> prompt token ids: template, special-token guard, exactly one BOS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from freetoken.chat.guard import Encoder, GuardError, SpecialGuard
from freetoken.chat.messages import Message, MessageError, normalise, system_texts_in_place, variants
from freetoken.chat.renderer import TemplateFault, TemplateRenderer


class PromptTokenizer(Encoder, Protocol):
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def add_bos(self) -> bool: ...


def with_one_bos(ids: list[int], tokenizer: PromptTokenizer) -> list[int]:
    """Decided on the first ids and not on who should have added it: a template and a tokenizer may both, or neither."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return ids
    count = 0
    while count < len(ids) and ids[count] == bos:
        count += 1
    if count == 0:
        return [bos, *ids] if tokenizer.add_bos else ids
    return ids[count - 1 :]


class ChatPrompter:
    """`specials`: texts of the control tokens; `special_tokens`: the template's variables bos_token, eos_token, ..."""

    def __init__(
        self,
        template: str,
        tokenizer: PromptTokenizer,
        specials: list[str],
        special_tokens: dict[str, Any],
        deadline_s: float = 5.0,
    ) -> None:
        self._renderer = TemplateRenderer(template, deadline_s)
        self._tokenizer = tokenizer
        self._guard = SpecialGuard(specials)
        self._special_tokens = special_tokens
        self._keep_developer = "developer" in template

    def check(self) -> None:
        """TemplateFault when the template does not compile."""
        self._renderer.check()

    def close(self) -> None:
        self._renderer.close()

    def encode(
        self,
        messages: Any,
        variables: dict[str, Any],
        add_generation_prompt: bool = True,
        check_size: Callable[[int], None] = lambda size_bytes: None,
    ) -> list[int]:
        """The prompt of a conversation. MessageError or TemplateFault when there is none. Blocking: not for a loop.

        `check_size` may refuse by raising: it gets the bytes of all contents before the slow parts, which are the
        template and the tokenizer, and those of the rendered text between them.
        """
        normalised = normalise(messages, self._keep_developer)
        check_size(sum(len(message["content"].encode(errors="replace")) for message in normalised))
        try:
            markers = self._guard.markers_for(normalised, variables)
        except GuardError as error:
            raise MessageError(str(error), "messages") from None
        context = {
            "tools": None,
            "documents": None,
            **self._special_tokens,
            **{name: self._guard.protect(value, markers) for name, value in variables.items()},
            "add_generation_prompt": add_generation_prompt,
        }
        protected: list[Message] = [
            {key: value if key == "role" else self._guard.protect(value, markers) for key, value in message.items()}
            for message in normalised
        ]
        text = self._render(protected, context)
        check_size(len(markers.remove(text).encode(errors="replace")))
        return with_one_bos(self._guard.encode(text, markers, self._tokenizer), self._tokenizer)

    def _render(self, messages: list[Message], context: dict[str, Any]) -> str:
        first_fault: TemplateFault | None = None
        fallback: str | None = None
        for candidate in variants(messages):
            try:
                text = self._renderer.render({**context, "messages": candidate})
            except TemplateFault as fault:
                if fault.kind in ("limit", "deadline"):
                    raise
                first_fault = first_fault or fault
                continue
            if system_texts_in_place(candidate, text):
                return text
            fallback = text if fallback is None else fallback
        if fallback is not None:
            return fallback  # the template rewrites its system message; nothing we can do keeps it literally
        assert first_fault is not None
        raise first_fault
