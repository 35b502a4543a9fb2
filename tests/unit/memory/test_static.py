"""Bytes of storages, each counted once."""

import torch

from workers.memory import resident_bytes, static_bytes, storage_bytes


def test_views_of_one_storage_count_once_and_whole() -> None:
    base = torch.zeros(10, dtype=torch.float32)
    assert storage_bytes([base[:2], base[5:].view(5, 1), base]) == 40


def test_a_storage_counts_in_the_first_category_it_is_in() -> None:
    shared, own = torch.zeros(4, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.int64)
    assert static_bytes({"parameters": [shared], "optimizer_state": [shared, own], "buffers": []}) == {
        "parameters": 8,
        "optimizer_state": 24,
        "buffers": 0,
    }


def test_tensors_without_elements_hold_nothing() -> None:
    assert storage_bytes([torch.zeros(0, 4), torch.zeros(4, 0)]) == 0


def test_resident_bytes_hold_what_was_just_written() -> None:
    size = 32 * 2**20
    held = torch.ones(size, dtype=torch.uint8)
    assert resident_bytes() >= held.numel()


def test_what_lies_elsewhere_than_on_the_device_is_counted_as_offloaded() -> None:
    held = {"parameters": [torch.zeros(4)], "buffers": [torch.zeros(2), torch.zeros(4)[:1]]}
    assert static_bytes(held, device=torch.device("cpu")) == {"parameters": 16, "buffers": 24}
    assert static_bytes(held, device=torch.device("cuda")) == {"parameters": 0, "buffers": 0, "offloaded": 40}
