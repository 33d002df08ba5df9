"""Mutation campaign: damaged recordings, corpora, runs and settings must give a result or one clear line, nothing else.

seeds (valid files) ─► mutate one file ─► run a command in a forked process ─► verdict
"""
