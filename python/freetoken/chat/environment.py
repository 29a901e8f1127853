"""The jinja2 environment of chat templates: what checkpoints' templates expect to find, in a sandbox.

The conventions (block trimming, the `generation` tag, `raise_exception`, `strftime_now`, `tojson` without escapes)
are those that templates in published checkpoints are written against. Runs in the worker process only.
"""

from __future__ import annotations

import datetime
import json
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateRuleError(TemplateError):
    """The template itself refused the messages, by `raise_exception`."""


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what the model says, for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 reads a plain set)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: object) -> None:
    raise TemplateRuleError(str(message))


def _strftime_now(format_string: str) -> str:
    return datetime.datetime.now().strftime(format_string)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment
