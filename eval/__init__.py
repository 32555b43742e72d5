"""Questions asked of the decoding loop. Write ``from eval import k2vv``, not ``import eval.x``."""
