"""Are two engines giving the same answers: prompts, what was answered, how far that agrees.

A private `vllama serve` for each engine in turn (`server`) answers the same prompts; the rest is
pure. Nothing here prints.
"""
