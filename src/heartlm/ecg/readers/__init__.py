"""One module a file format: each turns a path into a lazy `Recording`, or an annotation file into arrays.

Readers know files, not databases: the names of record, patient and database are filled in by `heartlm.ecg.database`.
"""
