"""Readers and writers of model files.

A file is untrusted data. No code in it runs, and a damaged or hostile file raises `FileError`.
"""
