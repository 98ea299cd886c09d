"""Triton kernels for GPUs, a module a kind of work; each has a twin in torch that its tests hold it to.

With TRITON_INTERPRET=1, set before the import, they run on a CPU, slowly.
"""
