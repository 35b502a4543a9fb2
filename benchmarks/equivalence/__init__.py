"""Every engine, stage and offload against one plain process: the same training, or a row that says where not.

    python -m benchmarks.equivalence          (or: make equivalence)

`matrix` says what is trained, `model` and `reference` with what and against what, `rank` and `gang` where, `compare`
judges, `page` writes it down. Nothing here is part of the product.
"""
