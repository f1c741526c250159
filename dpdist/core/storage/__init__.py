"""Atomic writing of files, folders, objects and arrays."""
