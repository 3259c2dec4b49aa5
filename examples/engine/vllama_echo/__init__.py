"""An example of an engine for vllama: `server` is the engine, `adapter` tells vllama about it."""
