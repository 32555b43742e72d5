"""Text in, bitmask out: tool-call formats, policy, compilation, matching. Knows no model."""
