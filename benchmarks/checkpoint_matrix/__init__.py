"""One checkpoint for every engine: what any of them saves at any width, every other one continues, bit for bit.

    python -m benchmarks.checkpoint_matrix          (or: make checkpoint-matrix)

`rank` trains, saves and loads, `canonical` reads what lies on disk with nothing but the format, `rows` judges, `page`
writes it down. Models and engines are those of `benchmarks.equivalence`. Nothing here is part of the product.
"""
