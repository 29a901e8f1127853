"""The engine on asyncio: requests in, events out, over the compiled core's Engine."""
