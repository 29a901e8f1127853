"""The life of a server process: bind, answer /health, load, serve, end. Returns the exit code.

0 after SIGINT or SIGTERM; 1 when the port is taken, the engine died or something broke; 2 when the model or an option
is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

import uvicorn

import freetoken
from freetoken.errors import FreeTokenPyError
from freetoken.server.app import create_app
from freetoken.server.loader import Core, load_model
from freetoken.server.options import ServeOptions
from freetoken.server.state import Progress, ServedModel, ServerState

_LOG = logging.getLogger("freetoken.server")
_DRAIN_S = 5  # for answers that were cut short to reach their clients
_DEATH_GRACE_S = 5.0  # in which /health says why the engine died
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_USAGE_ERRORS = ("ConfigError", "UnsupportedError", "ResourceError")  # of the core


class Display(Protocol):
    """What a person sees; methods may be called from any thread."""

    def listening(self, url: str) -> None: ...
    def progress(self, phase: str, done_bytes: int, total_bytes: int) -> None: ...
    def plan(self, plan: dict[str, Any]) -> None: ...
    def ready(self, model: ServedModel, url: str) -> None: ...
    def stopping(self, running: int) -> None: ...
    def warning(self, message: str) -> None: ...
    def error(self, message: str) -> None: ...


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn would raise them again at the end and so hide the exit code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)  # from here on a client waits instead of being turned away
    except OSError:
        listener.close()
        raise
    return listener


def run_server(
    options: ServeOptions,
    open_model: Callable[..., Any],
    core: Core,
    display: Display,
    death_grace_s: float = _DEATH_GRACE_S,
) -> int:
    try:
        listener = _bind(options.host, options.port)
    except OSError as error:
        where = f"{options.host}:{options.port}"
        display.error(f"cannot listen on {where}: {error.strerror or error}; choose another --port or --host")
        return 1
    if options.api_key is None and options.host not in _LOOPBACK:
        display.warning(f"anyone who reaches {options.host} can use this server; --api-key asks for a key")
    life = _Life(options, listener, display, death_grace_s)
    code = _run_loop(life.run(lambda: life.load(open_model, core)))
    if life.loading:
        # A load cannot be interrupted, and the interpreter would not end while its threads run.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _run_loop(main: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def _exit_code_of(error: BaseException) -> int:
    return 2 if isinstance(error, FreeTokenPyError) or type(error).__name__ in _USAGE_ERRORS else 1


class _Life:
    def __init__(self, options: ServeOptions, listener: socket.socket, display: Display, death_grace_s: float) -> None:
        self._options = options
        self._listener = listener
        self._display = display
        self._death_grace_s = death_grace_s
        self._state = ServerState(options.display_name, freetoken.__version__)
        host, port = listener.getsockname()[:2]
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self.loading = False

    def load(self, open_model: Callable[..., Any], core: Core) -> ServedModel:
        def report(phase: str, done_bytes: int, total_bytes: int) -> None:
            self._state.progress = Progress(phase, done_bytes, total_bytes)
            self._display.progress(phase, done_bytes, total_bytes)

        return load_model(self._options, open_model, core, report, self._display.plan, self._display.warning)

    async def run(self, load: Callable[[], ServedModel]) -> int:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        app = create_app(self._state, self._options.api_key, self._options.cors_origins)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_DRAIN_S,
            server_header=False,
        )
        server = _Server(config)

        def on_signal() -> None:
            server.force_exit = stop.is_set()  # a second signal does not wait
            if not stop.is_set():
                self._display.stopping(self._state.model.engine.active if self._state.model is not None else 0)
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        serving = asyncio.ensure_future(server.serve([self._listener]))
        self._display.listening(self._url)
        stopped = asyncio.ensure_future(stop.wait())
        loaded = self._start_loading(loop, load)
        code = 1
        try:
            await asyncio.wait({loaded, stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
            if loaded.done() and loaded.exception() is None:
                code = await self._serve_until_end(loaded.result(), stopped, serving)
            elif loaded.done():
                code = self._load_failed(loaded.exception())
            else:
                code = 0 if stop.is_set() else 1
        finally:
            self._state.stopping = True
            server.should_exit = True
            if self._state.model is not None:
                self._state.model.engine.stop()
            await asyncio.gather(serving, return_exceptions=True)
            stopped.cancel()
            if self._state.model is not None:
                self._state.model.engine.close()
                if self._state.model.prompter is not None:
                    self._state.model.prompter.close()
        return code

    def _start_loading(
        self, loop: asyncio.AbstractEventLoop, load: Callable[[], ServedModel]
    ) -> asyncio.Future[ServedModel]:
        loaded: asyncio.Future[ServedModel] = loop.create_future()
        self.loading = True

        def finish(model: ServedModel | None, error: BaseException | None) -> None:
            self.loading = False
            if loaded.done():
                return
            if error is not None:
                loaded.set_exception(error)
            else:
                assert model is not None
                loaded.set_result(model)

        def work() -> None:
            model, error = None, None
            try:
                model = load()
            except BaseException as caught:  # handed to the loop, whatever it is
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(finish, model, error)

        threading.Thread(target=work, name="load", daemon=True).start()
        return loaded

    def _load_failed(self, error: BaseException | None) -> int:
        assert error is not None
        code = _exit_code_of(error)
        if code == 1 and not isinstance(error, (RuntimeError, OSError, MemoryError)):
            _LOG.error("loading failed by our fault", exc_info=error)
        self._state.failure = str(error) or type(error).__name__
        self._display.error(self._state.failure)
        return code

    async def _serve_until_end(
        self, model: ServedModel, stopped: asyncio.Future[bool], serving: asyncio.Future[None]
    ) -> int:
        model.engine.start()
        self._state.model = model
        self._display.ready(model, self._url)
        died = asyncio.ensure_future(model.engine.died.wait())
        await asyncio.wait({died, stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
        if not died.done():
            died.cancel()
            return 0 if stopped.done() else 1
        self._display.error(f"the engine died: {model.engine.death}; start the server again")
        await asyncio.wait({stopped, serving}, timeout=self._death_grace_s, return_when=asyncio.FIRST_COMPLETED)
        return 1
