"""The HTTP server: OpenAI's chat and completions endpoints over an AsyncEngine."""
