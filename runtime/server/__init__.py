"""The HTTP server: OpenAI's protocol and Palmette's own, written against `EngineService`."""
