"""Helpers of recipes, studies and benchmarks: measuring, result files, data, commands."""
