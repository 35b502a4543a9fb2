"""DeepSpeed ZeRO as an engine. Nothing outside of here knows DeepSpeed; `library` alone imports it."""

from workers.engines.deepspeed.build import build_deepspeed

__all__ = ["build_deepspeed"]
