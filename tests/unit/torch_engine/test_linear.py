"""Products with packed weights are products, for every number of rows."""

import pytest
import torch
from torch.nn import functional

from enginecore_torch.linear import Linear, kernel_rows


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 64, 65, 300])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.3)])
def test_product(rows: int, bias: bool, dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(48, 32, generator=generator).to(dtype)
    offset = torch.randn(48, generator=generator).to(dtype) if bias else None
    x = torch.randn(rows, 32, generator=generator).to(dtype)
    found = Linear(weight, offset)(x)
    right = functional.linear(
        x.double(), weight.double(), None if offset is None else offset.double()
    )
    assert found.shape == (rows, 48)
    assert found.dtype is dtype
    assert torch.allclose(found.double(), right, atol=tolerance)


def test_few_sizes_serve_all() -> None:
    sizes = {rows: kernel_rows(rows) for rows in range(1, 2049)}
    assert all(size >= rows for rows, size in sizes.items())
    assert all(size < 2 * rows for rows, size in sizes.items())
    assert len(set(sizes.values())) < 45
    assert [sizes[rows] for rows in (1, 2, 4, 8, 64, 256, 2048)] == [1, 2, 4, 8, 64, 256, 2048]
