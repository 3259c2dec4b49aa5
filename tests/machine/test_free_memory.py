"""A plan of now wants the memory of now."""

from dataclasses import replace

from tests.facts import CPU, H100
from vllama.machine import detect


def test_free_memory_is_asked_for_again_and_nothing_else(monkeypatch):
    monkeypatch.setattr(detect, "free_ram_bytes", lambda: 7)
    assert detect.with_free_memory(CPU) == replace(CPU, ram_available_bytes=7)


def test_gpus_are_asked_again_and_stay_if_they_do_not_answer(monkeypatch):
    monkeypatch.setattr(detect, "free_ram_bytes", lambda: 7)
    (gpu,) = H100.accelerators
    busy = replace(gpu, free_bytes=1)
    monkeypatch.setattr(detect, "detect", lambda: replace(H100, accelerators=(busy,)))
    assert detect.with_free_memory(H100).accelerators == (busy,)
    monkeypatch.setattr(detect, "detect", lambda: CPU)
    assert detect.with_free_memory(H100).accelerators == (gpu,)
