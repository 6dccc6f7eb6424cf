"""Compile patches: corrections around the AOT compiler, each a plugin that can be switched off.

One file a patch; each is held only while a program compiles, shared by overlapping threads.
"""
