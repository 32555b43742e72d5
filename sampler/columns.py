"""The rows' sampling parameters as `kernels.masked_sample` takes them."""

from __future__ import annotations

import torch

from sampler.head import to_device
from sampler.row import Row


class Columns:
    """Parameters that stay while the rows do: made anew when those change, not at every step."""

    def __init__(self) -> None:
        self._rows: list[tuple[Row, int]] = []
        self._columns: dict[str, torch.Tensor] = {}

    def of(self, rows: list[Row], device: torch.device) -> dict[str, torch.Tensor]:
        """All but the positions, [B] each, on the device; nothing waits for it."""
        # A row that its guard sends back comes again as the same row, with other noise.
        now = [(row, row.retries) for row in rows]
        if now != self._rows:
            params = [row.request.params for row in rows]
            columns = {
                "temperature": torch.tensor([row.temperature for row in rows], dtype=torch.float32),
                "top_k": torch.tensor([p.top_k for p in params], dtype=torch.int32),
                "top_p": torch.tensor([p.top_p for p in params], dtype=torch.float32),
                "min_p": torch.tensor([p.min_p for p in params], dtype=torch.float32),
                "seed": torch.tensor([p.seed for p in params], dtype=torch.int64),
                "stream": torch.tensor([row.retries for row in rows], dtype=torch.int32),
            }
            self._columns = {name: to_device(column, device) for name, column in columns.items()}
            self._rows = now
        return self._columns
