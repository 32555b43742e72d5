"""Questions asked of the decoding loop. Write ``from eval import k2vv``: the name is a builtin's."""
