"""How muster's costs grow, each as a curve: `python -m benchmarks.growth CURVE...`.

`curves` says what is varied and measures it, `picture` draws it, `__main__` writes both.
"""
