"""The template worker: a child process that renders chat templates, so that a hostile one costs a bounded amount.

Messages on stdin and stdout (framing.py), one at a time. First {"template", "memory_bytes"}, answered {"ok": true} or
an error; then any number of {context...}, answered {"text"} or {"error", "kind"}. `kind`: "rule" (raise_exception),
"template" (any other fault), "limit" (memory or output size). The end of input ends the process. Nothing here may
import more than jinja2: starting it is on the path of a restart.
"""

from __future__ import annotations

import resource
import signal
import sys
from typing import Any

from jinja2 import Template, TemplateError

from freetoken.chat.environment import TemplateRuleError, make_environment
from freetoken.chat.framing import read_message, write_message

MAX_TEXT_CHARS = 32 << 20
MAX_ERROR_CHARS = 1000


def describe(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    text = (str(error) or type(error).__name__)[:MAX_ERROR_CHARS]
    return f"line {line}: {text}" if line else text


def render(template: Template, context: dict[str, Any]) -> dict[str, Any]:
    pieces: list[str] = []
    size = 0
    try:
        for piece in template.generate(context):
            size += len(piece)
            if size > MAX_TEXT_CHARS:
                return {"error": f"the template produced more than {MAX_TEXT_CHARS} characters", "kind": "limit"}
            pieces.append(piece)
        return {"text": "".join(pieces)}
    except TemplateRuleError as error:
        return {"error": describe(error), "kind": "rule"}
    except MemoryError:
        return {"error": "the template ran out of memory", "kind": "limit"}
    except Exception as error:  # a template may raise anything Python can: TypeError, KeyError, RecursionError, ...
        return {"error": f"{type(error).__name__}: {describe(error)}", "kind": "template"}


def die_with_parent() -> None:
    """A worker caught in a template's loop does not read end of input; Linux can kill it when its server is gone."""
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C reaches the whole group; the server ends us
    die_with_parent()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    start = read_message(source)
    if start is None:
        return
    limit = int(start["memory_bytes"])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        template = make_environment().from_string(start["template"])
    except TemplateError as error:
        write_message(sink, {"error": describe(error), "kind": "template"})
        return
    except (MemoryError, RecursionError) as error:
        write_message(sink, {"error": f"{type(error).__name__} while compiling the template", "kind": "limit"})
        return
    write_message(sink, {"ok": True})
    while (context := read_message(source)) is not None:
        write_message(sink, render(template, context))


if __name__ == "__main__":
    main()
