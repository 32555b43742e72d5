"""Questions asked of the decoding loop. Write ``from eval import k2vv``, never ``import eval.x``."""
