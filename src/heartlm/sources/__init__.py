"""Files at addresses such as `s3://bucket/path`, read through fsspec and a cache on disk."""
