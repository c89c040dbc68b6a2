"""MEOpt's optimizers for Python programs: Adam, AdamW, SGD, LAMB, Lion, Muon, AdamWScheduleFree and Adafactor
in a fraction of the usual memory.

The package calls libmeopt-optim through ctypes; nothing is compiled, and neither PyTorch nor a card is needed
to import it. For PyTorch::

    import meopt.torch
    optimizer = meopt.torch.AdamW(model.parameters(), lr=1e-3)
"""
__version__ = "0.2.0"
